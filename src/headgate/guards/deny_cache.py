"""The deny cache: a denial that is sure to hold is not asked for again.

When an engine denies a cost and says when a retry can pass, that cost cannot pass before, whatever other nodes do, unless
somebody gives units back or resets the key. So it is answered here until then, and an attacker's traffic
never reaches the store. The time is counted from before the question was sent, and is at most one second, so another
node's reset or refund is seen within that second; one's own is seen at once.

Only for algorithms whose denials hold: not for backoff and adaptive, where a denial changes something, nor for slots, which
may be let go at any moment. And only for questions of one limit: where several are asked together, the answer also tells what
the others have left, and the longest wait of all, which one denial does not.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from ..charge import ONE, Kind, require_key
from ..decision import Decision
from ..fork import remember

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..algorithms import Limit
    from ..charge import Request
    from ..clock import Clock
    from ..engines.base import AsyncEngine, AsyncHit, Engine, Hit, Page, Usage

HOLDING: Final = (FixedWindow, SlidingWindow, SlidingLog, TokenBucket)
MAX_AGE_US: Final = 1_000_000
MAX_KEYS: Final = 65_536
MAX_LIMITS: Final = 10_000


class Denials:
    """Denials of one limit, by key. Holds at most `MAX_KEYS`; forgetting one only costs a question."""

    __slots__ = ("_book", "_known", "_ticks", "retired")

    def __init__(self, book: DenialBook, clock: Clock) -> None:
        self._book = book
        self._known: dict[str, tuple[int, int, int, Decision]] = {}
        self._ticks = clock.ticks
        self.retired = False
        """The book does not know these any more: nothing may be added."""

    def recall(self, key: str, cost: int) -> Decision | None:
        """The denial that still holds for this cost, as it would be told now."""
        try:
            known = self._known.get(key)
        except TypeError:  # No text, then, and the engine would say so.
            require_key(key)
            raise
        if known is None:
            return None
        until_ns, sent_ns, denied_cost, decision = known
        now_ns = self._ticks()
        if now_ns >= until_ns:
            self._known.pop(key, None)
            return None
        if cost is not denied_cost and (cost != denied_cost or type(cost) is not int):
            return None  # A larger cost is denied too, but only the engine knows for how long.
        _, remaining, retry_after_us, reset_after_us, level = decision.answer
        passed_us = (now_ns - sent_ns) // 1000
        answer = (
            False,
            remaining,
            max(1, retry_after_us - passed_us),
            max(0, reset_after_us - passed_us),
            level,
        )
        context = decision.context._replace(source="cache", receipt=None)
        return Decision(key, decision.limited_by, answer, context)

    def remember(self, decision: Decision, cost: int, sent_ns: int, era: int) -> None:
        """Keep a denial for as long as it is sure to hold."""
        retry_after_us = decision.answer[2]
        if retry_after_us <= 0 or era != self._book.era or self.retired:
            return
        if len(self._known) >= MAX_KEYS:
            self._known.clear()
        until_ns = sent_ns + min(retry_after_us, MAX_AGE_US) * 1000
        self._known[decision.key] = (until_ns, sent_ns, cost, decision)

        if era != self._book.era or self.retired:  # Another thread gave units back just now.
            self._known.pop(decision.key, None)

    def forget(self, key: str) -> None:
        """Something has changed: ask again."""
        if self._known:
            self._known.pop(key, None)

    def clear(self) -> None:
        """Ask again for everything."""
        self._known.clear()


class DenialBook:
    """The denials of every limit, and which key a reservation belongs to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_limit: dict[tuple[Limit, str | None], Denials] = {}
        self._reserved: dict[str, list[str]] = {}
        self.era = 0
        """Ends whenever units are given back: a denial from an earlier one may not hold any more."""
        remember(self)

    def after_fork(self) -> None:
        """Called in a child: another thread may have held the lock."""
        self._lock = threading.Lock()

    def of(self, limit: Limit, rule: str | None) -> Denials:
        """The denials of one limit; with too many limits, those of all others are forgotten."""
        with self._lock:
            denials = self._by_limit.get((limit, rule))
            if denials is None:
                if len(self._by_limit) >= MAX_LIMITS:
                    self._retire()
                denials = self._by_limit[limit, rule] = Denials(self, self._clock)
            return denials

    def decided(self, request: Request, decision: Decision) -> None:
        """Note which keys have changed, and whose denials end when this reservation is settled."""
        for charge in request.charges:
            if charge.kind is not Kind.PEEK:
                self.forget(charge.key)
        if decision.token is not None:
            if len(self._reserved) >= MAX_KEYS:
                self._reserved.clear()
            self._reserved[decision.token] = [one.key for one in decision.rules]

    def settled(self, token: str) -> None:
        """A reservation may have given units back."""
        self.era += 1
        keys = self._reserved.pop(token, None)
        for denials in self._filled():
            if keys is None:
                denials.clear()
            else:
                for key in keys:
                    denials.forget(key)

    def renew(self, key: str) -> None:
        """Units were given back: ask again, and disbelieve denials that are still on their way."""
        self.era += 1
        self.forget(key)

    def forget(self, key: str) -> None:
        """A key was charged elsewhere."""
        for denials in self._filled():
            denials.forget(key)

    def _filled(self) -> list[Denials]:
        """Those with anything in them; a list, because other threads add to the book meanwhile."""
        return [denials for denials in list(self._by_limit.values()) if denials._known]

    def _retire(self) -> None:
        for denials in self._by_limit.values():
            denials.retired = True
            denials.clear()
        self._by_limit.clear()


