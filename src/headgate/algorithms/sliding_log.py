"""Sliding log: every request is stored for one window. Exact, at the cost of memory.

    limit 4   │·  ·   ··      ┊ now                 each · is a request with its cost;
              ├───────────────┤ window              the oldest leaves, and then one fits again

A request at `t` counts until just before `t + window_us`, so no span of a window's length, wherever it
begins, ever holds more than the limit. A request is one entry whatever its cost.

The state is `(entries, start, end, total)`: `entries` is a flat list `[at_us, cost, at_us, cost, …]` of which this
state sees `entries[start:end]`. States share the list, each take appends to it, and an older state stays valid because
its part of the list never changes: values as in the other algorithms, without copying. A take from a state that is not
the newest cuts off what an abandoned one appended. A refund, and a charge in the past, leave an entry of cost 0, so
that the key's time does not go back: what had left the window by then is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, ClassVar, Final

from .base import (
    MAX_EXACT,
    MAX_LEAD_US,
    MAX_MEMBERS,
    NEVER,
    Answer,
    Limit,
    Whole,
    later,
    require_whole,
    require_window,
)

Log = tuple[list[int], int, int, int]
PARTS: Final = 4
"""Into how many parts of its window a coarse log divides time."""
EMPTY: Final[Log] = ([], 0, 0, 0)


class SlidingLog(Limit):
    """`limit` units in any span of `window_us`."""

    __slots__ = ()
    __match_args__ = ("limit", "window_us")
    name: ClassVar[str] = "sliding_log"
    guarantee: ClassVar[str] = "never more than the limit in any span of a window's length"
    regional: ClassVar[tuple[str, ...]] = ("split", "merge")

    def __init__(self, limit: Whole, window_us: Whole) -> None:
        self.limit = require_whole("limit of sliding_log", limit, 0, MAX_MEMBERS)
        self.window_us = require_window(window_us)
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        self.identity = f"{self.name}:{window_us}"
        super().__init__(self.limit, self.window_us)

    def take(self, state: Log | None, now_us: int, cost: int) -> tuple[Log | None, Answer]:
        """Take `cost` units if they fit."""
        if state is None:
            entries, start, end, total = list[int](), 0, 0, 0
        else:
            entries, start, end, total = state
            if end and entries[end - 2] > now_us:
                return self._take_ahead(state, now_us, cost)
            gone_us = now_us - self.window_us
            while start < end and entries[start] <= gone_us:
                total -= entries[start + 1]
                start += 2
        limit = self.limit
        if total + cost > limit:
            if cost > limit or total - entries[start + 1] + cost > limit or not entries[end - 1]:
                return state, self._denied((entries, start, end, total), now_us, cost)
            ahead_us = self.window_us - now_us  # Usually the oldest entry alone makes room.
            return state, (
                False,
                limit - total if limit > total else 0,
                entries[start] + ahead_us,
                entries[end - 2] + ahead_us,
                0,
            )
        if cost:
            total += cost
            if start > 64 and start > end >> 1:  # Most of the list is past: keep the rest only.
                entries, start, end = entries[start:end], 0, end - start
            elif len(entries) > end:
                del entries[end:]
            entries += (now_us, cost)
            end += 2
            state = (entries, start, end, total)
            return state, (True, limit - total, 0, self.window_us, 0)
        return state, (
            True,
            limit - total,
            0,
            self._reset_after_us(entries, end, total, now_us),
            0,
        )

    def _peek(self, state: Log | None, at_us: int, cost: int) -> Answer:
        entries, _, end, total = log = self._current(state, at_us)
        if total + cost > self.limit:
            return self._denied(log, at_us, cost)
        reset_after_us = self._reset_after_us(entries, end, total, at_us)
        return (True, self.limit - total, 0, reset_after_us, 0)

    def _force(self, state: Log | None, at_us: int, cost: int) -> tuple[Log | None, Answer]:
        entries, start, end, total = self._current(state, at_us)
        if cost:
            entries, start = [*entries[start:end], at_us, min(cost, MAX_EXACT - total)], 0
            end = len(entries)
            total += entries[-1]
            state = (entries, start, end, total)
        reset_after_us = self._reset_after_us(entries, end, total, at_us)
        return state, (True, max(0, self.limit - total), 0, reset_after_us, 0)

    def force_past(
        self, state: Log | None, now_us: int, cost: int, came_us: int
    ) -> tuple[Log | None, Answer]:
        """Charge units as of the time they came, which is in the past; what has left the window by now is not."""
        seen, at_us = self.seen(state, now_us)
        if came_us >= at_us:
            return self.force(state, now_us, cost)
        entries, start, end, total = self._current(seen, at_us)
        if cost and came_us > at_us - self.window_us:
            while end > start and not entries[end - 1]:  # A new mark takes the place of an old one.
                end -= 2
            entries = entries[start:end]
            place = 2 * bisect_right(entries[::2], came_us)
            cost = min(cost, MAX_EXACT - total)
            entries[place:place] = [came_us, cost]
            entries += (at_us, 0)
            end, total = len(entries), total + cost
            seen = (entries, 0, end, total)
        reset_after_us = self._reset_after_us(entries, end, total, at_us)
        answer = (True, max(0, self.limit - total), 0, reset_after_us, 0)
        return seen, later(answer, at_us - now_us)

    def mark(self, state: Log) -> int:
        """When the take happened."""
        entries, _, end, _ = state
        return entries[end - 2]

    def _refund(
        self, state: Log | None, mark: int, at_us: int, cost: int, low: int
    ) -> tuple[Log | None, int]:
        """Lower the entry that was made at `mark`, while it is still in the window.

        Entries of the same microsecond are alike, so it does not matter which one gives.
        """
        entries, start, end, total = self._current(state, at_us)
        kept: list[int] = []
        given = 0
        for i in range(start, end, 2):
            came_us, left = entries[i], entries[i + 1]
            if came_us == mark:
                part = min(cost - given, left)
                left -= part
                given += part
            if left:
                kept += (came_us, left)
        kept += (at_us, 0)
        return (kept, 0, len(kept), total - given) if given else state, given

    def coarser(self, state: Log) -> Log:
        """The same units in a handful of entries, for when there is no memory to be exact.

        What came in the same quarter of a window counts as if all of it had come with the last of it. So the log is
        stricter, and never admits more.
        """
        entries, start, end, total = state
        part_us = self.window_us // PARTS or 1
        kept: list[int] = []
        for i in range(start, end, 2):
            at_us, cost = entries[i], entries[i + 1]
            if kept and kept[-2] // part_us == at_us // part_us:
                kept[-2] = at_us
                kept[-1] += cost
            else:
                kept += (at_us, cost)
        return kept, 0, len(kept), total

    def _used(self, state: Log | None, at_us: int) -> int:
        return self._current(state, at_us)[3]

    def latest_us(self, state: Log) -> int:
        """When the newest entry was made."""
        entries, _, end, _ = state
        return entries[end - 2] if end else 0

    def _cut(self, state: Log, now_us: int) -> Log:
        entries, start, end, total = self._current(state, now_us)
        entries = entries[start:end]
        entries[::2] = [min(at_us, now_us) for at_us in entries[::2]]
        return entries, 0, len(entries), total

    def idle_at_us(self, state: Log) -> int:
        """When the newest entry leaves the window."""
        entries, _, end, total = state
        return _last_charge_us(entries, end) + self.window_us if total else 0

    def encode(self, state: Log) -> tuple[int, ...]:
        """The entries, flat."""
        entries, start, end, _ = state
        return tuple(entries[start:end])

    def decode(self, data: Any) -> Log:
        """The inverse of `encode`."""
        entries = list(data)
        if len(entries) % 2:
            raise ValueError("a log is a list of pairs")
        for number in entries:
            require_whole("log entry", number, 0, MAX_EXACT)
        if entries[::2] != sorted(entries[::2]):
            raise ValueError("a log is in order of time")
        return (entries, 0, len(entries), sum(entries[1::2]))

    def _current(self, state: Log | None, at_us: int) -> Log:
        """The state as it stands at `at_us`."""
        if state is None:
            return EMPTY
        entries, start, end, total = state
        gone_us = at_us - self.window_us
        while start < end and entries[start] <= gone_us:
            total -= entries[start + 1]
            start += 2
        return entries, start, end, total

    def _denied(self, log: Log, now_us: int, cost: int) -> Answer:
        entries, start, end, total = log
        limit = self.limit
        reset_after_us = self._reset_after_us(entries, end, total, now_us)
        retry_after_us = NEVER
        remaining = limit - total if limit > total else 0
        if cost <= limit:
            while total + cost > limit:  # The oldest entries leave until the cost fits.
                total -= entries[start + 1]
                start += 2
            retry_after_us = entries[start - 2] + self.window_us - now_us
        return (False, remaining, retry_after_us, reset_after_us, 0)

    def _reset_after_us(self, entries: list[int], end: int, total: int, now_us: int) -> int:
        return _last_charge_us(entries, end) + self.window_us - now_us if total else 0


def _last_charge_us(entries: list[int], end: int) -> int:
    """When the newest entry that counts was made; there is one."""
    while not entries[end - 1]:
        end -= 2
    return entries[end - 2]
