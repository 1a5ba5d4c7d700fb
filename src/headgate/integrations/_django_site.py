"""The settings in `settings.HEADGATE`, and how a Django request is charged. For `django` and `drf`."""

from __future__ import annotations

import inspect
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..aio import AsyncLimiter
from ..charge import ChargeSet, ReadyCharge, require_cost
from ..charge_kind import ChargeKind
from ..errors import EngineError, HeadgateError, UsageError
from ..limiter import Limiter
from ..rate import limits_of
from ._shared import (
    STORE_UNAVAILABLE,
    Clients,
    ExemptPaths,
    Refusal,
    key_of,
    log,
    prefix_of,
    require_on_store_error,
)
from .wsgi import peer_of, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.http import HttpRequest

    from ..charge import Charge
    from ..decision import Decision
    from ..rate import RateLike
    from ._shared import OnStoreError

KeyFunction: TypeAlias = "Callable[[HttpRequest], Any]"
CostFunction: TypeAlias = "Callable[[HttpRequest], int]"

DEFAULTS: Final[Mapping[str, Any]] = {
    "ENGINE": None,
    "RATE": None,
    "RULES": None,
    "KEY": None,
    "EXEMPT": (),
    "TRUSTED_PROXIES": (),
    "HEADERS": True,
    "ON_ERROR": "closed",
}
"""Every key of `settings.HEADGATE`."""


def by_user(request: HttpRequest) -> Any:
    """A key: the signed-in user, or else the client's address."""
    user = getattr(request, "user", None)
    return user.pk if user is not None and user.is_authenticated else None


async def _by_user_async(request: HttpRequest) -> Any:
    user = await request.auser() if hasattr(request, "auser") else None
    return user.pk if user is not None and user.is_authenticated else None


async def key_said_async(key: KeyFunction | None, request: HttpRequest) -> Any:
    """What a key function returns, which may be a coroutine function in an async project."""
    said = None if key is None else (_by_user_async if key is by_user else key)(request)
    return await said if inspect.isawaitable(said) else said


class RequestLimit:
    """One limit of a view, or of the whole site."""

    def __init__(
        self,
        rate: RateLike,
        key: KeyFunction | None = None,
        cost: int | CostFunction = 1,
        scope: str | None = None,
        algorithm: str | None = None,
    ) -> None:
        self._limits = limits_of(rate, algorithm)
        self._key = key
        self._cost = cost if callable(cost) else require_cost(cost)
        self._scope = scope

    def charge(self, request: HttpRequest, scope: str, site: SiteLimits) -> Charge:
        """What a request is charged."""
        key = self._key or site.key
        return self._charge(request, scope, site, None if key is None else key(request))

    async def charge_async(self, request: HttpRequest, scope: str, site: SiteLimits) -> Charge:
        """The same, for a key function that may be a coroutine."""
        said = await key_said_async(self._key or site.key, request)
        return self._charge(request, scope, site, said)

    def _charge(self, request: HttpRequest, scope: str, site: SiteLimits, said: Any) -> Charge:
        if said is None:
            key = site.clients.key(*peer_of(request.META))
        else:
            function = self._key or site.key
            assert function is not None
            key = key_of(said, "user" if function is by_user else prefix_of(function))
        cost = require_cost(self._cost(request) if callable(self._cost) else self._cost)
        return ReadyCharge(key, self._limits, cost, ChargeKind.TAKE, self._scope or scope)


class SiteLimits:
    """What `settings.HEADGATE` says."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        unknown = sorted(given.keys() - DEFAULTS.keys())
        if unknown:
            raise UsageError(
                f"HEADGATE has no setting {unknown[0]!r}; the settings are {', '.join(DEFAULTS)}"
            )
        told = {**DEFAULTS, **given}
        require_on_store_error(told["ON_ERROR"])
        key = told["KEY"]
        self.key: KeyFunction | None = import_string(key) if isinstance(key, str) else key
        if self.key is not None and not callable(self.key):
            raise UsageError(f"HEADGATE['KEY'] must be a function or its dotted path, not {key!r}")
        self.exempt = ExemptPaths(told["EXEMPT"])
        self.headers = bool(told["HEADERS"])
        self.open = told["ON_ERROR"] == "open"
        rate, self._rules = told["RATE"], told["RULES"]
        if rate is not None and self._rules is not None:
            raise UsageError("set RATE or RULES, not both; a rule can have the rate")
        self.by_rules = self._rules is not None
        self.all = () if rate is None else (RequestLimit(rate),)
        engine = told["ENGINE"] or "memory://"
        given_engine = engine.engine if isinstance(engine, Limiter) else engine
        self._on_error: OnStoreError = told["ON_ERROR"]
        self.limiter = Limiter(given_engine, rules=self._rules, on_error=self._on_error)
        self.clients = Clients(told["TRUSTED_PROXIES"], self.limiter.engine)
        # If calls never block, both kinds of views use one engine; else each has its own connections.
        shared = isinstance(engine, Limiter) or not self.limiter.engine.blocking
        self._async_source = self.limiter.engine if shared else engine
        self._lock = Lock()

    @property
    def limiter_async(self) -> AsyncLimiter:
        """The limiter for async views, with the same counts."""
        with self._lock:  # Threads with loops of their own must not open two engines.
            return self._limiter_async

    @cached_property
    def _limiter_async(self) -> AsyncLimiter:
        return AsyncLimiter(self._async_source, rules=self._rules, on_error=self._on_error)

    def decide(self, charges: list[Charge]) -> Decision | Refusal | None:
        """Charge all or none; `None` if the store is down and requests pass uncounted."""
        try:
            return self.limiter.engine.decide([ChargeSet(tuple(charges))])[0]
        except EngineError as error:
            return self._without_store(error)

    async def decide_async(self, charges: list[Charge]) -> Decision | Refusal | None:
        """The same, awaited."""
        try:
            return (await self.limiter_async.engine.decide([ChargeSet(tuple(charges))]))[0]
        except EngineError as error:
            return self._without_store(error)

    def decide_by_rules(self, request: HttpRequest) -> Decision | Refusal | None:
        """Decide a request by `HEADGATE["RULES"]`; `KEY` tells a rule who the user is."""
        said = None if self.key is None else self.key(request)
        try:
            return self.limiter.decide_request(request_of(request.META, self.clients, said))
        except EngineError as error:
            return self._without_store(error)

    async def decide_by_rules_async(self, request: HttpRequest) -> Decision | Refusal | None:
        """The same, awaited."""
        said = await key_said_async(self.key, request)
        try:
            asked = request_of(request.META, self.clients, said)
            return await self.limiter_async.decide_request(asked)
        except EngineError as error:
            return self._without_store(error)

    def _without_store(self, error: EngineError) -> Refusal | None:
        if self.open:
            log.warning("a request passed uncounted: %s", error)
            return None
        log.error("a request was refused, because its limit could not be checked: %s", error)
        return STORE_UNAVAILABLE


_site: list[SiteLimits] = []
_site_lock: Final = Lock()


def site_limits() -> SiteLimits:
    """The limits of this site, opened once."""
    with _site_lock:
        if not _site:
            try:
                _site.append(SiteLimits(getattr(settings, "HEADGATE", {})))
            except (HeadgateError, ImportError) as error:
                raise ImproperlyConfigured(f"settings.HEADGATE: {error}") from error
        return _site[0]


def forget_site_limits(*, setting: str = "HEADGATE", **_: Any) -> None:
    """Read the settings again at the next request. Django's tests do so when they override `HEADGATE`."""
    if setting == "HEADGATE":
        with _site_lock:
            _site.clear()


setting_changed.connect(forget_site_limits)