class DenyCache:
    """An engine that remembers denials, around one that makes them."""

    def __init__(self, engine: Engine, book: DenialBook | None = None) -> None:
        self._engine = engine
        self._book = book or DenialBook(engine.clock)
        self._bound: dict[tuple[Limit, str | None], Hit] = {}
        self.clock = engine.clock
        self.blocking = engine.blocking

    @property
    def inner(self) -> Engine:
        """The engine that is asked."""
        return self._engine

    def scoped(self, namespace: str) -> DenyCache:
        """See `Engine.scoped`."""
        return DenyCache(self._engine.scoped(namespace))

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """See `Engine.bind`."""
        bound = self._bound.get((limit, rule))
        if bound is None:
            if len(self._bound) >= MAX_LIMITS:
                self._bound.clear()
            bound = self._bound[limit, rule] = self._bind(limit, rule)
        return bound

    def _bind(self, limit: Limit, rule: str | None) -> Hit:
        ask = self._engine.bind(limit, rule)
        if not isinstance(limit, HOLDING):
            return ask
        book, ticks = self._book, self.clock.ticks
        denials = book.of(limit, rule)

        def hit(key: str, cost: int) -> Decision:
            nonlocal denials
            known = denials.recall(key, cost)
            if known is not None:
                return known
            if denials.retired:
                denials = book.of(limit, rule)
            sent_ns, era = ticks(), book.era
            decision = ask(key, cost)
            if decision.answer[0]:
                denials.forget(key)
            else:
                denials.remember(decision, cost, sent_ns, era)
            return decision

        return hit

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """See `Engine.decide`."""
        if len(requests) == 1 and (plain := plain_charge(requests[0])) is not None:
            key, limit, cost, rule = plain
            return [self.bind(limit, rule)(key, cost)]
        decisions = self._engine.decide(requests)
        for request, decision in zip(requests, decisions, strict=True):
            self._book.decided(request, decision)
        return decisions

    def settle(self, token: str, actual: int) -> bool:
        """See `Engine.settle`."""
        try:
            return self._engine.settle(token, actual)
        finally:
            self._book.settled(token)

    def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""
        self._engine.leave_line(decision)
        self._book.renew(decision.key)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return self._engine.renew(key, limit, token, rule)

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        self._engine.release(key, limit, token, rule)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""
        return self._engine.usage(key, limit, rule)

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""
        self._engine.reset(key, limit, rule)
        self._book.renew(key)

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """See `Engine.list_keys`."""
        return self._engine.list_keys(prefix, cursor, limit)

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


