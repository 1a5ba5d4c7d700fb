"""Low-water marks: the lowest a state has been since each open reservation, so refunds are exact in any order.

After a refund, the bucket has what it would have if the real cost had been taken in the first place. So a refund is at
most the smallest backlog since the take: the rest has already refilled. Each open charge therefore keeps the smallest
backlog between it and the next open one; the state itself keeps the one since the newest.

    backlog ┤      █▙        a refund for `a` gives at most the smallest of
            │  █▙  ██▙  ▟▙   its own low, the low of `b`, and the backlog now
            │  ██▙▟███▙▟██▙
            ┼──a───b──────── now

What a refund gives lowers the marks from its own charge on. A charge that is settled leaves its mark to the one before
it. At most `MAX_OPEN` are kept apart: beyond that the two oldest share the smaller mark, which can only lose refunds.
`engines/redis/lua/watch.lua` is the same for Redis.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Any

from ..algorithms.base import MAX_EXACT

MAX_OPEN = 512
NUMBER, LOW, CHARGES = 0, 1, 2


class Watch:
    """The open charges of one state, in the order in which they were made."""

    __slots__ = ("_last", "_open")

    def __init__(self) -> None:
        self._open: list[list[int]] = []
        """Of each its number, its mark, and how many charges share it. The newest has no mark but the state's."""
        self._last = 0

    def encode(self) -> list[Any]:
        """As plain data."""
        return [self._last, self._open]

    @classmethod
    def decode(cls, data: list[Any]) -> Watch:
        """The inverse."""
        watch = cls()
        watch._last, watch._open = data
        return watch

    def begin(self, low: int) -> int:
        """One more charge; `low` is the mark that the state had kept for the one before. Returns its number."""
        known = self._open
        if known:
            known[-1][LOW] = min(known[-1][LOW], low)
        self._last += 1
        known.append([self._last, MAX_EXACT, 1])
        if len(known) > MAX_OPEN:
            oldest = known.pop(0)
            known[0][LOW] = min(known[0][LOW], oldest[LOW])
            known[0][CHARGES] += oldest[CHARGES]
        return self._last

    def low_since(self, number: int) -> int:
        """The smallest mark from that charge on; the state's own is not among them."""
        return min([one[LOW] for one in self._open[self._place(number) :]])

    def note_refund(self, number: int, given: int) -> None:
        """So much was given back for that charge: as if it had never been taken."""
        for one in self._open[self._place(number) :]:
            one[LOW] = max(0, one[LOW] - given)

    def end(self, number: int) -> bool:
        """The charge is settled, or never will be; true when no other is open."""
        known, place = self._open, self._place(number)
        known[place][CHARGES] -= 1
        if not known[place][CHARGES]:
            _, low, _ = known.pop(place)
            if place:
                known[place - 1][LOW] = min(known[place - 1][LOW], low)
        return not known

    def _place(self, number: int) -> int:
        """Where a charge is kept: those that share a mark are found under the newest number of them."""
        return bisect_left(self._open, number, key=itemgetter(NUMBER))
