"""What `Limiter` and `AsyncLimiter` share: an engine with its guards, rules, and how to count each rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from ._shared_counts import SharedCountWarning
from ._spec import Mode, Spec, resolve_limits
from .charge import request_of, require_steps, require_text
from .engines.base import AsyncEngine, Engine
from .errors import UsageError
from .guards.membership import Membership
from .guards.stack import WhenStoreFails
from .held import RESERVATION_TTL
from .opening import logger_of, refusals_of, url_from_env
from .rate import Consistency, RateLike, limits_of
from .regions.guard import SplitGuard
from .regions.model import in_program, why_not
from .rule_decisions import OnFailure, RuleDecider, RulesLike

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from ._registration import Registration
    from .adaptive.guard import Choices
    from .algorithms import Limit
    from .charge import Charge
    from .clock import Clock
    from .guards.base import Guard
    from .regions.model import Regions
    from .regions.program import ProgramRegions
    from .rules.matching.rulebook import BadPaths
    from .rules.model import OnError

E = TypeVar("E", Engine, AsyncEngine)
H = TypeVar("H")  # How it is hit.
K = TypeVar("K")  # The limit of a key.
D = TypeVar("D")  # The decorator for keys that are built from arguments.
V = TypeVar("V")  # A reservation.

MAX_BOUND: Final = 10_000
"""How many rates a limiter caches; a program has a handful."""


class LimiterBase(Generic[E, H, K, D, V]):
    """A limiter without its calls."""

    def __init__(
        self,
        engine: str | Engine | AsyncEngine | Any = "memory://",
        *,
        namespace: str = "",
        rules: RulesLike | None = None,
        on_error: OnError = "raise",
        on_failure: OnFailure | None = None,
        nodes: int | Membership | None = None,
        bad_paths: BadPaths = "deny",
        guards: Sequence[Guard] = (),
        adaptive: Choices | None = None,
        regions: Regions | None = None,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
    ) -> None:
        require_text("namespace", namespace)
        self._log: logging.Logger = logger_of(logger)
        self._regions: Regions | None = regions and in_program(regions, engine)
        refuses = None if rules is None else refusals_of(engine)
        self._rules: RuleDecider[H] = RuleDecider(
            rules, on_error, bad_paths, self._regions, refuses
        )
        self._region_program: ProgramRegions | None = None
        if self._regions is not None:
            if self._regions.linked and not self._regions.in_service:
                program: ProgramRegions = _region_program(
                    self._regions, engine, namespace, self._rules, self._log
                )
                self._region_program, guards = program, [*guards, *program.guards]
            guards = [*guards, SplitGuard(self._regions)]
        self._members = nodes if isinstance(nodes, Membership) else Membership(nodes)
        if on_failure is not None and not callable(on_failure):
            self._rules.close()
            raise UsageError(
                f"on_failure must be a function that is called with the error, not {on_failure!r:.40}",
                "on_failure",
            )
        failing = WhenStoreFails(self._rules.on_error, self._members, on_failure)
        try:
            opened, self._owns_engine = self._open(engine, clock, guards, adaptive, failing)
        except BaseException:
            self._rules.close()
            raise
        self._engine: E = opened.scoped(namespace) if namespace else opened
        self._registration: Registration | None = None
        place = self._engine.describe().board
        if (
            place is not None and self._members is not nodes
        ):  # Else somebody else looks for members.
            from ._registration import Registration  # noqa: PLC0415 - only who shares a store needs it

            self._registration = Registration(
                place, self._members, self._engine.clock, self._log, likely=on_error == "fallback"
            )
        self._bound: dict[str | None, dict[RateLike, H]] = {}
        self._bound_limits = 0
        self._shared_counts = SharedCountWarning(self._log, self._bound.clear)
        bind: Any = self._engine.bind
        self._rules.bind = bind

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """A limiter on the engine named by `HEADGATE_ENGINE`, else by `REDIS_URL`, else on a local Redis."""
        make: Any = cls
        made: Self = make(url_from_env(environ), **settings)
        return made

    @property
    def engine(self) -> E:
        """Where the states live."""
        return self._engine

    @property
    def nodes(self) -> int:
        """By how many this process would divide limits now, if the store were away and `on_error` were `fallback`.

        It is the largest number of limiters and nodes of the service seen on the store within the last hour, this one
        included, and at least what `nodes` said. Limiters are seen from their first decision with `fallback` on.
        """
        return self._members.fleet().nodes

    @property
    def rules_version(self) -> str | None:
        """The version of the rules in force; `None` without rules."""
        return self._rules.version

    @overload
    def limit(
        self,
        key: str,
        rate: RateLike | None = None,
        *,
        limit: int | None = None,
        window: float | None = None,
        burst: int | None = None,
        algorithm: str | None = None,
        consistency: Consistency = "exact",
        mode: Mode = "blocking",
    ) -> K: ...

    @overload
    def limit(
        self,
        key: Callable[..., str],
        rate: RateLike | None = None,
        *,
        limit: int | None = None,
        window: float | None = None,
        burst: int | None = None,
        algorithm: str | None = None,
        consistency: Consistency = "exact",
        mode: Mode = "blocking",
    ) -> D: ...

    def limit(
        self,
        key: str | Callable[..., str],
        rate: RateLike | None = None,
        *,
        limit: int | None = None,
        window: float | None = None,
        burst: int | None = None,
        algorithm: str | None = None,
        consistency: Consistency = "exact",
        mode: Mode = "blocking",
    ) -> K | D:
        """One key with its limit, to keep and reuse: `limiter.limit("api", "4/second")`.

        Without a burst or an algorithm it is exact, counted by `sliding_log`, up to a limit of 10,000; above that by
        `sliding_window`. With a function as its key it is a decorator: `@limiter.limit(lambda user: f"mails:{user}",
        "5/hour")`. With `consistency="leased"` its units are taken from a shared store in chunks, see
        `headgate.leased`; its default algorithm is then `sliding_window`. With `consistency="split"` it is this
        region's share of the limit, and with `"merge"` the whole limit, less what other regions are known to have
        admitted; see `headgate.Regions`.
        """
        limits = resolve_limits(rate, limit, window, burst, algorithm, consistency=consistency)
        if callable(key):
            Spec("any", limits, mode)  # Refused now, not at the first call.
            return self._keyed_limit(key, lambda named: self._limit(named, limits, mode))
        return self._limit(key, limits, mode)

    def reserve(
        self,
        charges: Iterable[Charge],
        *,
        timeout: float | None = None,
        ttl: float = RESERVATION_TTL,
    ) -> V:
        """Charge estimates for several keys together, and settle the real cost of each later.

        `with limiter.reserve([Charge("llm:requests", "500/minute"), Charge("llm:tokens", "40000/minute", 900)]) as r`
        waits until all of them fit, or for `timeout` seconds; then `r.settle(1, 812)` settles the real costs, in the
        same order. An `AsyncLimiter` has it with `async with` and `await`.
        """
        return self._reservation(self._engine, request_of(charges), timeout, ttl, logger=self._log)

    _reservation: Callable[..., V]
    """Makes a reservation."""

    def _open(
        self,
        engine: Any,
        clock: Clock | None,
        guards: Sequence[Guard],
        adaptive: Choices | None,
        failing: WhenStoreFails,
    ) -> tuple[E, bool]:
        """The engine with its guards, and whether the limiter opened it."""
        raise NotImplementedError

    def _bind_limits(self, limits: tuple[Limit, ...]) -> H:
        """How to hit these limits together."""
        raise NotImplementedError

    def _key_limit(self, spec: Spec, hit: H) -> K:
        """One key and its limit."""
        raise NotImplementedError

    def _keyed_limit(self, key: Callable[..., str], limit_of: Callable[[str], K]) -> D:
        """A decorator whose key is built from arguments."""
        raise NotImplementedError

    def _bind(self, rate: RateLike, algorithm: str | None) -> H:
        """Look up a rate the slow way, and remember how to count it."""
        limits = limits_of(rate, algorithm)
        bound = self._hit_of(limits)
        self._bound_limits += len(limits)
        if self._bound_limits > MAX_BOUND:
            self._bound.clear()
            self._bound_limits = len(limits)
        self._bound.setdefault(algorithm, {})[rate] = bound
        return bound

    def _hit_of(self, limits: tuple[Limit, ...]) -> H:
        require_steps(len(limits))
        problem = why_not(self._regions, limits)
        if problem is not None:
            raise UsageError(problem, "consistency")
        self._shared_counts.add_limits(limits)
        watched: Any = self._shared_counts.watch
        counted: H = watched(limits, self._bind_limits(limits))
        return counted

    def _limit(self, key: str, limits: tuple[Limit, ...], mode: Mode) -> K:
        spec = Spec(key, limits, mode)
        self._shared_counts.warn_if_shared(key, limits)
        if len(limits) > 1:
            return self._key_limit(spec, self._hit_of(limits))
        known = self._bound.get(None)
        hit = None if known is None else known.get(limits[0])
        return self._key_limit(spec, self._bind(limits[0], None) if hit is None else hit)


class KeyLimitBase(Generic[E, H, V]):
    """One key and its limit, without the calls."""

    def __init__(
        self, engine: E, spec: Spec, logger: logging.Logger, hit: H, *, at_once: bool
    ) -> None:
        self._engine: E = engine
        self._spec = spec
        self._log = logger
        self._hit = hit
        self._key = spec.key
        self._at_once = at_once
        """Whether the engine answers so fast that the call overhead matters."""
        self._plain = at_once and spec.may_hit(None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._spec!r}>"

    @property
    def key(self) -> str:
        """The key that units are counted under."""
        return self._spec.key

    def reserve(
        self, cost: int, *, timeout: float | None = None, ttl: float = RESERVATION_TTL
    ) -> V:
        """Charge an estimate now and settle the real cost later: `with limit.reserve(500) as r`, or `async with`."""
        spec = self._spec
        patience = spec.patience(timeout)
        return self._reservation(self._engine, spec.estimate(cost), patience, ttl, logger=self._log)

    _reservation: Callable[..., V]
    """Makes a reservation."""


def _region_program(
    regions: Regions, url: Any, namespace: str, rules: RuleDecider[Any], logger: logging.Logger
) -> ProgramRegions:
    """What tells the nodes of this region what is admitted here; in a service nodes do so themselves."""
    from .regions.program import ProgramRegions  # noqa: PLC0415 - only who has regions needs it

    return ProgramRegions(
        regions, url, namespace=namespace, keeps_share=rules.keeps_share, logger=logger
    )