class AsyncDenyCache:
    """`DenyCache`, awaited; what is known is answered without a turn of the loop."""

    def __init__(self, engine: AsyncEngine, book: DenialBook | None = None) -> None:
        self._engine = engine
        self._book = book or DenialBook(engine.clock)
        self._bound: dict[tuple[Limit, str | None], AsyncHit] = {}
        self.clock = engine.clock

    @property
    def inner(self) -> AsyncEngine:
        """The engine that is asked."""
        return self._engine

    def scoped(self, namespace: str) -> AsyncDenyCache:
        """See `Engine.scoped`."""
        return AsyncDenyCache(self._engine.scoped(namespace))

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """See `Engine.bind`."""
        bound = self._bound.get((limit, rule))
        if bound is None:
            if len(self._bound) >= MAX_LIMITS:
                self._bound.clear()
            bound = self._bound[limit, rule] = self._bind(limit, rule)
        return bound

    def _bind(self, limit: Limit, rule: str | None) -> AsyncHit:
        ask: Any = self._engine.bind(limit, rule)
        if not isinstance(limit, HOLDING):
            return ask  # type: ignore[no-any-return]
        book, ticks = self._book, self.clock.ticks
        denials = book.of(limit, rule)

        def note(decision: Decision, asked: tuple[int, int, int]) -> None:
            if not decision.answer[0]:
                denials.remember(decision, *asked)
            elif denials._known:
                denials.forget(decision.key)

        bind_one = getattr(self._engine, "bind_one", None)
        one = None if bind_one is None else bind_one(limit, rule, note)

        def hit(key: str, cost: int) -> Any:
            nonlocal denials
            known = denials.recall(key, cost) if denials._known else None
            if known is not None:
                return known
            if denials.retired:
                denials = book.of(limit, rule)
            asked = (cost, ticks(), book.era)
            if one is not None and cost is ONE:
                return one(key, asked)
            return _noted(ask(key, cost), note, asked)

        return hit

    async def decide(self, requests: Sequence[Request]) -> list[Decision]:
        """See `Engine.decide`."""
        if len(requests) == 1 and (plain := plain_charge(requests[0])) is not None:
            key, limit, cost, rule = plain
            decision = self.bind(limit, rule)(key, cost)
            return [decision if isinstance(decision, Decision) else await decision]
        decisions = await self._engine.decide(requests)
        for request, decision in zip(requests, decisions, strict=True):
            self._book.decided(request, decision)
        return decisions

    async def settle(self, token: str, actual: int) -> bool:
        """See `Engine.settle`."""
        try:
            return await self._engine.settle(token, actual)
        finally:
            self._book.settled(token)

    async def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""
        await self._engine.leave_line(decision)
        self._book.renew(decision.key)

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return await self._engine.renew(key, limit, token, rule)

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        await self._engine.release(key, limit, token, rule)

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""
        return await self._engine.usage(key, limit, rule)

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""
        await self._engine.reset(key, limit, rule)
        self._book.renew(key)

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> Page:
        """See `Engine.list_keys`."""
        return await self._engine.list_keys(prefix, cursor, limit)

    async def aclose(self) -> None:
        """See `Engine.close`."""
        await self._engine.aclose()


def _noted(answer: Any, note: Callable[[Decision, Any], None], asked: Any) -> Any:
    """The answer, of which a note is made before anybody sees it."""
    if isinstance(answer, Decision):
        note(answer, asked)
        return answer
    if not isinstance(answer, asyncio.Future):
        return _note_later(answer, note, asked)
    # Whoever waits is woken after this: callbacks are called in the order they came.
    answer.add_done_callback(
        lambda done: (
            None if done.cancelled() or done.exception() is not None else note(done.result(), asked)
        )
    )
    return answer


async def _note_later(
    answer: Awaitable[Decision], note: Callable[[Decision, Any], None], asked: Any
) -> Decision:
    decision = await answer
    note(decision, asked)
    return decision


def plain_charge(request: Request) -> tuple[str, Limit, int, str | None] | None:
    """`(key, limit, cost, rule)` of a request that `bind` can answer as well."""
    if request.wait_us or request.reserve_us or request.token or len(request.charges) != 1:
        return None
    (charge,) = request.charges
    if charge.kind is not Kind.TAKE or len(charge.limits) != 1:
        return None
    return charge.key, charge.limits[0], charge.cost, charge.rule
