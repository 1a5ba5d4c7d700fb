"""Limits as dependencies of FastAPI.

    @app.get("/", dependencies=[Depends(limit("10/minute"))])

An endpoint needs no `request` parameter. A limit is counted for each client and route; the route is its template,
with what it is mounted under, so `/items/1` and `/items/2` share a count. A dependency is part of its route: mounting
or including an app elsewhere takes its limits along.

`install(app)` is for the whole application: which limiter, which proxies, headers on responses that endpoints make
themselves, and 429 in OpenAPI.
"""
# No `from __future__ import annotations` here: FastAPI has no names to look up those of a callable object with.

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from threading import Lock
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ..aio import AsyncLimiter
from ..charge import Charge, ChargeSet, ReadyCharge, require_cost
from ..charge_kind import ChargeKind
from ..decision import Decision
from ..engines.base import AsyncHit, combined
from ..engines.binding import bind_limits_async
from ..errors import EngineError, UsageError
from ..headers import header_pairs
from ..rate import RateLike, limits_of
from ._route_names import all_routes, route_name
from ._shared import (
    PROBLEM_JSON,
    STORE_UNAVAILABLE,
    Clients,
    OnStoreError,
    Refusal,
    key_of,
    log,
    open_limiter,
    prefix_of,
    refusal_of,
    require_on_error,
)
from .asgi import App, Message, Receive, Scope, Send, close_at_shutdown, forwarded_for

KeyFunction: TypeAlias = Callable[[HTTPConnection], str | int | Awaitable[str | int | None] | None]
CostFunction: TypeAlias = Callable[[HTTPConnection], int | Awaitable[int]]

SETTINGS: Final = "headgate"
"""Where `install` leaves its settings in the ASGI scope, which apps that are mounted share."""
DECISION: Final = "headgate.decision"
"""Where a decision is found in the ASGI scope once it was made."""
MAX_BOUND: Final = 10_000

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    429: {
        "description": "Too Many Requests",
        "headers": {
            name: {"description": about, "schema": {"type": kind}}
            for name, about, kind in [
                ("Retry-After", "Seconds until a retry can pass.", "integer"),
                ("RateLimit-Policy", "The limits that apply.", "string"),
                ("RateLimit", "What is left of each.", "string"),
            ]
        },
        "content": {
            PROBLEM_JSON: {
                "schema": {"type": "object", "properties": {"detail": {"type": "string"}}}
            }
        },
    }
}
"""For `responses=` of a route, a router or an app: how a 429 is described in OpenAPI. `install` adds it
automatically."""


class RateLimitError(HTTPException):
    """A request that is not let through: 429, or 503 if the store could not be asked."""

    def __init__(self, refusal: Refusal, decision: Decision | None = None) -> None:
        told = {name.decode(): value.decode() for name, value in refusal.headers}
        detail = str(refusal.problem["detail"])
        super().__init__(refusal.status, detail, {"content-type": PROBLEM_JSON, **told})
        self.refusal = refusal
        self.decision = decision


class LimitDependency:
    """A dependency that counts a request, and refuses it when there are too many. See `limit`."""

    def __init__(
        self,
        rate: RateLike,
        *,
        key: KeyFunction | None,
        cost: int | CostFunction,
        scope: str | None,
        algorithm: str | None,
        limiter: AsyncLimiter | None,
        on_error: OnStoreError,
    ) -> None:
        require_on_error(on_error)
        self._limits = limits_of(rate, algorithm)
        self._key = key
        self._prefix = "key" if key is None else prefix_of(key)
        self._cost = cost if callable(cost) else require_cost(cost)
        self._scope = scope
        self.limiter = limiter
        self.open = on_error == "open"
        self._hits: dict[tuple[int, int, str], tuple[object, AsyncLimiter, AsyncHit]] = {}

    async def __call__(self, connection: HTTPConnection, response: Response) -> None:
        """Count the request, or raise `RateLimitError`."""
        scope = connection.scope
        settings: AppSettings = scope.get(SETTINGS) or default_settings()
        limiter = self.limiter or settings.limiter
        route, root = _route_of(scope), scope.get("root_path", "")
        known = self._hits.get((id(route), id(limiter), root))
        hit = self._bind(scope, route, limiter, root) if known is None else known[2]
        key = settings.clients.key(*_peer(scope, settings)) if self._key is None else None
        if key is None:
            key = await self.key(connection, settings)
        cost = self._cost
        if not isinstance(cost, int):
            cost = await self.cost(connection)
        try:
            answer: Any = hit(key, cost)
            if not isinstance(answer, Decision):
                answer = await answer
        except EngineError as error:
            not_counted(error, passes=self.open)
            return
        apply_decision(scope, response, answer)

    async def charge(self, connection: HTTPConnection, settings: "AppSettings") -> Charge:
        """The request's charges, to charge several limits together."""
        scope = connection.scope
        name = self._scope or route_name(scope, _route_of(scope))
        key, cost = await self.key(connection, settings), await self.cost(connection)
        return ReadyCharge(key, self._limits, cost, ChargeKind.TAKE, name)

    async def key(self, connection: HTTPConnection, settings: "AppSettings") -> str:
        """Whom the request is counted for: the client's address where the function does not say."""
        said: Any = None if self._key is None else self._key(connection)
        if inspect.isawaitable(said):
            said = await said
        if said is None:
            return settings.clients.key(*_peer(connection.scope, settings))
        return key_of(said, self._prefix)

    async def cost(self, connection: HTTPConnection) -> int:
        """What the request costs."""
        said: Any = self._cost(connection) if callable(self._cost) else self._cost
        return require_cost(await said if inspect.isawaitable(said) else said)

    def _bind(self, scope: Scope, route: Any, limiter: AsyncLimiter, root: str) -> AsyncHit:
        """How to count on this route; remembered, with those whose ids name it."""
        hit = bind_limits_async(
            limiter.engine, self._limits, self._scope or route_name(scope, route)
        )
        if len(self._hits) >= MAX_BOUND:
            self._hits.clear()
        self._hits[id(route), id(limiter), root] = (route, limiter, hit)
        return hit


