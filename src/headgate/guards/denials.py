"""The contents of the deny cache: denials by limit and key, and the keys that a reservation may give units back to.

Memory is bounded, however many limits and keys are denied and however long the keys are: there is one bound for the
denials of all limits.
"""

from __future__ import annotations

import threading
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from .._fork import reset_after_fork
from ..algorithms import Adaptive
from ..charge import require_key
from ..charge_kind import ChargeKind
from ..clock import SURE_NS_PER_US
from ..decision import Context, Decision

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..clock import Clock

MAX_AGE_US: Final = 1_000_000
MAX_KEYS: Final = 65_536
MAX_BYTES: Final = 33_554_432
"""Upper bound for all denials; half as much for reservations. Dropping either only costs round trips."""
ENTRY_BYTES: Final = 448
"""Memory that a denial takes besides its key."""
MAX_LIMITS: Final = 4_096


class Denials:
    """Denials of one limit, by key. Variants of an adaptive limit share them, because they count the same units."""

    __slots__ = ("_book", "_known", "_ticks", "retired")

    def __init__(self, book: DenialBook, clock: Clock) -> None:
        self._book = book
        self._known: dict[str, tuple[int, int, int, Decision]] = {}
        self._ticks = clock.ticks
        self.retired = False
        """Set once the book has dropped this object: nothing may be added any more."""

    def recall(self, key: str, cost: int, limit: Limit) -> Decision | None:
        """The denial that still holds for this cost and limit, with its times counted from now."""
        try:
            known = self._known.get(key)
        except TypeError:  # The key is not hashable, so it is not text.
            require_key(key)
            raise
        if known is None:
            return None
        until_ns, sent_ns, denied_cost, decision = known
        now_ns = self._ticks()
        if not sent_ns <= now_ns < until_ns:  # Expired, or a test has set its clock back.
            self._known.pop(key, None)
            return None
        if cost is not denied_cost and (cost != denied_cost or type(cost) is not int):
            return None  # A larger cost is denied too, but only the engine knows until when.
        if decision.limited_by is not limit and decision.limited_by != limit:
            return None
        _, remaining, retry_after_us, reset_after_us, level = decision.answer
        passed_us = (now_ns - sent_ns) // 1000
        answer = (
            False,
            remaining,
            max(1, retry_after_us - passed_us),
            max(0, reset_after_us - passed_us),
            level,
        )
        context = Context("cache", *decision.context[1:5])  # The receipt is left out.
        return Decision(key, decision.limited_by, answer, context)

    def remember(self, decision: Decision, cost: int, sent_ns: int, era: int) -> None:
        """Keep a denial for as long as it certainly holds."""
        retry_after_us = decision.answer[2]
        if (
            retry_after_us <= 0
            or decision.context.degraded
            or era != self._book.era
            or self.retired
        ):
            return
        self._book.make_room(decision.key)
        until_ns = sent_ns + min(retry_after_us, MAX_AGE_US) * SURE_NS_PER_US
        self._known[decision.key] = (until_ns, sent_ns, cost, decision)

        if era != self._book.era or self.retired:  # Another thread has just given units back.
            self._known.pop(decision.key, None)

    def forget(self, key: str) -> None:
        """Drop the denial of a key whose state has changed."""
        if self._known:
            self._known.pop(key, None)

    def clear(self) -> None:
        """Drop all denials."""
        self._known.clear()

    def sweep(self, now_ns: int) -> tuple[int, int]:
        """Drop expired denials; returns how many are left, and their size in bytes."""
        count = size = 0
        for key, (until_ns, *_) in list(self._known.items()):
            if now_ns >= until_ns:
                self._known.pop(key, None)
            else:
                count += 1
                size += ENTRY_BYTES + getsizeof(key)
        return count, size


class DenialBook:
    """The denials of every limit, and the keys of open reservations."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_limit: dict[tuple[Limit | str, str | None], Denials] = {}
        self._count = self._size = 0
        """Upper bounds: denials dropped since the last sweep are still counted."""
        self._reserved: dict[str, list[str]] = {}
        self._reserved_size = 0
        self.era = 0
        """Increases whenever units are given back: a denial from an earlier era may no longer hold."""
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Called in a child process: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def of(self, limit: Limit, rule: str | None) -> Denials:
        """The denials of one limit. When there are too many limits, all others are dropped."""
        counted = limit.identity if isinstance(limit, Adaptive) else limit
        with self._lock:
            denials = self._by_limit.get((counted, rule))
            if denials is None:
                if len(self._by_limit) >= MAX_LIMITS:
                    self._retire()
                denials = self._by_limit[counted, rule] = Denials(self, self._clock)
            return denials

    def make_room(self, key: str) -> None:
        """Make room for one more denial: if there are too many, drop the expired ones, and if need be all."""
        with self._lock:
            self._count += 1
            self._size += ENTRY_BYTES + getsizeof(key)
            if self._count <= MAX_KEYS and self._size <= MAX_BYTES:
                return
            now_ns, kept = self._clock.ticks(), self._filled()
            left = [denials.sweep(now_ns) for denials in kept]
            self._count, self._size = (sum(one) for one in zip((0, 0), *left, strict=True))
            if self._count > MAX_KEYS // 2 or self._size > MAX_BYTES // 2:
                for denials in kept:
                    denials.clear()
                self._count = self._size = 0

    def decided(self, request: ChargeSet, decision: Decision) -> None:
        """Drop denials of keys that have been charged, and remember the keys of a reservation."""
        for charge in request.charges:
            if charge.kind is not ChargeKind.PEEK:
                self.forget(charge.key)
        if decision.token is not None:
            keys = [one.key for one in decision.rules]
            self._reserved_size += sum(map(getsizeof, keys), ENTRY_BYTES)
            if len(self._reserved) >= MAX_KEYS or self._reserved_size > MAX_BYTES // 2:
                self._reserved.clear()
                self._reserved_size = 0
            self._reserved[decision.token] = keys

    def settled(self, token: str) -> None:
        """Drop denials of keys to which a settled reservation may have given units back."""
        self.era += 1
        keys = self._reserved.pop(token, None)
        for denials in self._filled():
            if keys is None:
                denials.clear()
            else:
                for key in keys:
                    denials.forget(key)

    def renew(self, key: str) -> None:
        """Drop the denial of a key that got units back, and ignore denials still in flight."""
        self.era += 1
        self.forget(key)

    def forget(self, key: str) -> None:
        """Drop all denials of a key."""
        for denials in self._filled():
            denials.forget(key)

    def _filled(self) -> list[Denials]:
        """Those that are not empty; a list, because other threads may add to the book meanwhile."""
        return [denials for denials in list(self._by_limit.values()) if denials._known]

    def _retire(self) -> None:
        for denials in self._by_limit.values():
            denials.retired = True
            denials.clear()
        self._by_limit.clear()
