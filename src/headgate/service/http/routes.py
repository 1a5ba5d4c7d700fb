"""The check API as ordinary ASGI routes: the same endpoints, for requests that the fast path does not handle.

Any ASGI server can run these. They share gates, endpoints and texts with the fast path, so an answer does not show
which way it took.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from .endpoints import Later
from .gates import read_body, require_checker
from .plain_heads import AS_STATUS
from .problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from ..node import Node
    from .endpoints import AwaitedEndpoint, Endpoint, Endpoints
    from .problems import Reply


def check_routes(node: Node, endpoints: Endpoints) -> list[Route]:
    """The routes of the check API."""
    max_body, max_batch_body = node.settings.max_body, node.settings.max_batch_body
    offered = {
        "/check": (_awaited(endpoints.check), max_body),
        "/check/batch": (_awaited(endpoints.batch), max_batch_body),
        "/decide": (_awaited(endpoints.decide), max_body),
        "/reserve": (endpoints.reserve, max_body),
        "/settle": (endpoints.settle, max_body),
        "/acquire": (endpoints.acquire, max_body),
        "/release": (endpoints.release, max_body),
    }
    return [
        Route(path, _handler(node, endpoint, limit), methods=["POST"])
        for path, (endpoint, limit) in offered.items()
    ]


def _handler(
    node: Node, endpoint: AwaitedEndpoint, limit: int
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint behind the gates."""

    async def handle(request: Request) -> Response:
        try:
            require_checker(node.auth, request.scope["headers"])
            body = await read_body(request, limit)
        except ProblemError as problem:
            return response(problem.reply())
        return response(await endpoint(body, wants_status(request)))

    return handle


def _awaited(endpoint: Endpoint) -> AwaitedEndpoint:
    """A fast endpoint, for a request that the fast path did not handle."""

    async def handle(body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        outcome = endpoint(body, as_status)
        if isinstance(outcome, Later):
            await asyncio.wait([outcome.future])
            return outcome.finish()
        return outcome

    return handle


def wants_status(request: Request) -> bool:
    """Whether a denial should be sent as 429."""
    return (
        request.headers.get(AS_STATUS.decode()) == "1" or request.query_params.get("status") == "1"
    )


def response(reply: Reply) -> Response:
    """A reply as a Starlette response."""
    status, lines, body = reply
    answer = Response(body, status)
    fields = [line.partition(b": ") for line in lines.split(b"\r\n") if line]
    answer.raw_headers = [
        *((name, value) for name, _, value in fields),
        (b"content-length", str(len(body)).encode()),
    ]
    return answer
