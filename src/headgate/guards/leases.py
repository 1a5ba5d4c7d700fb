"""Leases: for limits with `consistency: leased`, a node takes units in chunks and answers from them.

Nearly all hits of a busy key are then answered without a round trip. `chunks.py` says how many units are taken and for
how long. Denials come from the store: a hit that does not fit into a chunk is sent to it.

**What it costs.** Units that a node holds are charged, so other nodes are denied them. Unspent units go back when the
chunk ends, when it is idle, when the rule gets another limit, when the key is reset, and when the limiter is closed. If
a node dies, its units stay charged like any others.

**What it can admit.** A chunk is charged before it is spent, and spent in the window that it was charged in. So a
window admits no more than its limit. A bucket may have refilled since the chunk was taken: any span admits at most its
bound plus the units that were held when it began, which is at most what refills during one lease.

Only hits are answered here: the store decides requests with several limits, waits in line and reservations.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from .. import _fork
from ..charge import ChargeSet, ReadyCharge
from ..charge_kind import ChargeKind
from ..decision import Decision
from ..engines.verbs import settle_each
from .base import AskInstead, Found, Guard, HitGuard
from .chunks import FEW_HITS, SWEEPS, LimitChunks, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..algorithms import Limit
    from ..clock import Clock
    from ..engines.verbs import Verb
    from .base import Chore
    from .chunks import Unspent

RETURN_US: Final = 1_000_000
"""How long after its end a chunk can still be given back."""
FORGETTING: Final = 32
"""Every so many sweeps, unused keys are forgotten: there may be many."""
MAX_LIMITS: Final = 4_096
MAX_BYTES: Final = 33_554_432
"""What is remembered of all keys may take up so much; the others are asked for one by one."""
MAX_NOTICED: Final = 65_536
TOGETHER: Final = 32
"""So many chunks are given back in one call; more would keep others waiting."""

T = TypeVar("T")


class LeaseTotals(NamedTuple):
    """Figures about the leases of a node."""

    chunks: int = 0
    """Chunks that it holds now and that have units left."""
    unspent: int = 0
    """Units left in them."""
    taken: int = 0
    """Units that were taken in chunks since it began."""
    returned: int = 0
    """Units of these that were not spent, and given back."""


class Leases(Guard):
    """Answers hits of leased limits from chunks. Safe under threads, in several loops, and in forked children."""

    has_chores: ClassVar[bool] = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._limits: dict[tuple[Limit, str | None], LimitChunks] = {}
        self._unsettled: deque[tuple[str, int]] = deque()
        """Chunks to give back: what names each, and what was spent of it."""
        self._unheard: deque[ChargeSet] = deque()
        """Requests for chunks that got no answer."""
        self._bytes = 0
        """At least what is remembered takes up: what was forgotten since the last sweep is still counted."""
        self._taken = self._returned = self._sweeps = 0
        self._noticed: dict[int, int] = {}
        """How often keys that are not watched were hit lately, by hashes: two that are equal only seem busier."""
        self._begin()
        _fork.reset_after_fork(self)

    def _begin(self) -> None:
        self._name = secrets.token_hex(8)
        self._numbers = count(1)

    def after_fork(self) -> None:
        """The units belong to the parent: the child must neither spend them nor give them back."""
        self._lock = threading.Lock()
        self._unsettled.clear()
        self._unheard.clear()
        self._begin()
        for chunks in self._limits.values():
            chunks.after_fork()

    def scoped(self, namespace: str) -> Leases:
        """See `Guard.scoped`."""
        return Leases(self._clock)

    def totals(self) -> LeaseTotals:
        """What is held now, and what was taken and given back since the beginning."""
        held = [chunks.held() for chunks in list(self._limits.values())]
        many, units = (sum(one) for one in zip((0, 0), *held, strict=True))
        return LeaseTotals(many, units, self._taken, self._returned)

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | None:
        """See `Guard.for_limit`."""
        if not limit.leased:
            return None
        chunks = self._chunks_of(limit, rule)

        def without_units(key: str, cost: int) -> Found:
            found = chunks.without_units(key, cost)
            return self._ask_for(chunks, key, cost, found) if type(found) is Wanted else found

        answer = chunks.answering(without_units)

        def before(key: str, cost: int) -> Found:
            return answer(key, cost)

        def after(decision: Decision, cost: int) -> Decision:
            nonlocal chunks, answer
            chunk = chunks.by_key.get(decision.key)
            if chunk is not None:
                return chunks.hit(chunk, decision, cost)
            if decision.answer[0]:
                if chunks.retired:
                    chunks = self._chunks_of(limit, rule)
                    answer = chunks.answering(without_units)
                self._notice(chunks, decision, cost)
            return decision

        return HitGuard(before, after, shortcut=chunks.answering)

    def _chunks_of(self, limit: Limit, rule: str | None) -> LimitChunks:
        with self._lock:
            known = self._limits.get((limit, rule))
            if known is not None:
                return known
            if rule is not None:  # It may have had another limit until now.
                for chunks in self._limits.values():
                    if chunks.rule == rule:
                        self._give_back(chunks.close_all())
            if len(self._limits) >= MAX_LIMITS:
                self._retire()
            made = self._limits[limit, rule] = LimitChunks(limit, rule, self._clock.ticks)
            return made

    def _retire(self) -> None:
        """Make room for other limits: those that hold nothing go first."""
        unused = [name for name, chunks in self._limits.items() if not chunks.by_key]
        for name in unused or list(self._limits):
            self._give_back(self._limits.pop(name).retire())

    def _ask_for(self, chunks: LimitChunks, key: str, cost: int, wanted: Wanted) -> AskInstead:
        """How to get a chunk, and this cost out of it."""
        if wanted.over is not None:
            self._give_back([wanted.over])
        charge = ReadyCharge(key, (chunks.limit,), wanted.size, ChargeKind.TAKE, chunks.rule)
        name = self._name
        token = f"{name}{next(self._numbers):x}"
        request = ChargeSet((charge,), 0, chunks.length_us + RETURN_US, token)

        def answered(decision: Decision) -> Decision | None:
            if decision.context.source != "engine":
                return self._without_store(chunks, wanted, cost, decision)
            if not decision:
                chunks.not_granted(wanted, decision)
                return None
            if name != self._name:  # It is the parent's: this is a child that was forked meanwhile.
                return None
            self._taken += wanted.size
            over = chunks.granted(wanted, cost, decision)
            if over is not None and name == self._name:
                self._give_back([over])
            return chunks.told(decision, wanted.size, cost)

        def failed() -> None:
            chunks.not_granted(wanted, None)
            if name == self._name:
                self._unheard.append(request)

        return AskInstead(request, answered, failed, ticket=cost)

    def _without_store(
        self, chunks: LimitChunks, wanted: Wanted, cost: int, decision: Decision
    ) -> Decision | None:
        """A fallback has answered for the store. No chunk was taken; if it was too much, ask for the cost alone."""
        chunks.not_granted(wanted, None)
        if decision.context.source == "closed":
            return decision
        if not decision:
            return None
        if decision.token is not None:
            self._unsettled.append((decision.token, cost))
        told = chunks.told(decision, wanted.size, cost)
        context = decision.context._replace(token=None)
        return Decision(told.key, told.limited_by, told.answer, context)

    def _notice(self, chunks: LimitChunks, decision: Decision, cost: int) -> None:
        """Count the hits of a key that is not watched yet. Most keys are quiet, and a number is all they take up."""
        now_ns = self._clock.ticks()
        if now_ns >= chunks.noticing_until_ns:
            chunks.notice_anew(now_ns)
        if len(self._noticed) >= MAX_NOTICED:
            self._noticed = {}
        name = hash(decision.key) ^ chunks.noticed_as
        self._noticed[name] = hits = self._noticed.get(name, 0) + 1
        if hits >= FEW_HITS and type(cost) is int and cost > 0:
            self._watch(chunks, decision, hits * cost)

    def _watch(self, chunks: LimitChunks, decision: Decision, used: int) -> None:
        """Watch from now on how much a key asks for, if there is room."""
        if self._bytes > MAX_BYTES:
            self.sweep()
        if self._bytes <= MAX_BYTES:
            self._bytes += chunks.watch(decision.key, used, decision.answer[1])

    def sweep(self) -> None:
        """Give back what has ended or is idle; now and then, forget unused keys."""
        self._sweeps += 1
        for chunks in list(self._limits.values()):
            self._give_back(chunks.sweep())
        if self._bytes > MAX_BYTES or not self._sweeps % FORGETTING:
            for chunks in list(self._limits.values()):
                chunks.forget_idle()
            self._bytes = sum(chunks.size() for chunks in list(self._limits.values()))

    def _give_back(self, unspent: Iterable[Unspent]) -> None:
        for token, spent, left in unspent:
            self._returned += left
            self._unsettled.append((token, spent))

    def resetting(self, key: str) -> None:
        """See `Guard.resetting`."""
        for chunks in list(self._limits.values()):
            self._give_back(chunks.close(key))

    def units_returned(self, key: str) -> None:
        """See `Guard.units_returned`; a chunk that came while a reset was on its way goes, too."""
        self.resetting(key)

    def chore_pause(self) -> float | None:
        """See `Guard.chore_pause`."""
        if self._unsettled or self._unheard:
            return 0
        used = [chunks.length_us for chunks in list(self._limits.values()) if chunks.by_key]
        return min(used) / SWEEPS / 1_000_000 if used else None

    def chores(self) -> list[Chore]:
        """See `Guard.chores`."""
        self.sweep()
        return self._due()

    def last_chores(self) -> list[Chore]:
        """See `Guard.last_chores`."""
        for chunks in list(self._limits.values()):
            self._give_back(chunks.close_all())
        return self._due()

    def _due(self) -> list[Chore]:
        unsettled = list(_drained(self._unsettled))
        due: list[Chore] = [
            partial(settle_each, settlements=unsettled[place : place + TOGETHER])
            for place in range(0, len(unsettled), TOGETHER)
        ]
        return due + [partial(_withdraw, request=one) for one in _drained(self._unheard)]


def _withdraw(engine: Any, request: ChargeSet) -> Verb[None]:
    yield engine.withdraw(request)


def _drained(queue: deque[T]) -> Iterator[T]:
    with suppress(IndexError):
        while True:
            yield queue.popleft()
