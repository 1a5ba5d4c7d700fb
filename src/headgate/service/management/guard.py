"""What stands before every management endpoint, in this order: the right host, a known caller, a role that may, an address that is text, a sound body.

Nothing of a request is read before the caller is known to be allowed, and nothing is looked up: whoever may not do something gets the same
answer whether the thing exists or not.
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
from ...rules.problem import RulesError
from ...rules.sources.base import SourceError
from ..asgi import response
from ..checks import usage_problem
from ..media import WANTS_JSON, is_json
from ..problems import (
    BAD_JSON,
    BAD_VALUE,
    FORBIDDEN,
    NOT_JSON,
    TOO_LARGE,
    UNAUTHORIZED,
    Kind,
    ProblemError,
    store_unavailable,
)
from ..wire import read_twice
from .keys import require_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from ..auth import Caller
    from ..desk import Desk
    from ..tokens import Role

WRONG_HOST: Final = Kind(421, "wrong-host", "The request was meant for somebody else")
TOO_MANY_GUESSES: Final = Kind(429, "too-many-guesses", "Too many wrong tokens from this address")
CONFLICT: Final = Kind(409, "conflict", "As things are, this cannot be done")
CHANGED: Final = Kind(412, "changed-meanwhile", "It is not what If-Match names")
NOT_WRITTEN: Final = Kind(503, "not-written", "A file of the service cannot be written")
NO_SOURCE: Final = Kind(503, "rules-unavailable", "The source of the rules does not answer")
MAX_DETAIL: Final = 4_000
ROLE: Final = "x-headgate-role"
MAX_BODY: Final = 1_048_576
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "There is no token, or not a right one"},
    403: {"description": "The token does not allow this"},
    404: {"description": "There is no such thing"},
    413: {"description": "The body is too large"},
    415: {"description": "The body is not JSON"},
    421: {"description": "The Host header names somebody else"},
    422: {"description": "A value cannot be used"},
    429: {"description": "Too many wrong tokens from this address"},
    503: {"description": "The store does not answer, or a file cannot be written"},
}
log = logging.getLogger("headgate.service")
NO_MORE: Final[Mapping[int, str]] = MappingProxyType({})


def needs(role: Role, also: Mapping[int, str] = NO_MORE) -> dict[str, Any]:
    """What a route says about who may use it, and about what else can go wrong with it, by status."""
    more = {status: {"description": text} for status, text in also.items()}
    return {"openapi_extra": {ROLE: role}, "responses": {**PROBLEMS, **more}}


def caller_of(request: Request) -> Caller:
    """Who is asking; known since the guard let them pass."""
    caller: Caller = request.state.caller
    return caller


def guarded(desk: Desk) -> type[APIRoute]:
    """The kind of route that all management endpoints of a node are."""

    class GuardedRoute(APIRoute):
        """A route behind the guard."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """The handler, with the guard in front and errors as problems behind."""
            inner = super().get_route_handler()
            role: Role = (self.openapi_extra or {})[ROLE]

            async def handle(request: Request) -> Response:
                began_ns = perf_counter_ns()
                try:
                    request.state.caller = admit(desk, request, role)
                    require_text(request)
                    await require_sound_body(request)
                    answer = await inner(request)
                except RequestValidationError as error:
                    _count(desk, request, self.path, 422, began_ns)
                    raise error from None
                except HTTPException as error:
                    _count(desk, request, self.path, error.status_code, began_ns)
                    raise
                except (ProblemError, HeadgateError) as error:
                    answer = response(problem_of(error).reply())
                _count(desk, request, self.path, answer.status_code, began_ns)
                return answer

            async def handle_traced(request: Request) -> Response:
                tracing = desk.recorder.tracing
                if tracing is None:
                    return await handle(request)
                with tracing.request(request.method, self.path) as span:
                    answer = await handle(request)
                    span.set_attribute("http.response.status_code", answer.status_code)
                    return answer

            return handle_traced

    return GuardedRoute


def admit(desk: Desk, request: Request, role: Role) -> Caller:
    """The caller, if this is the right place for them and they may do what they ask."""
    headers = dict(request.scope["headers"])
    hosts = [value for name, value in request.scope["headers"] if name == b"host"]
    if not all(map(desk.auth.allows_host, hosts or [None])):
        raise ProblemError(
            WRONG_HOST,
            "the Host header does not name this service; name other hosts in the setting allowed_hosts",
        )
    shown = headers.get(b"authorization")
    address = "" if request.client is None else request.client.host
    caller: Caller | None = desk.auth.caller(shown, address)
    if caller is None:
        wait = 0.0 if shown is None else desk.auth.guess_failed(address)
        if wait:
            after = f"retry-after: {int(wait) + 1}\r\n".encode()
            raise ProblemError(TOO_MANY_GUESSES, "wait, and use the right token", lines=after)
        raise ProblemError(
            UNAUTHORIZED,
            "send the header 'Authorization: Bearer TOKEN'",
            lines=b"www-authenticate: Bearer\r\n",
        )
    if not caller.may(role):
        raise ProblemError(FORBIDDEN, f"this needs a token of the role {role}")
    return caller


async def require_sound_body(request: Request) -> None:
    """Refuse bodies that are too large, not JSON, nested too deep, or that name a field twice."""
    if request.method not in WITH_BODY:
        return
    if not is_json(request.headers.get("content-type", "")):
        raise ProblemError(NOT_JSON, WANTS_JSON)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ProblemError(NOT_JSON, WANTS_JSON)
    too_large = ProblemError(
        TOO_LARGE, f"a body has at most {MAX_BODY} bytes", lines=b"connection: close\r\n"
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise too_large
    request._body = bytes(body)  # Where Starlette keeps a body that was read, and what it says.
    if body:
        request._json = read_strictly(request._body)


def read_strictly(body: bytes) -> Any:
    """What a body says. Python's own reader takes numbers that are none in JSON, and has no words for those that are too long."""
    read_twice(body)
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:
        raise ProblemError(BAD_VALUE, "a number in the body is too large to be read") from None
    except msgspec.MsgspecError:
        detail = "the body is not JSON: NaN and Infinity are no numbers there"
        raise ProblemError(BAD_JSON, detail) from None


def problem_of(error: Exception) -> ProblemError:
    """An error of ours as a problem."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, UsageError):
        return usage_problem(error)
    if isinstance(error, EngineError):
        return _problem_of_engine(error)
    if isinstance(error, RulesError):
        return ProblemError(BAD_VALUE, str(error)[:MAX_DETAIL], pointer="#/rule")
    if isinstance(error, SourceError) and error.transient:
        return ProblemError(NO_SOURCE, "the place where the rules are kept does not answer")
    return ProblemError(CONFLICT, str(error)[:MAX_DETAIL])


def _problem_of_engine(error: EngineError) -> ProblemError:
    if isinstance(error, UnwritableError):
        log.error("a change was not made: %s", error)
        return ProblemError(NOT_WRITTEN, "nothing was changed; the log of the service says why")
    done = "it may have been done all the same" if error.indefinite else "nothing was changed"
    return store_unavailable(f"the store does not answer, and {done}")


def _count(desk: Desk, request: Request, path: str, status: int, began_ns: int) -> None:
    desk.recorder.record_http(request.method, path, status, perf_counter_ns() - began_ns)
