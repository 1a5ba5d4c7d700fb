"""Sliding log: every request is remembered for one window. Exact, and pays for it in memory.

    limit 4   │·  ·   ··      ┊ now                 each · is a request with its cost;
              ├───────────────┤ window              the oldest leaves, and then one fits again

A request at `t` counts until just before `t + window_us`, so no span of a window's length, wherever it
begins, ever holds more than the limit. A request is one entry whatever its cost.

The state is `(entries, start, end, total)`: `entries` is a flat list `[at_us, cost, at_us, cost, …]`
of which this state sees `entries[start:end]`. States share the list, each take appends to it, and an
older state stays valid because its part of the list never changes: values as in the other algorithms,
without copying. A take from a state that is not the newest cuts off what an abandoned one appended.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from .base import (
    MAX_EXACT,
    MAX_MEMBERS,
    NEVER,
    Answer,
    Limit,
    Whole,
    require_whole,
    require_window,
)

Log = tuple[list[int], int, int, int]
EMPTY: Final[Log] = ([], 0, 0, 0)


class SlidingLog(Limit):
    """`limit` units in any span of `window_us`."""

    __slots__ = ()
    __match_args__ = ("limit", "window_us")
    name: ClassVar[str] = "sliding_log"

    def __init__(self, limit: Whole, window_us: Whole) -> None:
        self.limit = require_whole("limit of sliding_log", limit, 0, MAX_MEMBERS)
        self.window_us = require_window(window_us)
        self.identity = f"{self.name}:{window_us}"
        super().__init__(self.limit, self.window_us)

    def take(self, state: Log | None, now_us: int, cost: int) -> tuple[Log | None, Answer]:
        """Take `cost` units if they fit."""
        before = state
        if state is None:
            entries, start, end, total = list[int](), 0, 0, 0
        else:
            entries, start, end, total = state
            if end and entries[end - 2] > now_us:
                entries, start, end, total = state = _pulled_to(now_us, state)
            gone_us = now_us - self.window_us
            while start < end and entries[start] <= gone_us:
                total -= entries[start + 1]
                start += 2
        limit = self.limit
        if total + cost > limit:
            if cost > limit or total - entries[start + 1] + cost > limit:
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
        return before, (
            True,
            limit - total,
            0,
            self._reset_after_us(entries, start, end, now_us),
            0,
        )

    def peek(self, state: Log | None, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer."""
        entries, start, end, total = log = self._current(state, now_us)
        if total + cost > self.limit:
            return self._denied(log, now_us, cost)
        reset_after_us = self._reset_after_us(entries, start, end, now_us)
        return (True, self.limit - total, 0, reset_after_us, 0)

    def force(self, state: Log | None, now_us: int, cost: int) -> tuple[Log | None, Answer]:
        """Charge without asking."""
        entries, start, end, total = self._current(state, now_us)
        if cost:
            entries, start = [*entries[start:end], now_us, min(cost, MAX_EXACT - total)], 0
            end = len(entries)
            total += entries[-1]
            state = (entries, start, end, total)
        reset_after_us = self._reset_after_us(entries, start, end, now_us)
        return state, (True, max(0, self.limit - total), 0, reset_after_us, 0)

    def mark(self, state: Log) -> int:
        """When the take happened."""
        entries, _, end, _ = state
        return entries[end - 2]

    def refund(
        self, state: Log | None, mark: int, now_us: int, cost: int, refunded: int
    ) -> tuple[Log | None, int]:
        """Lower the entry that was made at `mark`, while it is still in the window.

        Entries of the same microsecond are alike, so it does not matter which one gives.
        """
        entries, start, end, total = self._current(state, now_us)
        kept: list[int] = []
        given = 0
        for i in range(start, end, 2):
            at_us, left = entries[i], entries[i + 1]
            if at_us == mark:
                part = min(cost - given, left)
                left -= part
                given += part
            if left:
                kept += (at_us, left)
        return (kept, 0, len(kept), total - given) if given else state, given

    def used(self, state: Log | None, now_us: int) -> int:
        """The sum of the costs in the window."""
        return self._current(state, now_us)[3]

    def idle_at_us(self, state: Log) -> int:
        """When the newest entry leaves the window."""
        entries, start, end, total = state
        return entries[end - 2] + self.window_us if total and end > start else 0

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

    def _current(self, state: Log | None, now_us: int) -> Log:
        """The state as it stands at `now_us`."""
        if state is None:
            return EMPTY
        entries, start, end, total = state
        if end and entries[end - 2] > now_us:
            entries, start, end, total = _pulled_to(now_us, state)
        gone_us = now_us - self.window_us
        while start < end and entries[start] <= gone_us:
            total -= entries[start + 1]
            start += 2
        return entries, start, end, total

    def _denied(self, log: Log, now_us: int, cost: int) -> Answer:
        entries, start, end, total = log
        limit = self.limit
        reset_after_us = entries[end - 2] + self.window_us - now_us if end > start else 0
        retry_after_us = NEVER
        remaining = limit - total if limit > total else 0
        if cost <= limit:
            while total + cost > limit:  # The oldest entries leave until the cost fits.
                total -= entries[start + 1]
                start += 2
            retry_after_us = entries[start - 2] + self.window_us - now_us
        return (False, remaining, retry_after_us, reset_after_us, 0)

    def _reset_after_us(self, entries: list[int], start: int, end: int, now_us: int) -> int:
        return entries[end - 2] + self.window_us - now_us if end > start else 0


def _pulled_to(now_us: int, state: Log) -> Log:
    """A copy of the log in which nothing lies ahead of now: the clock stepped back."""
    entries, start, end, total = state
    entries = entries[start:end]
    entries[::2] = [min(at_us, now_us) for at_us in entries[::2]]
    return entries, 0, len(entries), total
