"""Limiter: the main class of the library, for threads and plain functions. `aio.py` is its async twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._decorator import is_async, limited, limited_async
from ._drivers import run, run_async
from ._keyed_limit import KeyedLimit
from ._limiter_base import KeyLimitBase, LimiterBase
from ._renewal import Renewer
from .charge import Charge, request_of
from .charge_kind import ChargeKind
from .decision import Decision
from .engines.base import Awaited, Engine, Hit
from .engines.binding import bind_limits
from .errors import UsageError
from .guards.fallback_shell import FallbackEngine
from .guards.stack import fallback_shell_of, finish
from .held import Reservation, Slots
from .opening import open_engine
from .rule_decisions import Explanation, enforced, peeks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from ._spec import Spec, Stats
    from .adaptive.guard import Choices
    from .algorithms import Limit
    from .clock import Clock
    from .guards.base import Guard
    from .guards.stack import WhenStoreFails
    from .rate import RateLike
    from .rules.request import Request as Incoming

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(LimiterBase[Engine, Hit, "KeyLimit", KeyedLimit, Reservation]):
    """Decides whether requests may proceed.

    >>> limiter = Limiter()
    >>> bool(limiter.hit("user:42", "2/minute"))
    True
    >>> limiter.hit("user:42", "2/minute").remaining
    0
    >>> limiter.hit("user:42", "2/minute").allowed
    False

    `engine` is a URL (`memory://` keeps everything in this process, `redis://…` shares it), a redis-py client, whose
    settings are used, or an engine. Keys and reservations in different namespaces are independent. The limiter is safe
    to share between threads; create one and keep it. `logger` gets waits, at DEBUG level, lost slots, and a warning
    about a Redis that may evict keys; the default is "headgate". Engines that you create, state files and sources of
    rules always log under "headgate".

    `rules` are used by `decide_request`: a file, the URL of a source, or parsed rules. `on_error` says what to do while
    the engine's store does not answer, for rules without their own `on_error`: `raise` the error, let requests pass
    (`open`), deny them (`closed`), or admit this process's share of each limit (`fallback`), which is the limit divided
    by the number of processes that share the store. They register there; `nodes` is the smallest number to assume.
    `on_failure` is called with each engine error, so that you can report an outage. `bad_paths` says what to do with an
    invalid path: `deny` the request, or `pass` it to the rules without a path pattern. `guards` wrap the engine, the
    first one outermost: see `headgate.guards.base`. `adaptive` chooses the algorithm of adaptive limits: by default the
    limiter itself, from its own traffic; pass a `headgate.adaptive.AdaptiveControl` to choose through a board.
    """

    _reservation = Reservation

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
        return self.decide([Charge(key, rate, cost, algorithm, kind=ChargeKind.PEEK)])

    def decide(self, charges: Iterable[Charge]) -> Decision:
        """Take all charges together, or none of them."""
        return self._engine.decide([request_of(charges)])[0]

    def decide_request(self, request: Incoming) -> Decision:
        """Decide a request by all rules that match it, together: it is charged by all of them or by none.

        `rule` names the deciding rule, and `rules` has the answer of each. A request that no rule matches is allowed,
        and `limited` is false.
        """
        question = self._rules.question(request)
        if isinstance(question, Decision):
            return question
        if question.hit is None:
            return enforced(self._engine.decide([question.request])[0])
        (charge,) = question.charges
        return question.hit(charge.key, charge.cost)

    def explain_request(self, request: Incoming) -> Explanation:
        """Say why each rule applies to a request, or does not, and what it would answer now; take nothing."""
        trace = self._rules.current.explain(request)
        asked = peeks(trace)
        return self._rules.explained(
            trace, None if asked is None else self._engine.decide([asked])[0]
        )

    def concurrency(self, key: str, limit: int) -> Slots:
        """At most `limit` holders of `key` at the same time."""
        return Slots(self._engine, key, limit, self._renewer, self._log)

    def close(self) -> None:
        """Close the engine and the rules if the limiter opened them. Slots still held are no longer renewed."""
        self._renewer.stop()
        self._rules.close()
        if self._registration is not None:
            self._registration.close()
        if self._region_program is not None:
            self._region_program.stop()
        if self._owns_engine:
            self._engine.close()
        else:
            finish(self._engine)
            if isinstance(shell := fallback_shell_of(self._engine), FallbackEngine):
                shell.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(
        self,
        engine: Any,
        clock: Clock | None,
        guards: Sequence[Guard],
        adaptive: Choices | None,
        failing: WhenStoreFails,
    ) -> tuple[Engine, bool]:
        opened = open_engine(
            engine, clock, self._log, guards=guards, adaptive=adaptive, failing=failing
        )
        self._renewer = Renewer(self._log)
        return opened

    def _bind_limits(self, limits: tuple[Limit, ...]) -> Hit:
        return bind_limits(self._engine, limits)

    def _key_limit(self, spec: Spec, hit: Hit) -> KeyLimit:
        at_once = not self._engine.blocking
        return KeyLimit(self._engine, spec, self._log, hit, at_once=at_once)

    def _keyed_limit(
        self, key: Callable[..., str], limit_of: Callable[[str], KeyLimit]
    ) -> KeyedLimit:
        return KeyedLimit(key, limit_of)


class KeyLimit(KeyLimitBase[Engine, Hit, Reservation]):
    """One key and its limit. Use it as a call, a context manager or a decorator.

    >>> igdb = Limiter().limit("igdb:api", "4/second", mode="immediate")
    >>> with igdb:
    ...     pass
    >>> igdb.stats()
    Stats(count=1, limit=4, window=1.0, remaining=3, algorithm='sliding_log')
    >>> igdb
    <KeyLimit 'igdb:api': 4 in 1 s by sliding_log, immediate>
    """

    _reservation = Reservation

    def acquire(self, cost: int = 1, timeout: float | None = None) -> Decision:
        """Take `cost` units, waiting for them if the mode is blocking (at most `timeout` seconds).

        Raises `RateLimitExceeded` when they are not available in time, or ever.
        """
        engine, spec, denied = self._engine, self._spec, None
        if self._plain if timeout is None else self._at_once and spec.may_hit(timeout):
            denied = self._hit(self._key, cost)
            if denied.answer[0]:
                return denied
        return run(
            spec.flow(spec.request(cost), timeout, engine.clock.now_us, denied), engine, self._log
        )

    def hit(self, cost: int = 1) -> Decision:
        """Take `cost` units if they fit. Never waits and never raises for a denial."""
        return self._hit(self._key, cost)

    def check(self, cost: int = 1) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return self._engine.decide([self._spec.request(cost, ChargeKind.PEEK)])[0]

    def stats(self) -> Stats:
        """How much is used and left, of the tightest limit if there are several."""
        spec = self._spec
        return spec.stats([self._engine.usage(spec.key, limit) for limit in spec.limits])

    def reset(self) -> None:
        """Forget what was used."""
        for limit in self._spec.limits:
            self._engine.reset(self._spec.key, limit)

    def __enter__(self) -> Decision:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Units are taken, not held, so there is nothing to give back."""

    async def __aenter__(self) -> Decision:
        return await self._acquire_from_loop()

    async def __aexit__(self, *_: object) -> None:
        """Units are taken, not held: nothing to give back."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make every call of `function` acquire a unit first."""
        if not callable(function):
            raise UsageError(f"a limit decorates a function, not {function!r:.80}")
        if is_async(function):
            return limited_async(function, lambda *_, **__: self._acquire_from_loop())
        return limited(function, lambda *_, **__: self.acquire())

    async def _acquire_from_loop(self) -> Decision:
        """Acquire a unit inside an event loop, without blocking other tasks."""
        engine, spec, denied = self._engine, self._spec, None
        if self._plain:
            denied = self._hit(self._key, 1)
            if denied.answer[0]:
                return denied
        steps = spec.flow(spec.request(1), None, engine.clock.now_us, denied)
        return await run_async(steps, Awaited(engine, in_threads=engine.blocking), self._log)
