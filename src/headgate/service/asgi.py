"""The check API as ordinary ASGI routes: the same endpoints, for every request that is not the plain case, and those that need not be fast.

Any ASGI server can run these. They share decoder, checks and texts with the hot path, so nobody can tell by an answer which way it took.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from . import wire
from .endpoints import Later
from .media import WANTS_JSON, is_json
from .problems import JSON, NOT_JSON, TOO_LARGE, ProblemError, token_needed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from ..decision import Decision
    from .endpoints import Endpoint, Endpoints
    from .node import Node
    from .problems import Reply

STATUS_HEADER: Final = "x-headgate-status"


def check_routes(node: Node, endpoints: Endpoints) -> list[Route]:
    """The routes of the check API."""
    slow = Slow(node, endpoints)
    fast: dict[str, Endpoint] = {
        "/check": endpoints.check,
        "/check/batch": endpoints.batch,
        "/decide": endpoints.decide,
    }
    held = {
        "/reserve": slow.reserve,
        "/settle": slow.settle,
        "/acquire": slow.acquire,
        "/release": slow.release,
    }
    return [
        *(Route(path, slow.of_fast(endpoint), methods=["POST"]) for path, endpoint in fast.items()),
        *(Route(path, slow.guarded(handler), methods=["POST"]) for path, handler in held.items()),
    ]


class Slow:
    """The check API's endpoints, awaited."""

    def __init__(self, node: Node, endpoints: Endpoints) -> None:
        self._node = node
        self._endpoints = endpoints
        self._checks = endpoints.checks
        self._reserve = msgspec.json.Decoder(wire.Reserve)
        self._settle = msgspec.json.Decoder(wire.Settle)
        self._acquire = msgspec.json.Decoder(wire.Acquire)
        self._release = msgspec.json.Decoder(wire.Release)

    def of_fast(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """A fast endpoint, for a request that the fast path did not take."""

        async def handle(request: Request) -> Response:
            try:
                settings = self._node.settings
                is_batch = endpoint == self._endpoints.batch
                limit = settings.max_batch_body if is_batch else settings.max_body
                body = await self._body(request, limit)
            except ProblemError as problem:
                return response(problem.reply())
            outcome = endpoint(body, wants_status(request))
            if isinstance(outcome, Later):
                await asyncio.wait([outcome.future])
                return response(outcome.finish(outcome.future))
            return response(outcome)

        return handle

    def guarded(
        self, handler: Callable[[bytes, bool], Awaitable[Reply]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose errors are problems."""
        limit = self._node.settings.max_body

        async def handle(request: Request) -> Response:
            try:
                reply = await handler(await self._body(request, limit), wants_status(request))
            except Exception as error:  # noqa: BLE001 - every error has a reply
                reply = self._endpoints.problem(error).reply()
            return response(reply)

        return handle

    async def reserve(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /reserve`."""
        began_ns = perf_counter_ns()
        asked = self._read(self._reserve, body)
        return self._decided(await self._checks.reserve(asked), began_ns, as_status)

    async def settle(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /settle`."""
        settled = await self._checks.settle(self._read(self._settle, body))
        return (200, JSON, wire.encode({"settled": settled}))

    async def acquire(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /acquire`."""
        began_ns = perf_counter_ns()
        asked = self._read(self._acquire, body)
        return self._decided(await self._checks.acquire(asked), began_ns, as_status)

    async def release(self, body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
        """`POST /release`."""
        await self._checks.release(self._read(self._release, body))
        return (200, JSON, wire.encode({"released": True}))

    def _read(self, decoder: msgspec.json.Decoder[wire.T], body: bytes) -> wire.T:
        value, unknown = wire.read(decoder, body)
        if unknown:
            self._node.recorder.record_ignored_fields(unknown)
        return value

    def _decided(self, decision: Decision, began_ns: int, as_status: bool) -> Reply:  # noqa: FBT001
        return self._endpoints.decided(decision, as_status, began_ns)

    async def _body(self, request: Request, limit: int) -> bytes:
        """The body, if the caller may ask, it is JSON, and not too large; read no further than that."""
        auth = self._node.auth
        if auth is not None and not auth.may_check(_shown(request)):
            raise token_needed()
        too_large = ProblemError(
            TOO_LARGE,
            f"a body has at most {limit} bytes; send a batch in parts",
            lines=b"connection: close\r\n",
        )
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise too_large
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
        encoding = request.headers.get("content-encoding", "identity")
        if not is_json(request.headers.get("content-type", "")) or encoding.lower() != "identity":
            raise ProblemError(NOT_JSON, WANTS_JSON)
        return bytes(body)


def _shown(request: Request) -> bytes | None:
    """The `Authorization` header, as it came."""
    return next(
        (value for name, value in request.scope["headers"] if name == b"authorization"), None
    )


def wants_status(request: Request) -> bool:
    """Whether a denial is to be told as 429."""
    return request.headers.get(STATUS_HEADER) == "1" or request.query_params.get("status") == "1"


def response(reply: Reply) -> Response:
    """A reply as Starlette sends it."""
    status, lines, body = reply
    answer = Response(body, status)
    fields = [line.partition(b": ") for line in lines.split(b"\r\n") if line]
    answer.raw_headers = [
        *((name, value) for name, _, value in fields),
        (b"content-length", str(len(body)).encode()),
    ]
    return answer
