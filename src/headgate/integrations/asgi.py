"""ASGI middleware: every request and every WebSocket is counted before the application sees it.

    app = RateLimitMiddleware(app, rate="100/minute")

It is plain ASGI. Bodies are neither read nor held back, so streams, background tasks and WebSockets work as without
it. A rate has one count for each client, over the whole application; a rule has one for its path pattern, never one
for each concrete URL.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..aio import AsyncLimiter
from ..charge import require_cost
from ..decision import Decision
from ..engines.base import AsyncHit
from ..engines.binding import bind_limits_async
from ..errors import EngineError, UsageError
from ..headers import header_pairs
from ..rules.request import Request
from ._middleware import Middleware
from ._shared import PROBLEM_JSON, STORE_UNAVAILABLE, Refusal, encoded, key_of, log, refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from ..algorithms import Limit

Scope: TypeAlias = "MutableMapping[str, Any]"
Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
App: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"

STARTS: Final = frozenset({"http.response.start", "websocket.accept"})
"""The messages that have headers of a response that was let through."""
TRY_AGAIN_LATER: Final = 1013
"""How a WebSocket is closed where the server cannot send a response instead."""


class RateLimitMiddleware(Middleware[App, AsyncLimiter, AsyncHit, Scope]):
    """Counts by a rate, or by rules.

    `limiter` is an `AsyncLimiter` or the URL of an engine; without one, counts are kept in this process. A limiter that
    has rules needs neither `rate` nor `rules`. `key` and `cost` are called with the ASGI scope; where `key` returns
    `None`, the client's address is the key. With rules, `key` is the request's `user_id`. If the store does not answer
    the answer is 503; with `on_error="open"` requests pass uncounted, and with `"fallback"` this process counts by its
    share of the limit. A limiter that is ready does as it was told when it was made.
    """

    _limiter_class = AsyncLimiter

    def _bind(self, limits: tuple[Limit, ...], rule: str | None) -> AsyncHit:
        return bind_limits_async(self._limiter.engine, limits, rule)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request, and hand it on or refuse it."""
        kind = scope["type"]
        if kind not in {"http", "websocket"}:
            owned = self._limiter if self._owned and kind == "lifespan" else None
            await close_at_shutdown(owned, self.app, scope, receive, send)
            return
        if self._exempt.any and scope["path"] in self._exempt:
            await self.app(scope, receive, send)
            return
        try:
            answer: Any = self._ask(scope)
            if not isinstance(answer, Decision):
                answer = await answer
        except EngineError as error:
            if not self._open:
                log.error(
                    "a request was refused, because its limit could not be checked: %s", error
                )
                await _refuse(scope, send, STORE_UNAVAILABLE)
                return
            log.warning("a request passed uncounted: %s", error)
            await self.app(scope, receive, send)
            return
        decision: Decision = answer
        if not decision.answer[0]:
            await _refuse(scope, send, refusal_of(decision), headers=self._headers)
        elif self._headers:
            await self.app(scope, receive, _with_headers(send, header_pairs(decision)))
        else:
            await self.app(scope, receive, send)

    def _ask(self, scope: Scope) -> Decision | Awaitable[Decision]:
        said = None if self._key is None else self._key(scope)
        cost = self._cost
        if self._cost_function is not None:
            cost = require_cost(self._cost_function(scope))
        if self._hit is None:
            return self._limiter.decide_request_nowait(self._request(scope, said, cost))
        if said is None:
            client = scope.get("client")
            peer = None if client is None else client[0]
            forwarded = forwarded_for(scope) if self._clients.reads_headers else ()
            return self._hit(self._clients.key(peer, forwarded), cost)
        if inspect.isawaitable(said):
            raise UsageError("key must be a plain function, not a coroutine function")
        return self._hit(key_of(said, self._prefix), cost)

    def _request(self, scope: Scope, user_id: object, cost: int) -> Request:
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        client, path = scope.get("client"), scope["path"]
        return Request(
            scope.get("method", "GET"),
            encoded(path),
            ip=self._clients.address(None if client is None else client[0], forwarded_for(scope)),
            user_id=None if user_id is None else str(user_id),
            host=headers.get("host"),
            headers=headers,
            cost=None if self._cost_function is None and cost == 1 else cost,
        )


async def close_at_shutdown(
    limiter: AsyncLimiter | None, app: App, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the app's lifespan, and let go of the limiter when the server stops."""
    stopping = False

    async def watched() -> Message:
        nonlocal stopping
        message = await receive()
        stopping = stopping or message["type"] == "lifespan.shutdown"
        return message

    try:
        await app(scope, watched, send)
    finally:
        if stopping and limiter is not None:
            await limiter.aclose()


def forwarded_for(scope: Scope) -> list[str]:
    """Every `X-Forwarded-For`, in order."""
    return [
        value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"
    ]


def _with_headers(send: Send, pairs: list[tuple[bytes, bytes]]) -> Send:
    """The same `send`, which adds headers to the response.

    Where a limit further in has told the older trio already, that one stays; the lists of the newer fields may come
    twice.
    """

    def sending(message: Message) -> Awaitable[None]:
        if message["type"] in STARTS:
            theirs = [*message.get("headers", ())]
            ours = pairs
            for name, _ in theirs:
                if name == b"x-ratelimit-limit":
                    ours = [pair for pair in pairs if not pair[0].startswith(b"x-")]
                    break
            message = {**message, "headers": theirs + ours}
        return send(message)

    return sending


async def _refuse(scope: Scope, send: Send, refusal: Refusal, *, headers: bool = True) -> None:
    """Answer with a problem. A WebSocket is refused before it is accepted."""
    prefix = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            reason = str(refusal.problem["title"])
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": reason})
            return
        prefix = "websocket."
    body = refusal.body
    told = refusal.headers
    if not headers:
        told = [pair for pair in told if pair[0] == b"retry-after"]
    lines = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        *told,
    ]
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": lines})
    await send({"type": f"{prefix}http.response.body", "body": body})
