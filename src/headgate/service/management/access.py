"""What every management endpoint checks first, in order: host, caller, role, an address in UTF-8, a valid body.

Nothing of a request is read, and nothing is looked up, before the caller is known to have access: without it, a caller
gets the same answer whether the thing exists or not.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ...board.store import UnwritableError
from ...errors import EngineError, HeadgateError, UsageError
from ...rules.format.problems import RulesError
from ...rules.sources.base import SourceError
from ..http.gates import read_body, require_caller
from ..http.json_reading import strictly
from ..http.problems import (
    BAD_JSON,
    BAD_VALUE,
    ProblemError,
    ProblemType,
    store_unavailable,
    usage_problem,
)
from ..http.routes import response
from .keys import require_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from ..node import Node
    from ..security.auth import Caller
    from ..security.tokens import Role

CONFLICT: Final = ProblemType(409, "conflict", "Conflict")
CHANGED: Final = ProblemType(412, "changed-meanwhile", "The rules do not match If-Match")
NOT_WRITTEN: Final = ProblemType(503, "not-written", "A file of the service cannot be written")
NO_SOURCE: Final = ProblemType(503, "rules-unavailable", "The source of the rules does not answer")
MAX_DETAIL: Final = 4_000
ROLE: Final = "x-headgate-role"
MAX_BODY: Final = 1_048_576
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "The token is missing or wrong"},
    403: {"description": "The token does not allow this"},
    404: {"description": "Not found"},
    413: {"description": "The body is too large"},
    415: {"description": "The body is not JSON"},
    421: {"description": "The Host header names another host"},
    422: {"description": "A value is invalid"},
    429: {"description": "Too many wrong tokens from this address"},
    503: {"description": "The store does not answer, or a file cannot be written"},
}
log = logging.getLogger("headgate.service")
NO_MORE: Final[Mapping[int, str]] = MappingProxyType({})


def needs(role: Role, also: Mapping[int, str] = NO_MORE) -> dict[str, Any]:
    """A route's required role, and its further responses by status."""
    more = {status: {"description": text} for status, text in also.items()}
    return {"openapi_extra": {ROLE: role}, "responses": {**PROBLEMS, **more}}


def caller_of(request: Request) -> Caller:
    """The caller, known after access was checked."""
    caller: Caller = request.state.caller
    return caller


def guarded(node: Node) -> type[APIRoute]:
    """The route class of all management endpoints of a node."""

    class GuardedRoute(APIRoute):
        """A route with access control."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """The handler, with access control before it, and errors converted to problems."""
            inner = super().get_route_handler()
            role: Role = (self.openapi_extra or {})[ROLE]

            async def handle(request: Request) -> Response:
                began_ns = perf_counter_ns()
                try:
                    request.state.caller = require_caller(node.auth, request, role)
                    require_text(request)
                    await require_sound_body(request)
                    answer = await inner(request)
                except RequestValidationError as error:
                    _count(node, request, self.path, 422, began_ns)
                    raise error from None
                except HTTPException as error:
                    _count(node, request, self.path, error.status_code, began_ns)
                    raise
                except (ProblemError, HeadgateError) as error:
                    answer = response(problem_of(error).reply())
                _count(node, request, self.path, answer.status_code, began_ns)
                return answer

            async def handle_traced(request: Request) -> Response:
                tracing = node.recorder.tracing
                if tracing is None:
                    return await handle(request)
                with tracing.request(request.method, self.path) as span:
                    answer = await handle(request)
                    span.set_attribute("http.response.status_code", answer.status_code)
                    return answer

            return handle_traced

    return GuardedRoute


async def require_sound_body(request: Request) -> None:
    """Refuse bodies that are too large, not JSON, nested too deep, or that have duplicate fields."""
    if request.method not in WITH_BODY:
        return
    body = await read_body(request, MAX_BODY)
    request._body = body  # Starlette caches a body and its content in these attributes.
    if body:
        request._json = read_strictly(body)


def read_strictly(body: bytes) -> Any:
    """Parse a body.

    Python's own parser accepts numbers that are not valid JSON, and has no clear message for those that are too long.
    """
    strictly(body)
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:
        raise ProblemError(BAD_VALUE, "a number in the body is too large to be read") from None
    except msgspec.MsgspecError:
        detail = "the body is not JSON: NaN and Infinity are not JSON numbers"
        raise ProblemError(BAD_JSON, detail) from None


def problem_of(error: Exception) -> ProblemError:
    """One of our errors as a problem."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, UsageError):
        return usage_problem(error)
    if isinstance(error, EngineError):
        return _problem_of_engine(error)
    if isinstance(error, RulesError):
        return ProblemError(BAD_VALUE, str(error)[:MAX_DETAIL], pointer="#/rule")
    if isinstance(error, SourceError) and error.transient:
        return ProblemError(NO_SOURCE, "the source of the rules does not answer")
    return ProblemError(CONFLICT, str(error)[:MAX_DETAIL])


def _problem_of_engine(error: EngineError) -> ProblemError:
    if isinstance(error, UnwritableError):
        log.error("a change was not made: %s", error)
        return ProblemError(NOT_WRITTEN, "nothing was changed; see the service's log")
    done = "the change may have been made anyway" if error.indefinite else "nothing was changed"
    return store_unavailable(f"the store does not answer, and {done}")


def _count(node: Node, request: Request, path: str, status: int, began_ns: int) -> None:
    node.recorder.record_http(request.method, path, status, perf_counter_ns() - began_ns)
