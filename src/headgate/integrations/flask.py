"""Limits for Flask: an extension with `init_app`, a decorator for views, limits for blueprints and for the whole app.

    limits = RateLimits(app, rate="1000/hour")

    @app.get("/")
    @limits.limit("10/minute")
    def hello(): ...

All limits that a request has are charged in one go, before its view is called: a request that one of them refuses is
charged by none. A count belongs to the client and the endpoint, never to a concrete URL.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from flask import Response, current_app, g, request
from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests

from ..charge import ChargeSet, ReadyCharge, require_cost
from ..charge_kind import ChargeKind
from ..engines.base import combined
from ..errors import EngineError, UsageError
from ..limiter import Limiter
from ..rate import limits_of
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
)
from .wsgi import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flask import Blueprint, Flask

    from ..algorithms import Limit
    from ..charge import Charge
    from ..decision import Decision
    from ..rate import RateLike

P = ParamSpec("P")
R = TypeVar("R")
KeyFunction: TypeAlias = "Callable[[], str | int | None]"
EXTENSION: Final = "headgate"
MARK: Final = "_headgate_limits"
"""Where a view keeps its limits."""


class ViewLimit(NamedTuple):
    """One limit of a view, a blueprint or an app."""

    limits: tuple[Limit, ...]
    key: KeyFunction | None
    cost: int | Callable[[], int]
    scope: str | None

    def charge(self, scope: str, clients: Clients) -> Charge:
        """What this request is charged."""
        said = None if self.key is None else self.key()
        if self.key is None or said is None:
            key = clients.key(*peer_of(request.environ))
        else:
            key = key_of(said, prefix_of(self.key))
        cost = require_cost(self.cost() if callable(self.cost) else self.cost)
        return ReadyCharge(key, self.limits, cost, ChargeKind.TAKE, self.scope or scope)


class AppLimits(NamedTuple):
    """The options of one app."""

    limiter: Limiter
    clients: Clients
    all: tuple[ViewLimit, ...]
    headers: bool
    open: bool


class RateLimits:
    """The extension. Options are for all apps; an app's config (`HEADGATE_…`) wins over them.

    `rate` is for each client over a whole app. `limiter` is a `Limiter` or the URL of an engine; without one, counts
    are kept in this process. If the store does not answer the answer is 503; with `on_error="open"` requests pass
    uncounted, and with `"fallback"` this process counts by its share of each limit.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        rate: RateLike | None = None,
        key: KeyFunction | None = None,
        limiter: Limiter | str | None = None,
        trusted_proxies: Iterable[str] = (),
        headers: bool = True,
        on_error: OnStoreError = "closed",
    ) -> None:
        self._options: dict[str, Any] = {
            "HEADGATE_RATE": rate,
            "HEADGATE_ENGINE": limiter,
            "HEADGATE_TRUSTED_PROXIES": trusted_proxies,
            "HEADGATE_HEADERS": headers,
            "HEADGATE_ON_ERROR": on_error,
        }
        self._key = key
        self._blueprints: dict[object, list[ViewLimit]] = {}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Install the limits in an app. Raises if its configuration is invalid."""
        if EXTENSION in app.extensions:
            raise UsageError("this app already has limits; every request would be counted twice")
        told = {name: app.config.get(name, option) for name, option in self._options.items()}
        limiter, _ = open_limiter(
            Limiter, told["HEADGATE_ENGINE"], on_error=told["HEADGATE_ON_ERROR"]
        )
        rate = told["HEADGATE_RATE"]
        app.extensions[EXTENSION] = AppLimits(
            limiter,
            Clients(told["HEADGATE_TRUSTED_PROXIES"], limiter.engine),
            () if rate is None else (self._view_limit(rate, scope="default"),),
            bool(told["HEADGATE_HEADERS"]),
            told["HEADGATE_ON_ERROR"] == "open",
        )
        app.before_request(self._count)
        app.after_request(_add_headers)

    def limit(
        self,
        rate: RateLike,
        *,
        key: KeyFunction | None = None,
        cost: int | Callable[[], int] = 1,
        scope: str | None = None,
        algorithm: str | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator for a view; write it below the route.

        `key` and `cost` are called without arguments and look at `flask.request`; where `key` returns `None`, the
        client's address is the key. Views whose limits have one `scope` share a count.
        """
        one = self._view_limit(rate, key, cost, scope, algorithm)

        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            @wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                if not any(
                    one is counted for counted in _progress().counted
                ):  # Something around the view hid its limits.
                    _charge([(one, request.endpoint or "default")])
                result: R = current_app.ensure_sync(view)(*args, **kwargs)
                return result

            setattr(limited, MARK, (one, *getattr(view, MARK, ())))
            return limited

        return decorate

    def limit_blueprint(
        self,
        blueprint: Blueprint,
        rate: RateLike,
        *,
        key: KeyFunction | None = None,
        cost: int | Callable[[], int] = 1,
        scope: str | None = None,
        algorithm: str | None = None,
    ) -> None:
        """Limit all views of a blueprint together: they share one count, as do those of blueprints within."""
        one = self._view_limit(rate, key, cost, scope, algorithm)
        self._blueprints.setdefault(blueprint, []).append(one)

    def _view_limit(
        self,
        rate: RateLike,
        key: KeyFunction | None = None,
        cost: int | Callable[[], int] = 1,
        scope: str | None = None,
        algorithm: str | None = None,
    ) -> ViewLimit:
        cost = cost if callable(cost) else require_cost(cost)
        return ViewLimit(limits_of(rate, algorithm), key or self._key, cost, scope)

    def _count(self) -> None:
        """Charge all limits of a request in one step."""
        g.pop("headgate_decision", None)  # That of an earlier request, where both share a context.
        app: AppLimits = current_app.extensions[EXTENSION]
        due = [(one, "default") for one in app.all]
        for name in reversed(request.blueprints):
            blueprint = current_app.blueprints.get(name)  # An endpoint may also have a dot.
            if blueprint is not None and blueprint in self._blueprints:
                scope = f"{_first_name(blueprint)}.*"
                due += [(one, scope) for one in self._blueprints[blueprint]]
        endpoint = request.endpoint
        if endpoint is not None:
            marked = getattr(current_app.view_functions.get(endpoint), MARK, ())
            due += [(one, endpoint) for one in marked]
        if due:
            _charge(due)


