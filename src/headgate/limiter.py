"""Limiter: the front door of the library, for threads and plain functions. `aio.py` is its twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .charge import Charge, Kind, Request, request_of, require_steps, require_text
from .decorator import is_async, limited, limited_async
from .driver import run, run_async
from .engines.base import Awaited, Engine
from .errors import EngineError, UsageError
from .held import RESERVATION_TTL, Reservation, Slots
from .opening import is_client, logger_of, open_engine, url_from_env
from .rate import RateLike, limits_of
from .renewal import Renewer
from .ruled import (
    UNMATCHED,
    Explanation,
    OnError,
    OnFailure,
    Ruled,
    RulesLike,
    enforced,
    explained,
    peeks,
)
from .spec import Mode, Spec, Stats, resolve_limits

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from .algorithms import Limit
    from .clock import Clock
    from .decision import Decision
    from .engines.base import Hit
    from .rules.request import Request as Incoming

P = ParamSpec("P")
R = TypeVar("R")

MAX_BOUND = 10_000
"""How many different rates a limiter remembers; a program has a handful."""


class Limiter:
    """Decides who may go on.

    >>> limiter = Limiter()
    >>> bool(limiter.hit("user:42", "2/minute"))
    True
    >>> limiter.hit("user:42", "2/minute").remaining
    0
    >>> limiter.hit("user:42", "2/minute").allowed
    False

    `engine` is a URL (`memory://` keeps everything in this process, `redis://…` shares it), a client of redis-py whose
    settings are taken over, or an engine. Keys and reservations of two namespaces never meet. The limiter is safe to share between threads;
    make one and keep it. `logger` is told about waits, at the level DEBUG, about slots that were lost, and about a Redis that
    may forget limits; without one it is "headgate". An engine that you made, a state file and sources of rules do not ask
    for it and log under "headgate".

    `rules` is what `decide_request` goes by: a file, the URL of a source, or rules that were read already. `on_error` is for
    rules that do not say what happens when the engine fails: `raise`, or let requests pass (`open`) or deny them (`closed`).
    `on_failure` is told each error of the engine that rules answer for, so that an outage is seen by more than the callers.
    """

    def __init__(
        self,
        engine: str | Engine | Any = "memory://",
        *,
        namespace: str = "",
        rules: RulesLike | None = None,
        on_error: OnError = "raise",
        on_failure: OnFailure | None = None,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
    ) -> None:
        require_text("namespace", namespace)
        self._log = logger_of(logger)
        opened = open_engine(engine, clock, self._log)
        self._owns_engine = isinstance(engine, str) or is_client(engine)
        self._engine = opened.scoped(namespace) if namespace else opened
        self._bound: dict[str | None, dict[RateLike, Hit]] = {}
        self._renewer = Renewer(self._log)
        self._ruled: Ruled[Hit] = Ruled(rules, on_error, self._engine.bind, on_failure)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """A limiter on the engine that `HEADGATE_ENGINE`, else `REDIS_URL`, names; else on a local Redis."""
        return cls(url_from_env(environ), **settings)

    @property
    def engine(self) -> Engine:
        """Where the states live."""
        return self._engine

    def hit(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Take `cost` units for `key` if they fit. Never waits and never raises for a denial."""
        try:
            bound = self._bound[algorithm][rate]
        except (KeyError, TypeError):
            bound = self._bind(rate, algorithm)
        return bound(key, cost)

    def check(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return self.decide([Charge(key, rate, cost, algorithm, kind=Kind.PEEK)])

    def decide(self, charges: Iterable[Charge]) -> Decision:
        """Take all charges together, or none of them."""
        return self._engine.decide([request_of(charges)])[0]

    def decide_request(self, request: Incoming) -> Decision:
        """Decide a request by all rules that are about it, together: it is charged by all of them or by none.

        `rule` names the rule that speaks in the decision, and `rules` has the answer of each. A request that no rule is
        about passes, and says so: `limited` is false then.
        """
        question = self._ruled.question(request)
        if question is None:
            return UNMATCHED
        try:
            if question.hit is not None:
                (charge,) = question.charges
                return question.hit(charge.key, charge.cost)
            return enforced(self._engine.decide([question.request])[0])
        except EngineError as error:
            return self._ruled.failed(question, error)

    def explain_request(self, request: Incoming) -> Explanation:
        """Say why each rule applies to a request, or does not, and what it would answer now; take nothing."""
        trace = self._ruled.current.explain(request)
        asked = peeks(trace)
        return explained(trace, None if asked is None else self._engine.decide([asked])[0])

    @property
    def rules_version(self) -> str | None:
        """Names the rules that hold now; `None` without any."""
        return self._ruled.version

    def limit(
        self,
        key: str,
        rate: RateLike | None = None,
        *,
        limit: int | None = None,
        window: float | None = None,
        burst: int | None = None,
        algorithm: str | None = None,
        mode: Mode = "blocking",
    ) -> KeyLimit:
        """One key with its limit, to be used again and again: `limiter.limit("api", "4/second")`."""
        limits = resolve_limits(rate, limit, window, burst, algorithm)
        return KeyLimit(self._engine, Spec(key, limits, mode), self._log)

    def concurrency(self, key: str, limit: int) -> Slots:
        """At most `limit` holders of `key` at the same time."""
        return Slots(self._engine, key, limit, self._renewer, self._log)

    def close(self) -> None:
        """Let go of the engine and the rules, if the limiter opened them; slots that are held are not renewed any more."""
        self._renewer.stop()
        self._ruled.close()
        if self._owns_engine:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, rate: RateLike, algorithm: str | None) -> Hit:
        """Look a rate up the slow way, and remember how to count it."""
        limits = limits_of(rate, algorithm)
        require_steps(len(limits))
        bound = self._engine.bind(limits[0]) if len(limits) == 1 else self._bind_all(limits)
        known = self._bound.setdefault(algorithm, {})
        if len(known) >= MAX_BOUND:
            known.clear()
        known[rate] = bound
        return bound

    def _bind_all(self, limits: tuple[Limit, ...]) -> Hit:
        def hit(key: str, cost: int) -> Decision:
            charges = tuple(Charge(key, limit, cost) for limit in limits)
            return self._engine.decide([Request(charges)])[0]

        return hit


