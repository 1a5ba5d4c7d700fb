"""The chunks of one limit on one node: units of single keys, taken in advance, and how many to take next.

A **chunk** is a number of units that the store has already charged, and from which hits are answered here until a
deadline. It is a reservation in the store, so unspent units are given back by settling it, exactly as if they had never
been taken.

**How long.** A twentieth of the window, at most three seconds, and never past the end of the window that was charged;
minus a tenth, to allow for a slow clock. The time runs from before the request was sent, on the monotonic clock, and is
checked at every answer.

**How many.** The key's recent demand during `AHEAD` of that time, at most `GROWTH` times the previous chunk. Near the
limit it is less: at most one part in `PARTS` of what the store has left. If it would save fewer than `WORTHWHILE` hits,
no chunk is taken, and the hit itself is sent to the store. A key whose chunks go back hardly used rests for a while.

**When the store has none left**, units of a bucket and of a sliding window become free one by one. Asking for each of
them would mean asking all the time. So a node waits about half a lease, but no longer than half a second or an eighth
of the time in which a bucket fills, and denies meanwhile what exceeds its chunk. Then it takes everything that has
become free. The waits are randomised, so that all nodes get their turn.
"""

from __future__ import annotations

import random
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..algorithms import FixedWindow, SlidingWindow, TokenBucket
from ..algorithms.token_bucket import GRAIN
from ..clock import SURE_NS_PER_US
from ..decision import Context, Decision
from ..engines._lock import FastLock
from .never import capacity
from .units import Units

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Answer, Limit

ONE: Final = 1
MAX_LENGTH_US: Final = 3_000_000
OF_WINDOW: Final = 20
AHEAD: Final = (5, 6)
"""The fraction of a lease that a chunk's units should last."""
GROWTH: Final = 4
FEW_HITS: Final = 8
"""Without a chunk, fewer hits than this are too few to predict demand."""
PARTS: Final = 8
WORTHWHILE: Final = 6
"""A chunk costs as much as four hits, so it should answer at least this many."""
PAYS: Final = 8
"""Giving a chunk back costs as much again, so at least this many of its units should have been spent."""
FIRST: Final = 16
"""The maximum size of a key's first chunk."""
SMALL: Final = 64
RESTS: Final = (0, 1, 2, 4, 8, 16)
"""After a small chunk that was not worth it, the key is not leased for this many leases: none at first, then more."""
SPARE: Final = 2
"""How many units to take in advance when they become free one by one."""
SWEEPS: Final = 4
"""How many times a chunk is checked during its lease."""
IDLE_SWEEPS: Final = 2
"""A chunk that was not used for this many checks in a row is given back."""
MAX_WAIT_NS: Final = 500_000_000
"""While the store has none left, a node waits no longer than this, on average."""
ASKING_NS: Final = 2_000_000_000
"""A request for a chunk that was not answered for this long is considered lost."""
RECORD_BYTES: Final = 640
"""The memory that a key's record takes, besides the key itself."""

Unspent: TypeAlias = tuple[str, int, int]
"""A chunk that is over: its token, and how many of its units were spent, and how many were not."""


class Wanted(NamedTuple):
    """A chunk that the store is to be asked for."""

    chunk: KeyChunk
    """Where it goes."""
    size: int
    sent_ns: int
    over: Unspent | None
    """What to give back of the previous chunk, which was too small or has ended."""


class KeyChunk(Units):
    """The chunk of one key, and what is known about the key's demand."""

    __slots__ = (
        "asking_until_ns",
        "contended_until_ns",
        "denied",
        "idle_sweeps",
        "last_size",
        "left_at_sweep",
        "rests_until_ns",
        "sent_ns",
        "since_ns",
        "size",
        "token",
        "used",
        "waits_until_ns",
        "wasted",
    )

    def __init__(self, since_ns: int, used: int, remaining: int) -> None:
        super().__init__(remaining)
        self.size = 0
        self.token = ""
        self.sent_ns = 0
        self.denied = False
        """Whether the store's last answer was a denial."""
        self.contended_until_ns = 0
        """Until then, the store counts as having had none left."""
        self.wasted = 0
        """Which of `RESTS` is next: each wasted chunk adds two, and each other one takes one off."""
        self.rests_until_ns = 0
        """Until then its hits are asked for one by one."""
        self.waits_until_ns = 0
        """When it may be asked again."""
        self.since_ns = since_ns
        self.used = used
        """Units that were requested since then, besides those of the chunk."""
        self.last_size = 0
        self.asking_until_ns = 0
        self.left_at_sweep = 0
        self.idle_sweeps = 0

    def close(self) -> Unspent | None:
        """End the chunk; what to give back, if anything."""
        until_ns, self.until_ns = self.until_ns, 0
        left = self.empty()
        spent = self.size - left
        if left and spent < max(left, PAYS) and self.size < SMALL:
            self.rests_until_ns = until_ns + RESTS[self.wasted] * (until_ns - self.sent_ns)
            self.wasted = min(self.wasted + 2, len(RESTS) - 1)
        elif self.size and self.wasted:
            self.wasted -= 1
        self.size = 0
        self.used += spent
        if not left:
            return None
        self.last_size = max(1, spent)
        return self.token, spent, left