class JointLimitDependency:
    """Several limits as one dependency: all of them are charged, or none. See `together`."""

    def __init__(self, limits: tuple[LimitDependency, ...]) -> None:
        if not limits or not all(isinstance(one, LimitDependency) for one in limits):
            raise UsageError("together(limit(…), limit(…)) takes what limit() returns")
        if len({id(one.limiter) for one in limits}) > 1:
            raise UsageError("limits that are charged together must share one limiter")
        self._limits = limits

    async def __call__(self, connection: HTTPConnection, response: Response) -> None:
        """Count the request by all limits, or raise `RateLimitError`."""
        settings: AppSettings = connection.scope.get(SETTINGS) or default_settings()
        charges: list[Charge] = []
        for one in self._limits:
            charge = await one.charge(connection, settings)
            same = sum(before.rule == charge.rule for before in charges)
            if same:  # A count of its own, also where two functions return the same key.
                charge.rule = f"{charge.rule}#{same + 1}"
            charges.append(charge)
        limiter = self._limits[0].limiter or settings.limiter
        try:
            decision = (await limiter.engine.decide([ChargeSet(tuple(charges))]))[0]
        except EngineError as error:
            not_counted(error, passes=all(one.open for one in self._limits))
            return
        apply_decision(connection.scope, response, decision)


def limit(
    rate: RateLike,
    *,
    key: KeyFunction | None = None,
    cost: int | CostFunction = 1,
    scope: str | None = None,
    algorithm: str | None = None,
    limiter: AsyncLimiter | None = None,
    on_error: OnStoreError = "closed",
) -> LimitDependency:
    """A limit for `Depends`, on a route, a router or an app.

    `key` and `cost` are called with the connection (a `Request` or a `WebSocket`), and may be coroutine functions;
    where `key` returns `None`, the client's address is the key. `scope` is what the count belongs to, in the place of
    the route: limits with one scope share it. If the limiter raises because its store does not answer, the
    answer is 503, or with `on_error="open"` the request passes.
    """
    return LimitDependency(
        rate,
        key=key,
        cost=cost,
        scope=scope,
        algorithm=algorithm,
        limiter=limiter,
        on_error=on_error,
    )


def together(*limits: LimitDependency) -> JointLimitDependency:
    """Several limits that pass or refuse a request together: one that is refused is charged by none of them."""
    return JointLimitDependency(limits)


class AppSettings:
    """What the limits of an application have in common."""

    def __init__(self, limiter: AsyncLimiter, clients: Clients) -> None:
        self.limiter = limiter
        self.clients = clients


_defaults_lock: Final = Lock()


@cache
def _open_defaults() -> AppSettings:
    limiter = AsyncLimiter(os.environ.get("HEADGATE_ENGINE") or "memory://")
    return AppSettings(limiter, Clients(engine=limiter.engine))


def default_settings() -> AppSettings:
    """Without `install`: the engine that `HEADGATE_ENGINE` names, else memory; no proxy is believed.

    Under a lock: `cache` alone lets two threads make one each, and they would count apart.
    """
    with _defaults_lock:
        return _open_defaults()


def forget_default_settings() -> None:
    """Open the default engine anew at the next request. For tests."""
    _open_defaults.cache_clear()


