"""AsyncLimiter: the asyncio version of `Limiter`, with the same methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ._decorator import is_async, limited_async
from ._drivers import run_async
from ._keyed_limit import AsyncKeyedLimit
from ._limiter_base import KeyLimitBase, LimiterBase
from .charge import Charge, request_of
from .charge_kind import ChargeKind
from .decision import Decision
from .engines.base import AsyncEngine, AsyncHit
from .engines.binding import bind_limits_async
from .errors import UsageError
from .guards.fallback_shell import AsyncFallbackEngine
from .guards.stack import fallback_shell_of, finish_async
from .held_async import AsyncReservation, AsyncSlots
from .opening import open_async_engine
from .rule_decisions import Explanation, enforced, peeks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from ._spec import Spec, Stats
    from .adaptive.guard import Choices
    from .algorithms import Limit
    from .charge import ChargeSet
    from .clock import Clock
    from .engines.base import Engine
    from .guards.base import Guard
    from .guards.stack import WhenStoreFails
    from .rate import RateLike
    from .rules.request import Request as Incoming

P = ParamSpec("P")
A = TypeVar("A", bound=Awaitable[Any] | AsyncIterator[Any])


class AsyncLimiter(
    LimiterBase[AsyncEngine, AsyncHit, "AsyncKeyLimit", AsyncKeyedLimit, AsyncReservation]
):
    """Decides whether requests may proceed, for asyncio. See `Limiter`; every call that may wait is awaited."""

    _reservation = AsyncReservation

    async def hit(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Take `cost` units for `key` if they fit. Never waits for a slot; a denial is a value."""
        try:
            bound = self._bound[algorithm][rate]
        except (KeyError, TypeError):
            bound = self._bind(rate, algorithm)
        answer: Any = bound(key, cost)
        if type(answer) is not Decision:
            answer = await answer
        decision: Decision = answer
        return decision

    async def check(
        self, key: str, rate: RateLike, cost: int = 1, algorithm: str | None = None
    ) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return await self.decide([Charge(key, rate, cost, algorithm, kind=ChargeKind.PEEK)])

    async def decide(self, charges: Iterable[Charge]) -> Decision:
        """Take all charges together, or none of them."""
        return (await self._engine.decide([request_of(charges)]))[0]

    async def decide_request(self, request: Incoming) -> Decision:
        """Decide a request by all rules that match it. See `Limiter.decide_request`."""
        decision = self.decide_request_nowait(request)
        return decision if isinstance(decision, Decision) else await decision

    def decide_request_nowait(self, request: Incoming) -> Decision | Awaitable[Decision]:
        """`decide_request` without a coroutine: the decision, or an awaitable of it if that takes I/O."""
        question = self._rules.question(request)
        if isinstance(question, Decision):
            return question
        if question.hit is not None:
            (charge,) = question.charges
            return question.hit(charge.key, charge.cost)
        if self._nowait is not None:
            return enforced(self._nowait.decide([question.request])[0])
        return self._enforced(question.request)

    async def _enforced(self, request: ChargeSet) -> Decision:
        return enforced((await self._engine.decide([request]))[0])

    async def explain_request(self, request: Incoming) -> Explanation:
        """Say why each rule applies, and what it would answer now. See `Limiter.explain_request`."""
        trace = self._rules.current.explain(request)
        asked = peeks(trace)
        return self._rules.explained(
            trace, None if asked is None else (await self._engine.decide([asked]))[0]
        )

    def concurrency(self, key: str, limit: int) -> AsyncSlots:
        """At most `limit` holders of `key` at the same time."""
        return AsyncSlots(self._engine, key, limit, self._log)

    async def aclose(self) -> None:
        """Close the engine and the rules if the limiter opened them."""
        if self._rules.owned:  # A source may need to end its session.
            await asyncio.to_thread(self._rules.close)
        if self._registration is not None and self._registration.has_begun:
            await asyncio.to_thread(self._registration.close)
        if self._region_program is not None:
            await asyncio.to_thread(self._region_program.stop)
        if self._owns_engine:
            await self._engine.aclose()
        else:
            await finish_async(self._engine)
            if isinstance(shell := fallback_shell_of(self._engine), AsyncFallbackEngine):
                await shell.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _open(
        self,
        engine: Any,
        clock: Clock | None,
        guards: Sequence[Guard],
        adaptive: Choices | None,
        failing: WhenStoreFails,
    ) -> tuple[AsyncEngine, bool]:
        return open_async_engine(
            engine, clock, self._log, guards=guards, adaptive=adaptive, failing=failing
        )

    @cached_property
    def _nowait(self) -> Engine | None:
        return self._engine.nowait

    def _bind_limits(self, limits: tuple[Limit, ...]) -> AsyncHit:
        return bind_limits_async(self._engine, limits)

    def _key_limit(self, spec: Spec, hit: AsyncHit) -> AsyncKeyLimit:
        at_once = self._engine.nowait is not None
        return AsyncKeyLimit(self._engine, spec, self._log, hit, at_once=at_once)

    def _keyed_limit(
        self, key: Callable[..., str], limit_of: Callable[[str], AsyncKeyLimit]
    ) -> AsyncKeyedLimit:
        return AsyncKeyedLimit(key, limit_of)


class AsyncKeyLimit(KeyLimitBase[AsyncEngine, AsyncHit, AsyncReservation]):
    """One key and its limit. Use it as a call, an async context manager or a decorator."""

    _reservation = AsyncReservation

    async def acquire(self, cost: int = 1, timeout: float | None = None) -> Decision:  # noqa: ASYNC109
        """Take `cost` units, waiting for them if the mode is blocking (at most `timeout` seconds).

        Raises `RateLimitExceeded` when they are not available in time, or ever.
        """
        spec, denied = self._spec, None
        if self._plain if timeout is None else self._at_once and spec.may_hit(timeout):
            answer: Any = self._hit(self._key, cost)
            if answer.answer[0]:
                decision: Decision = answer
                return decision
            denied = answer
        steps = spec.flow(spec.request(cost), timeout, self._engine.clock.now_us, denied)
        return await run_async(steps, self._engine, self._log)

    async def hit(self, cost: int = 1) -> Decision:
        """Take `cost` units if they fit. Never waits for a slot; a denial is a value."""
        answer: Any = self._hit(self._key, cost)
        if not self._at_once and type(answer) is not Decision:
            answer = await answer
        decision: Decision = answer
        return decision

    async def check(self, cost: int = 1) -> Decision:
        """Say what `hit` would answer, and take nothing."""
        return (await self._engine.decide([self._spec.request(cost, ChargeKind.PEEK)]))[0]

    async def stats(self) -> Stats:
        """How much is used and left, of the tightest limit if there are several."""
        spec = self._spec
        return spec.stats([await self._engine.usage(spec.key, limit) for limit in spec.limits])

    async def reset(self) -> None:
        """Forget what was used."""
        for limit in self._spec.limits:
            await self._engine.reset(self._spec.key, limit)

    async def __aenter__(self) -> Decision:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        """Units are taken, not held: nothing to give back."""

    def __call__(self, function: Callable[P, A]) -> Callable[P, A]:
        """Make every call of the function acquire a unit first, or every async generator it makes."""
        if not is_async(function):
            raise UsageError(f"{function!r} is not a coroutine function; limit it with a Limiter")
        return limited_async(function, lambda *_, **__: self.acquire())
