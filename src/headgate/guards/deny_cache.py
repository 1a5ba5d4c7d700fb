"""The deny cache: repeats a denial for as long as it is certain to hold.

When an engine denies a cost and says when a retry can pass, that cost cannot pass before, whatever other nodes do,
unless units are given back or the key is reset. So the guard answers it until then, and an attacker's traffic never
reaches the store. The time runs from before the request was sent, and is at most one second, so another node's reset or
refund takes effect within that second; this node's own takes effect at once. It ends a tenth early, because this node's
clock may be slower than the store's.

A request that does not fit even into an unused limit (a limit of 0, a cost above the limit) is always denied, without
asking the engine. The remaining units are not known then, and reported as 0.

It works only for algorithms whose denials hold: not for backoff, where a denial changes the state, nor for slots, which
may be released at any time. Denials of an adaptive limit hold while a window or a bucket decides; each variant has its
own. And it works only for requests with one limit: with several, the answer also depends on the other limits, which
a cached denial does not know.

It gives way to leases, which may have units of a key that the store has none left of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..algorithms import FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from ..charge import ONE
from .base import Found, Guard, HitGuard
from .denials import DenialBook
from .never import capacity, certain_denial, denied_for_ever

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..clock import Clock
    from ..decision import Decision
    from ..engines.base import AsyncHit, HookedHit
    from .base import QuickHit
    from .denials import Denials

HOLDING: Final = frozenset(
    one.name for one in (FixedWindow, SlidingWindow, SlidingLog, TokenBucket)
)
"""Algorithms whose denials hold."""


class DenyCache(Guard):
    """Caches denials; with `remembers=False` it only denies what can never fit."""

    def __init__(self, clock: Clock, *, remembers: bool = True) -> None:
        self._clock = clock
        self._remembers = remembers
        self._book = DenialBook(clock)

    def scoped(self, namespace: str) -> DenyCache:
        """See `Guard.scoped`."""
        return DenyCache(self._clock, remembers=self._remembers)

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard:
        """See `Guard.for_limit`."""
        if self._remembers and limit.decider in HOLDING:
            return self._with_memory(limit, rule)
        most = capacity(limit)

        def before(key: str, cost: int) -> Decision | None:
            if type(cost) is int and cost > most:
                return denied_for_ever(key, limit, cost, rule)
            return None

        return HitGuard(before, gives_way=True)

    def _with_memory(self, limit: Limit, rule: str | None) -> HitGuard:
        book, ticks, most = self._book, self._clock.ticks, capacity(limit)
        denials = book.of(limit, rule)

        def before(key: str, cost: int) -> Found:
            nonlocal denials
            if denials._known:
                known = denials.recall(key, cost, limit)
                if known is not None:
                    return known
            if type(cost) is int and cost > most:
                return denied_for_ever(key, limit, cost, rule)
            if denials.retired:
                denials = book.of(limit, rule)
            return cost, ticks(), book.era

        def after(decision: Decision, ticket: tuple[int, int, int]) -> Decision:
            if not decision.answer[0]:
                denials.remember(decision, *ticket)
            elif denials._known:
                denials.forget(decision.key)
            return decision

        def may_skip() -> bool:
            return not denials._known

        quick = self._quick_hit(denials, most)
        return HitGuard(before, after, may_skip=may_skip, gives_way=True, quick_hit=quick)

    def _quick_hit(self, denials: Denials, most: int) -> QuickHit:
        """See `HitGuard.quick_hit`: while no denial is known, a hit only needs its ticket.

        Once these denials are retired, all hits go the longer way.
        """
        book, ticks, one = self._book, self._clock.ticks, ONE if most else None

        def quick_hit(ask: HookedHit, hit: AsyncHit) -> AsyncHit:
            def quick(key: str, cost: int) -> Any:
                if cost is one and not (denials._known or denials.retired):
                    return ask(key, cost, (cost, ticks(), book.era))
                return hit(key, cost)

            return quick

        return quick_hit

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        denial = certain_denial(request)
        return request if denial is None else denial

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """See `Guard.after`."""
        self._book.decided(request, decision)
        return decision

    def units_returned(self, key: str) -> None:
        """See `Guard.units_returned`."""
        self._book.renew(key)

    def settled(self, token: str) -> None:
        """See `Guard.settled`."""
        self._book.settled(token)