class KeyLimit:
    """One key and its limit. Use it as a call, a context manager or a decorator.

    >>> igdb = Limiter().limit("igdb:api", "4/second", mode="immediate")
    >>> with igdb:
    ...     pass
    >>> igdb.stats()
    Stats(count=1, limit=4, window=1.0, remaining=3)
    """

    def __init__(self, engine: Engine, spec: Spec, logger: logging.Logger) -> None:
        self._engine = engine
        self._spec = spec
        self._log = logger

    @property
    def key(self) -> str:
        """Whom the limit is for."""
        return self._spec.key

    def acquire(self, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take `cost` units, waiting for them if the mode is blocking (at most `timeout` seconds).

        Raises `RateLimitExceeded` when they cannot be had in time, or ever.
        """
        engine = self._engine
        steps = self._spec.flow(self._spec.request(cost), timeout, engine.clock.now_us)
        return run(steps, engine, self._log)

    def hit(self, cost: int = 1) -> Decision:
        """Take `cost` units if they fit. Never waits and never raises for a denial."""
        return self._engine.decide([self._spec.request(cost)])[0]

    def check(self, cost: int = 1) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return self._engine.decide([self._spec.request(cost, Kind.PEEK)])[0]

    def stats(self) -> Stats:
        """How much is used and left, of the tightest limit if there are several."""
        spec = self._spec
        return spec.stats([self._engine.usage(spec.key, limit) for limit in spec.limits])

    def reset(self) -> None:
        """Forget what was used."""
        for limit in self._spec.limits:
            self._engine.reset(self._spec.key, limit)

    def reserve(
        self, cost: int, *, timeout: float | None = None, ttl: float = RESERVATION_TTL
    ) -> Reservation:
        """Charge an estimate now and settle the real cost later: `with limit.reserve(500) as r`."""
        return Reservation(self._engine, self._spec, cost, timeout, ttl, logger=self._log)

    def __enter__(self) -> Decision:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Units are taken, not held: nothing to give back."""

    async def __aenter__(self) -> Decision:
        return await self._acquire_from_loop()

    async def __aexit__(self, *_: object) -> None:
        """Units are taken, not held: nothing to give back."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` acquire a unit first."""
        if not callable(function):
            raise UsageError(f"a limit decorates a function, not {function!r:.80}")
        if is_async(function):
            return limited_async(function, self._acquire_from_loop)
        return limited(function, self.acquire)

    async def _acquire_from_loop(self) -> Decision:
        """Acquire inside an event loop: waiting there must not hold up anybody else."""
        engine = self._engine
        steps = self._spec.flow(self._spec.request(1), None, engine.clock.now_us)
        return await run_async(steps, Awaited(engine, in_threads=engine.blocking), self._log)
