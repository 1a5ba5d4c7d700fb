"""AsyncLimiter: `Limiter` with the same names, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import flow
from .charge import Charge, Kind, Request, request_of, require_steps, require_text, shown
from .decision import Decision
from .decorator import is_async, limited_async
from .driver import run_async
from .errors import EngineError, HeadgateError, UsageError
from .held import (
    NOT_RELEASED,
    NOT_SETTLED,
    RESERVATION_TTL,
    SLOT_TTL,
    ReservationSpec,
    SlotSpec,
    SlotsSpec,
)
from .opening import is_client, logger_of, open_async_engine, url_from_env
from .rate import RateLike, limits_of
from .ruled import (
    UNMATCHED,
    Explanation,
    OnError,
    OnFailure,
    Question,
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
    from .engines.base import AsyncEngine, AsyncHit, Engine
    from .rules.request import Request as Incoming

P = ParamSpec("P")
A = TypeVar("A", bound=Awaitable[Any] | AsyncIterator[Any])

MAX_BOUND = 10_000


class AsyncLimiter:
    """Decides who may go on, for asyncio. See `Limiter`; every call that may wait is awaited."""

    def __init__(
        self,
        engine: str | Engine | AsyncEngine | Any = "memory://",
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
        opened = open_async_engine(engine, clock, self._log)
        self._owns_engine = isinstance(engine, str) or is_client(engine)
        self._engine = opened.scoped(namespace) if namespace else opened
        self._bound: dict[str | None, dict[RateLike, AsyncHit]] = {}
        self._ruled: Ruled[AsyncHit] = Ruled(rules, on_error, self._engine.bind, on_failure)
        self._at_once: Engine | None = getattr(self._engine, "at_once", None)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """A limiter on the engine that `HEADGATE_ENGINE`, else `REDIS_URL`, names; else on a local Redis."""
        return cls(url_from_env(environ), **settings)

    @property
    def engine(self) -> AsyncEngine:
        """Where the states live."""
        return self._engine

    async def hit(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Take `cost` units for `key` if they fit. Never waits for a slot; a denial is a value."""
        try:
            bound = self._bound[algorithm][rate]
        except (KeyError, TypeError):
            bound = self._bind(rate, algorithm)
        answer: Any = bound(key, cost)
        if self._at_once is None and not isinstance(answer, Decision):
            answer = await answer
        decision: Decision = answer
        return decision

    async def check(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return await self.decide([Charge(key, rate, cost, algorithm, kind=Kind.PEEK)])

    async def decide(self, charges: Iterable[Charge]) -> Decision:
        """Take all charges together, or none of them."""
        return (await self._engine.decide([request_of(charges)]))[0]

    async def decide_request(self, request: Incoming) -> Decision:
        """Decide a request by all rules that are about it. See `Limiter.decide_request`."""
        decision = self.decide_request_nowait(request)
        return decision if isinstance(decision, Decision) else await decision

    def decide_request_nowait(self, request: Incoming) -> Decision | Awaitable[Decision]:
        """`decide_request` for those who count coroutines: the decision, or what to await for it if that takes I/O."""
        question = self._ruled.question(request)
        if question is None:
            return UNMATCHED
        try:
            if question.hit is not None:
                (charge,) = question.charges
                decision = question.hit(charge.key, charge.cost)
                if isinstance(decision, Decision):
                    return decision
                return self._answered(question, decision)
            if self._at_once is not None:
                return enforced(self._at_once.decide([question.request])[0])
        except EngineError as error:
            return self._ruled.failed(question, error)
        return self._answered(question, self._first(question))

    async def _answered(
        self, question: Question[AsyncHit], decision: Awaitable[Decision]
    ) -> Decision:
        try:
            return enforced(await decision)
        except EngineError as error:
            return self._ruled.failed(question, error)

    async def _first(self, question: Question[AsyncHit]) -> Decision:
        return (await self._engine.decide([question.request]))[0]

    async def explain_request(self, request: Incoming) -> Explanation:
        """Say why each rule applies, and what it would answer now. See `Limiter.explain_request`."""
        trace = self._ruled.current.explain(request)
        asked = peeks(trace)
        return explained(trace, None if asked is None else (await self._engine.decide([asked]))[0])

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
    ) -> AsyncKeyLimit:
        """One key with its limit, to be used again and again: `limiter.limit("api", "4/second")`."""
        limits = resolve_limits(rate, limit, window, burst, algorithm)
        return AsyncKeyLimit(self._engine, Spec(key, limits, mode), self._log)

    def concurrency(self, key: str, limit: int) -> AsyncSlots:
        """At most `limit` holders of `key` at the same time."""
        return AsyncSlots(self._engine, key, limit, self._log)

    async def aclose(self) -> None:
        """Let go of the engine and the rules, if the limiter opened them."""
        if self._ruled.owned:  # A source may have to be told good-bye.
            await asyncio.to_thread(self._ruled.close)
        if self._owns_engine:
            await self._engine.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _bind(self, rate: RateLike, algorithm: str | None) -> AsyncHit:
        """Look a rate up the slow way, and remember how to count it."""
        limits = limits_of(rate, algorithm)
        require_steps(len(limits))
        bound = self._engine.bind(limits[0]) if len(limits) == 1 else self._bind_all(limits)
        known = self._bound.setdefault(algorithm, {})
        if len(known) >= MAX_BOUND:
            known.clear()
        known[rate] = bound
        return bound

    def _bind_all(self, limits: tuple[Limit, ...]) -> AsyncHit:
        at_once = self._at_once

        def request(key: str, cost: int) -> Request:
            return Request(tuple(Charge(key, limit, cost) for limit in limits))

        async def hit(key: str, cost: int) -> Decision:
            return (await self._engine.decide([request(key, cost)]))[0]

        if at_once is None:
            return hit
        return lambda key, cost: at_once.decide([request(key, cost)])[0]


