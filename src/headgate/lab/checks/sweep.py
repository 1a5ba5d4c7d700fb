"""Sweeps: find the span in which the certain admissions exceed the limit most.

    over(a, b) = C(a, b) - what the limit allows from a to b - what faults add to overlapping spans

`C` is the sum of what certainly happened inside: began at `a` or later, ended at `b` or before. Each sweep finds the
largest `over` in O(n log n) with exact integers. Only spans that begin with an admission's `t0` need checking: any
other can be shortened to one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..spans import Extra, Span

NOWHERE: Final = -(10**40)


class Worst(NamedTuple):
    """The span with the largest excess; negative if there is room to spare."""

    over: int
    begin: int
    end: int
    admitted: int = 0
    line: int = 0
    at: int = 0
    """When the operation of that line ended."""


NONE: Final = Worst(NOWHERE, 0, 0)


class Added:
    """What faults add to any span."""

    def __init__(self, extras: Sequence[Extra]) -> None:
        begins = sorted((one.begin, one.units) for one in extras)
        ends = sorted((one.end, one.units) for one in extras)
        self._begins = [at for at, _ in begins]
        self._begun = [0, *accumulate(units for _, units in begins)]
        self._ends = [at for at, _ in ends]
        self._ended = [0, *accumulate(units for _, units in ends)]

    def to(self, a: int, b: int) -> int:
        """The units of all extras that overlap `[a, b]`."""
        return self._begun[bisect_right(self._begins, b)] - self._ended[bisect_left(self._ends, a)]


class Fenwick:
    """Prefix sums that can be updated (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)

    def add(self, place: int, value: int) -> None:
        """Add to one index."""
        place += 1
        while place < len(self._sums):
            self._sums[place] += value
            place += place & -place

    def before(self, place: int) -> int:
        """The sum of all indexes before this one."""
        total = 0
        while place > 0:
            total += self._sums[place]
            place -= place & -place
        return total


class Suffixes:
    """The largest of `base[i] + added[i] + added[i + 1] + …` over all `i` that have a base.

    Adding at an index adds to every span that begins there or before.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1
        while self._leaves < size:
            self._leaves *= 2
        self._sums = [0] * (2 * self._leaves)
        self._best = [NOWHERE] * (2 * self._leaves)
        self._bases = [NOWHERE] * self._leaves

    def begin(self, place: int, base: int) -> None:
        """Let spans begin at this index."""
        self._bases[place] = base
        self._renew(place)

    def add(self, place: int, value: int) -> None:
        """Add to all spans that begin here or before."""
        self._sums[self._leaves + place] += value
        self._renew(place)

    def largest(self) -> int:
        """The largest sum."""
        return self._best[1]

    def _renew(self, place: int) -> None:
        sums, best = self._sums, self._best
        at = self._leaves + place
        best[at] = self._bases[place] + sums[at]
        at >>= 1
        while at:
            left, right = 2 * at, 2 * at + 1
            sums[at] = sums[left] + sums[right]
            through = best[left] + sums[right]
            best[at] = through if through > best[right] else best[right]
            at >>= 1


def widest(spans: Sequence[Span], window_us: int, allowed: Callable[[int, int], int]) -> Worst:
    """The worst span of one window's length, without its right end."""
    ends = sorted({one.t1 for one in spans})
    inside = Fenwick(len(ends))
    worst = NONE
    for one in sorted(spans, key=lambda one: -one.t0):
        inside.add(bisect_left(ends, one.t1), one.cost)
        begin, end = one.t0, one.t0 + window_us
        total = inside.before(bisect_left(ends, end))
        over = total - allowed(begin, end - 1)
        if over > worst.over:
            worst = Worst(over, begin, end, total, one.line, one.t1)
    return worst


def flowing(
    spans: Sequence[Span], burst: int, limit: int, window_us: int, extras: Sequence[Extra] = ()
) -> Worst:
    """The worst span of any length for a bucket: `C(a, b) - burst - limit·(b - a) / window`."""
    begins = sorted({one.t0 for one in spans})
    tree = Suffixes(len(begins))
    worst, at = NONE, 0
    waiting = sorted(extras, key=lambda one: -one.begin)
    for one in sorted(spans, key=lambda one: one.t1):
        while at < len(begins) and begins[at] <= one.t1:
            tree.begin(at, begins[at] * limit)
            at += 1
        while waiting and waiting[-1].begin <= one.t1:
            extra = waiting.pop()
            place = bisect_right(begins, extra.end) - 1
            if place >= 0:
                tree.add(place, -extra.units * window_us)
        tree.add(bisect_left(begins, one.t0), one.cost * window_us)
        over = -(-(tree.largest() - one.t1 * limit - burst * window_us) // window_us)
        if over > worst.over:
            worst = Worst(over, 0, one.t1, 0, one.line, one.t1)
    return _began(worst, spans, limit, window_us, Added(extras))


def _began(worst: Worst, spans: Sequence[Span], limit: int, window_us: int, added: Added) -> Worst:
    """The same, with the beginning of its span: searched once, not in every step."""
    if worst is NONE:
        return worst
    total, best, begin, admitted = 0, NOWHERE, worst.end, 0
    inside = sorted((one for one in spans if one.t1 <= worst.end), key=lambda one: -one.t0)
    for one in inside:
        total += one.cost
        over = (total - added.to(one.t0, worst.end)) * window_us + one.t0 * limit
        if over > best:
            best, begin, admitted = over, one.t0, total
    return worst._replace(begin=begin, admitted=admitted)