class Progress:
    """What one request was charged so far.

    Kept with the request, not in `flask.g`: requests share that while a context of the app is pushed around them.
    """

    def __init__(self) -> None:
        self.counted: list[ViewLimit] = []
        self.decision: Decision | None = None


def _progress() -> Progress:
    progress: Progress = request.__dict__.setdefault("_headgate_progress", Progress())
    return progress


def _first_name(blueprint: object) -> str:
    """The name that a blueprint was first registered by: an app may register it again, by another name."""
    return next(name for name, one in current_app.blueprints.items() if one is blueprint)


def _charge(due: list[tuple[ViewLimit, str]]) -> None:
    """Take what is due, or refuse the request."""
    app: AppLimits | None = current_app.extensions.get(EXTENSION)
    if app is None:
        raise UsageError("a view has a limit, but its app is not initialised: call init_app(app)")
    charges: list[Charge] = []
    for one, scope in due:
        charge = one.charge(scope, app.clients)
        same = sum(before.rule == charge.rule for before in charges)
        if same:  # A count of its own, also where two functions return the same key.
            charge.rule = f"{charge.rule}#{same + 1}"
        charges.append(charge)
    progress = _progress()
    progress.counted.extend(one for one, _ in due)
    try:
        decision = app.limiter.engine.decide([ChargeSet(tuple(charges))])[0]
    except EngineError as error:
        if not app.open:
            log.error("a request was refused, because its limit could not be checked: %s", error)
            raise _refused(STORE_UNAVAILABLE) from error
        log.warning("a request passed uncounted: %s", error)
        return
    if progress.decision is not None and decision.allowed:
        decision = combined([*progress.decision.rules, *decision.rules])
    progress.decision = g.headgate_decision = decision
    if not decision.allowed:
        raise _refused(refusal_of(decision))


def _refused(refusal: Refusal) -> HTTPException:
    """An exception of werkzeug: an error handler of the app can answer in its own words."""
    kind = ServiceUnavailable if refusal.status == 503 else TooManyRequests
    response = Response(refusal.body, refusal.status, content_type=PROBLEM_JSON)
    for name, value in refusal.headers:
        if name == b"retry-after":
            response.headers["Retry-After"] = value.decode()
    return kind(str(refusal.problem["detail"]), response=response)


def _add_headers(response: Response) -> Response:
    """Put what is left into the headers of a response."""
    decision = _progress().decision
    app: AppLimits = current_app.extensions[EXTENSION]
    if decision is not None and app.headers:
        response.headers.update(decision.headers())
    return response