class LimitChunks:
    """The chunks of one limit, by key. Every change to one is made under the lock."""

    def __init__(self, limit: Limit, rule: str | None, ticks: Callable[[], int]) -> None:
        self.limit = limit
        self.rule = rule
        self.by_key: dict[str, KeyChunk] = {}
        self._filled: dict[str, KeyChunk] = {}
        """Those that may still hold units: a few of many keys, checked often."""
        self.length_us = min(MAX_LENGTH_US, limit.window_us // OF_WINDOW)
        self._length_ns = self.length_us * SURE_NS_PER_US
        self._ahead_ns = self._length_ns * AHEAD[0] // AHEAD[1]
        self._few = -1 if isinstance(limit, FixedWindow) else capacity(limit) // PARTS
        """Up to this many units left count as few, if the limit's units become free continuously."""
        self._wait_ns = min(self.length_us * 1000 // 2, MAX_WAIT_NS)
        if isinstance(limit, TokenBucket):
            self._wait_ns = min(self._wait_ns, limit.capacity * 1000 // GRAIN // 8)
        self._ticks = ticks
        self._chance = random.Random(random.random())
        self._lock = FastLock()
        self._context = Context("lease", rule=rule)
        self.noticing_since_ns = self.noticing_until_ns = self.noticed_as = 0
        self.retired = False
        """Whether these are no longer maintained, so that nothing may be added."""

    def after_fork(self) -> None:
        """The units belong to the parent, also those that a hit has just found when a signal's handler forks."""
        self._lock.after_fork()
        for chunk in (*self.by_key.values(), *self._filled.values()):
            chunk.until_ns = 0
            chunk.forget()
        self.by_key.clear()
        self._filled = {}  # What was about to be added goes to the old one.

    def answering(self, otherwise: Callable[[str, int], Any]) -> Callable[[str, int], Any]:
        """A hit that is answered from the chunk of its key, or by `otherwise` if that does not have it.

        This is the hot path: what it can do without is done when a chunk begins or ends.
        """
        find, ticks, limit, context = self.by_key.get, self._ticks, self.limit, self._context

        def hit(key: str, cost: int) -> Any:
            try:
                chunk = find(key)
            except TypeError:  # Not a string; the engine says so.
                return otherwise(key, cost)
            if chunk is None:
                return otherwise(key, cost)
            if cost is ONE:
                now_ns = ticks()
                if now_ns < chunk.until_ns:
                    remaining = next(chunk.block, None)
                    if remaining is not None:
                        resets_us = (chunk.resets_ns - now_ns) // 1000
                        answer = (True, remaining, 0, resets_us if resets_us > 0 else 0, 0)
                        return Decision(key, limit, answer, context)
            decision = self._take_several(chunk, key, cost)
            return otherwise(key, cost) if decision is None else decision

        return hit

    def _take_several(self, chunk: KeyChunk, key: str, cost: int) -> Decision | None:
        """The same where there is no unit in the block, or the hit costs several."""
        if type(cost) is not int or cost < 1:
            return None
        with self._lock:
            now_ns = self._ticks()
            if now_ns >= chunk.until_ns:
                return None
            remaining = chunk.take_several(cost)
            resets_us = max(0, (chunk.resets_ns - now_ns) // 1000)
        if remaining is None:
            return None
        return Decision(key, self.limit, (True, remaining, 0, resets_us, 0), self._context)

    def without_units(self, key: str, cost: int) -> Decision | Wanted | int:
        """What to do about a hit that no chunk has an answer to: deny it, ask for a chunk, or ask for the hit."""
        try:
            chunk = self.by_key.get(key)
        except TypeError:
            return cost
        if chunk is None or type(cost) is not int or cost < 1:
            return cost
        with self._lock:
            now_ns = self._ticks()
            if cost <= chunk.left and now_ns < chunk.until_ns:  # It has just come.
                return cost
            if now_ns < chunk.waits_until_ns:
                return self._wait(key, chunk, now_ns)
            size = self._next_size(chunk, key, cost, now_ns)
            if not size:
                return cost
            over = chunk.close()
            chunk.asking_until_ns = now_ns + ASKING_NS
            return Wanted(chunk, size, now_ns, over)

    def _begin_again(self, chunk: KeyChunk, key: str, now_ns: int) -> None:
        """What was asked so long ago says nothing about now; a quiet key is not watched any more."""
        chunk.since_ns, chunk.used = now_ns, 0
        if not chunk.size and not chunk.wasted:
            self.by_key.pop(key, None)

    def _next_size(self, chunk: KeyChunk, key: str, cost: int, now_ns: int) -> int:
        """How many units to take for this cost and those to come; 0 if it is not worth it."""
        if chunk.denied or now_ns < chunk.asking_until_ns:
            return 0
        asked = chunk.used + chunk.size - chunk.left + cost
        passed_ns = now_ns - chunk.since_ns
        if passed_ns > 2 * self._length_ns:
            self._begin_again(chunk, key, now_ns)
            return 0
        if (not chunk.size and asked < FEW_HITS * cost) or now_ns < chunk.rests_until_ns:
            return 0
        wanted = asked * self._ahead_ns // max(1, passed_ns)
        most = max(GROWTH * chunk.last_size, FIRST * cost)
        if wanted > chunk.remaining <= self._few:
            chunk.contended_until_ns = now_ns + 2 * self._length_ns
        if now_ns < chunk.contended_until_ns:
            size, least = min(max(wanted, most), chunk.remaining), SPARE
        else:
            size, least = min(wanted, most, chunk.remaining // PARTS), WORTHWHILE
        return size if size >= least * cost else 0

    def _wait(self, key: str, chunk: KeyChunk, now_ns: int) -> Decision:
        """The denial while the node waits for its turn."""
        chunk.contended_until_ns = now_ns + 2 * self._length_ns
        left_us = -(-(chunk.waits_until_ns - now_ns) // 1000)
        reset_after_us = max(left_us, (chunk.resets_ns - now_ns) // 1000)
        return Decision(key, self.limit, (False, 0, left_us, reset_after_us, 0), self._context)

    def _begin_to_wait(self, chunk: KeyChunk, now_ns: int) -> None:
        """If more is wanted than there is, and nothing worth taking is left, come back later."""
        if chunk.remaining < max(SPARE, chunk.size) and now_ns < chunk.contended_until_ns:
            chunk.waits_until_ns = now_ns + int(self._wait_ns * self._chance.uniform(0.5, 1.5))

    def granted(self, wanted: Wanted, cost: int, decision: Decision) -> Unspent | None:
        """Hold a chunk that the store has charged, less the cost that it was asked for; what to give back, if anything.

        That is all of it if the key was reset meanwhile, or another chunk has come.
        """
        chunk, size, sent_ns, _ = wanted
        token = decision.token or ""
        until_ns = sent_ns + self._usable_us(decision.answer) * SURE_NS_PER_US
        with self._lock:
            filled = self._filled  # Before the next line, for the sake of forks.
            current = self.by_key.get(decision.key) is chunk
            if not current or not chunk.asking_until_ns or chunk.until_ns:
                return token, cost, size - cost
            chunk.asking_until_ns = 0
            chunk.token, chunk.size = token, size
            chunk.sent_ns, chunk.until_ns = sent_ns, until_ns
            chunk.since_ns, chunk.used, chunk.last_size = sent_ns, 0, size
            chunk.remaining = decision.answer[1]
            chunk.hold(size - cost)
            chunk.resets_ns = sent_ns + decision.answer[3] * 1000
            if chunk.remaining >= size:
                chunk.contended_until_ns = 0
            self._begin_to_wait(chunk, sent_ns)
            chunk.left_at_sweep, chunk.idle_sweeps = chunk.left, 0
            filled[decision.key] = chunk
        return None

    def told(self, decision: Decision, size: int, cost: int) -> Decision:
        """The answer to the hit that a chunk was taken for."""
        _, remaining, _, reset_after_us, level = decision.answer
        answer = (True, remaining + size - cost, 0, reset_after_us, level)
        return Decision(decision.key, self.limit, answer, self._context)

    def not_granted(self, wanted: Wanted, decision: Decision | None) -> None:
        """There is no chunk: the store denied it, or the outcome is unknown."""
        chunk = wanted.chunk
        with self._lock:
            chunk.asking_until_ns = 0
            if decision is not None:
                chunk.denied, chunk.remaining = True, decision.answer[1]

    def hit(self, chunk: KeyChunk, decision: Decision, cost: int) -> Decision:
        """The store was asked for a hit: learn from its answer, and tell how long a denial holds here."""
        if decision.context.source != "engine":
            return decision
        allowed, remaining, retry_after_us, reset_after_us, level = decision.answer
        with self._lock:
            if allowed and remaining >= max(SPARE, chunk.size):  # There is no need to wait.
                chunk.denied, chunk.remaining = False, remaining
                chunk.used += cost
                return decision
            now_ns = self._ticks()
            chunk.denied, chunk.remaining = not allowed, remaining
            if not chunk.size:
                chunk.sent_ns, chunk.resets_ns = now_ns, now_ns + reset_after_us * 1000
            if allowed:
                chunk.used += cost
            elif remaining <= self._few:
                chunk.contended_until_ns = now_ns + 2 * self._length_ns
            self._begin_to_wait(chunk, now_ns)
            waits_us = (chunk.waits_until_ns - now_ns) // 1000
        if allowed or not 0 < retry_after_us < waits_us:
            return decision
        answer = (False, remaining, waits_us, reset_after_us, level)
        return Decision(decision.key, self.limit, answer, decision.context)

    def _usable_us(self, answer: Answer) -> int:
        """How long a chunk may be used: not past the window that it was charged in."""
        reset_after_us = answer[3]
        if isinstance(self.limit, FixedWindow):
            return min(self.length_us, reset_after_us)
        if isinstance(self.limit, SlidingWindow):
            return max(0, min(self.length_us, reset_after_us - self.limit.window_us))
        return self.length_us

    def close(self, key: str) -> list[Unspent]:
        """Let go of one key."""
        with self._lock:
            chunk = self.by_key.pop(key, None)
            over = None if chunk is None else chunk.close()
        return [] if over is None else [over]

    def close_all(self) -> list[Unspent]:
        """Let go of every key."""
        return [over for key in list(self.by_key) for over in self.close(key)]

    def retire(self) -> list[Unspent]:
        """Let go of every key, and lease none from now on."""
        with self._lock:
            self.retired = True
        return self.close_all()

    def sweep(self) -> list[Unspent]:
        """Give back chunks that have ended or are idle."""
        unspent: list[Unspent] = []
        now_ns = self._ticks()
        for key, chunk in list(self._filled.items()):
            with self._lock:
                over = self._swept(chunk, now_ns)
                if not chunk.left and self._filled.get(key) is chunk:
                    self._filled.pop(key, None)
            if over is not None:
                unspent.append(over)
        return unspent

    def _swept(self, chunk: KeyChunk, now_ns: int) -> Unspent | None:
        chunk.idle_sweeps = chunk.idle_sweeps + 1 if chunk.left == chunk.left_at_sweep else 0
        chunk.left_at_sweep = chunk.left
        if now_ns < chunk.until_ns and chunk.idle_sweeps < IDLE_SWEEPS:
            return None
        return chunk.close()

    def forget_idle(self) -> None:
        """Forget unused keys."""
        oldest_ns = self._ticks() - 2 * self._length_ns
        for key, chunk in list(self.by_key.items()):
            last_ns = max(chunk.since_ns, chunk.asking_until_ns, chunk.rests_until_ns)
            if not chunk.left and last_ns < oldest_ns:
                with self._lock:
                    if not chunk.left and chunk.asking_until_ns <= oldest_ns:
                        self.by_key.pop(key, None)

    def notice_anew(self, now_ns: int) -> None:
        """Hits of keys that are not watched are counted from now on, under other names than before."""
        self.noticing_since_ns, self.noticing_until_ns = now_ns, now_ns + 2 * self._length_ns
        self.noticed_as = self._chance.getrandbits(60)

    def watch(self, key: str, used: int, remaining: int) -> int:
        """Begin to watch how much a key asks for, given what it did so far; how many bytes that takes."""
        with self._lock:
            if key in self.by_key or self.retired:
                return 0
            self.by_key[key] = KeyChunk(self.noticing_since_ns, used, remaining)
        return RECORD_BYTES + getsizeof(key)

    def size(self) -> int:
        """How many bytes all of it takes."""
        return sum(map(getsizeof, list(self.by_key)), RECORD_BYTES * len(self.by_key))

    def held(self) -> tuple[int, int]:
        """How many chunks there are with anything in them, and how many units."""
        now_ns = self._ticks()
        left = [
            one.left for one in list(self.by_key.values()) if one.left and now_ns < one.until_ns
        ]
        return len(left), sum(left)
