"""What the ASGI and the WSGI middleware share: their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..aio import AsyncLimiter
from ..charge import require_cost
from ..errors import UsageError
from ..limiter import Limiter
from ..rate import limits_of
from ._setup_checks import warn_if_counted_twice
from ._shared import Clients, ExemptPaths, OnStoreError, open_limiter, prefix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..algorithms import Limit
    from ..rate import RateLike
    from ..rule_decisions import RulesLike

App = TypeVar("App")
"""The application inside."""
L = TypeVar("L", Limiter, AsyncLimiter)
H = TypeVar("H")
Call = TypeVar("Call")
"""How the interface describes a request: an ASGI scope, a WSGI environment."""


class Middleware(Generic[App, L, H, Call]):
    """Counts by a rate, or by rules; how a request is read and answered is the subclass's."""

    _limiter_class: ClassVar[type[Any]]

    def __init__(
        self,
        app: App,
        rate: RateLike | None = None,
        *,
        rules: RulesLike | None = None,
        limiter: L | str | None = None,
        key: Callable[[Call], str | int | None] | None = None,
        cost: int | Callable[[Call], int] = 1,
        algorithm: str | None = None,
        name: str | None = None,
        exempt: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        headers: bool = True,
        on_error: OnStoreError = "closed",
    ) -> None:
        self.app = app
        self._limiter: L
        self._limiter, self._owned = open_limiter(self._limiter_class, limiter, rules, on_error)
        if rate is not None and self._limiter.rules_version is not None:
            raise UsageError("pass a rate or rules, not both; a rule can have the rate")
        if rate is None and self._limiter.rules_version is None:
            raise UsageError("no limit: pass rate='100/minute', or rules='rules.yaml'")
        self._hit = None if rate is None else self._bind(limits_of(rate, algorithm), name)
        self._clients = Clients(trusted_proxies, self._limiter.engine)
        self.counts = (rate, algorithm, name, key, self._limiter.rules_version)
        warn_if_counted_twice(app, type(self), self.counts)
        self._key = key
        self._prefix = "key" if key is None else prefix_of(key)
        self._cost_function = cost if callable(cost) else None
        self._cost = 1 if callable(cost) else require_cost(cost)
        self._exempt = ExemptPaths(exempt)
        self._headers = headers
        self._open = on_error == "open"

    def _bind(self, limits: tuple[Limit, ...], rule: str | None) -> H:
        """How to take units of these limits."""
        raise NotImplementedError