class AsyncKeyLimit:
    """One key and its limit. Use it as a call, an async context manager or a decorator."""

    def __init__(self, engine: AsyncEngine, spec: Spec, logger: logging.Logger) -> None:
        self._engine = engine
        self._spec = spec
        self._log = logger

    @property
    def key(self) -> str:
        """Whom the limit is for."""
        return self._spec.key

    async def acquire(self, cost: int = 1, timeout: float | None = None) -> Decision:  # noqa: ASYNC109
        """Take `cost` units, waiting for them if the mode is blocking (at most `timeout` seconds).

        Raises `RateLimitExceeded` when they cannot be had in time, or ever.
        """
        steps = self._spec.flow(self._spec.request(cost), timeout, self._engine.clock.now_us)
        return await run_async(steps, self._engine, self._log)

    async def hit(self, cost: int = 1) -> Decision:
        """Take `cost` units if they fit. Never waits for a slot; a denial is a value."""
        return (await self._engine.decide([self._spec.request(cost)]))[0]

    async def check(self, cost: int = 1) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return (await self._engine.decide([self._spec.request(cost, Kind.PEEK)]))[0]

    async def stats(self) -> Stats:
        """How much is used and left, of the tightest limit if there are several."""
        spec = self._spec
        return spec.stats([await self._engine.usage(spec.key, limit) for limit in spec.limits])

    async def reset(self) -> None:
        """Forget what was used."""
        for limit in self._spec.limits:
            await self._engine.reset(self._spec.key, limit)

    def reserve(
        self, cost: int, *, timeout: float | None = None, ttl: float = RESERVATION_TTL
    ) -> AsyncReservation:
        """Charge an estimate now and settle the real cost later: `async with limit.reserve(500)`."""
        return AsyncReservation(self._engine, self._spec, cost, timeout, ttl, logger=self._log)

    async def __aenter__(self) -> Decision:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        """Units are taken, not held: nothing to give back."""

    def __call__(self, function: Callable[P, A]) -> Callable[P, A]:
        """Make every call of the function acquire a unit first, or every async generator it makes."""
        if not is_async(function):
            raise UsageError(f"{function!r} is not a coroutine function; limit it with a Limiter")
        return limited_async(function, self.acquire)


class AsyncReservation(ReservationSpec):
    """A cost that is charged now and settled later. See `Reservation`."""

    def __init__(
        self,
        engine: AsyncEngine,
        spec: Spec,
        cost: int,
        timeout: float | None,
        ttl: float,
        *,
        logger: logging.Logger,
    ) -> None:
        super().__init__(spec, cost, timeout, ttl)
        self._engine = engine
        self._log = logger

    async def acquire(self) -> Self:
        """Charge the estimate, waiting for it if the mode is blocking."""
        steps = self._steps(self._engine.clock.now_us)
        self.decision = await run_async(steps, self._engine, self._log)
        return self

    async def settle(self, actual: int) -> bool:
        """Tell the real cost. See `Reservation.settle`."""
        with self._settling(actual) as token:
            return await self._engine.settle(token, actual)

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._settled:
            return
        try:
            await self.settle(self._cost_on_leaving(failed=kind is not None))
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, shown(self._spec.key), error)


class AsyncSlots:
    """At most so many holders of a key at the same time. See `Slots`."""

    def __init__(self, engine: AsyncEngine, key: str, limit: int, logger: logging.Logger) -> None:
        self._engine = engine
        self._spec = SlotsSpec(key, limit)
        self._log = logger

    def slot(self, *, ttl: float = SLOT_TTL, timeout: float | None = 0, cost: int = 1) -> AsyncSlot:
        """A slot to hold with `async with`. Raises `RateLimitExceeded` when none is free in time."""
        return AsyncSlot(self._engine, self._spec.request(cost, ttl), timeout, self._log)

    async def check(self) -> Decision:
        """Say whether a slot is free."""
        return (await self._engine.decide([self._spec.peek()]))[0]

    async def stats(self) -> Stats:
        """How many slots are held and free."""
        used, answer = await self._engine.usage(self._spec.key, self._spec.limit)
        return Stats(used, self._spec.limit.limit, 0.0, answer[1])

    async def reset(self) -> None:
        """Free all slots, whoever holds them."""
        await self._engine.reset(self._spec.key, self._spec.limit)


class AsyncSlot(SlotSpec):
    """A slot, held inside an `async with` block and renewed until the block ends."""

    def __init__(
        self,
        engine: AsyncEngine,
        request: Request,
        timeout: float | None,
        logger: logging.Logger,
    ) -> None:
        super().__init__(request, timeout)
        self._engine = engine
        self._log = logger
        self._renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        request = self._begin()
        try:
            steps = flow.hold(request, self._timeout, self._engine.clock.now_us)
            await run_async(steps, self._engine, self._log)
        except BaseException:
            self._end()
            raise
        self._renewal = asyncio.create_task(self._keep_renewing())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            await self._engine.release(self.key, self.limit, self.token)
        except HeadgateError as error:
            self._log.warning(NOT_RELEASED, shown(self.key), error)
        finally:
            self._end()

    async def _keep_renewing(self) -> None:
        while not self.lost:
            await asyncio.sleep(self.renew_every)
            try:
                self.lost = not await self._engine.renew(self.key, self.limit, self.token)
            except HeadgateError as error:  # The next renewal may come in time.
                self._log.warning("a slot of %r could not be renewed: %s", shown(self.key), error)
        self._log.warning("a slot of %r expired while it was held", shown(self.key))