def apply_decision(scope: Scope, response: Response, decision: Decision) -> None:
    """Raise if the request was denied; else put what is left into the headers."""
    if not decision.answer[0]:
        raise RateLimitError(refusal_of(decision), decision)
    before: Decision | None = scope.get(DECISION)
    if before is None:
        response.raw_headers.extend(header_pairs(decision))
    else:
        decision = combined([*before.rules, *decision.rules])
        others = [pair for pair in response.raw_headers if b"ratelimit" not in pair[0]]
        response.raw_headers[:] = [*others, *header_pairs(decision)]
    scope[DECISION] = decision


def not_counted(error: EngineError, *, passes: bool) -> None:
    """The store could not be asked: refuse the request, or let it pass."""
    if not passes:
        log.error("a request was refused, because its limit could not be checked: %s", error)
        raise RateLimitError(STORE_UNAVAILABLE) from error
    log.warning("a request passed uncounted: %s", error)


def _peer(scope: Scope, settings: AppSettings) -> tuple[str | None, list[str]]:
    client = scope.get("client")
    forwarded = forwarded_for(scope) if settings.clients.reads_headers else []
    return None if client is None else client[0], forwarded


def _route_of(scope: Scope) -> Any:
    """The route, as the application sees it: FastAPI keeps what an included router adds to it beside it."""
    route = scope.get("route")
    context = scope.get("fastapi", {}).get("effective_route_context")
    return context if getattr(context, "original_route", scope) is route else route


def install(
    app: FastAPI,
    *,
    limiter: AsyncLimiter | str | None = None,
    trusted_proxies: Iterable[str] = (),
    on_error: OnStoreError = "closed",
) -> None:
    """Say once, for the app and all that is mounted in it, how its limits count and answer.

    `limiter` is an `AsyncLimiter` or the URL of an engine, such as `redis://localhost`; `trusted_proxies` are the
    networks whose `X-Forwarded-For` is believed. If the store does not answer the answer is 503; with `on_error="open"`
    requests pass uncounted, and with `"fallback"` this process counts by its share of each limit. A limiter that is
    ready does as it was told when it was made.
    """
    named = limiter or os.environ.get("HEADGATE_ENGINE")
    opened, owned = open_limiter(AsyncLimiter, named, on_error=on_error)
    settings = AppSettings(opened, Clients(trusted_proxies, opened.engine))
    app.add_middleware(_Installed, settings=settings, owned=owned)
    app.add_exception_handler(RateLimitError, _answer)
    _describe(app)


async def _answer(_: Request, error: Exception) -> Response:
    """The whole problem, where FastAPI would send its detail only."""
    assert isinstance(error, RateLimitError)
    return Response(error.refusal.body, error.status_code, error.headers)


class _Installed:
    """Hands the settings to the limits within, and adds headers where an endpoint made the response itself."""

    def __init__(self, app: App, settings: AppSettings, *, owned: bool) -> None:
        self.app = app
        self._settings = settings
        self._owned = owned
        self._looked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request."""
        if scope["type"] == "lifespan":
            limiter = self._settings.limiter if self._owned else None
            await close_at_shutdown(limiter, self.app, scope, receive, send)
            return
        if not self._looked:
            self._looked = True
            _warn_of_mounts(scope.get("app"))
        scope[SETTINGS] = self._settings

        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                decision = scope.get(DECISION)
                theirs = message.get("headers", ())
                if decision is not None and not any(name == b"ratelimit" for name, _ in theirs):
                    message = {**message, "headers": [*theirs, *header_pairs(decision)]}
            return send(message)

        await self.app(scope, receive, sending)


def _warn_of_mounts(app: Any) -> None:
    """FastAPI does not ask the dependencies of an app about what is mounted in it."""
    for_all = getattr(getattr(app, "router", None), "dependencies", ())
    if not any(
        isinstance(one.dependency, LimitDependency | JointLimitDependency) for one in for_all
    ):
        return
    mounts = [route.path for route in app.routes if type(route).__name__ == "Mount"]
    if mounts:
        log.warning(
            "the limits of the app do not apply to the app mounted at %s; "
            "use headgate.integrations.asgi.RateLimitMiddleware",
            ", ".join(mounts),
        )


def _describe(app: FastAPI) -> None:
    """Add 429 to the operations of OpenAPI that have a limit."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        for route in all_routes(app.routes):
            if not _is_limited(getattr(route, "dependant", None)):
                continue
            operations = schema.get("paths", {}).get(route.path_format, {})
            for method in getattr(route, "methods", None) or ():
                if method.lower() in operations:
                    operations[method.lower()]["responses"].setdefault("429", RESPONSES[429])
        return schema

    app.openapi = openapi  # type: ignore[method-assign] # As FastAPI's own documentation has it.


def _is_limited(dependant: Any) -> bool:
    return dependant is not None and any(
        isinstance(one.call, LimitDependency | JointLimitDependency) or _is_limited(one)
        for one in dependant.dependencies
    )
