"""Spans of time, and what was taken in them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Span(NamedTuple):
    """Units taken between two moments."""

    t0: int
    t1: int
    cost: int
    line: int = 0


class Extra(NamedTuple):
    """This many more units are allowed in any span that overlaps this one."""

    begin: int
    end: int
    units: int
    why: str = ""


class Times:
    """Spans of time, merged where they overlap."""

    def __init__(self, stretches: Iterable[tuple[int, int]]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(stretches):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def meet(self, begin: int, end: int) -> bool:
        """Whether one of them overlaps this one."""
        place = bisect_left(self._ends, begin)
        return place < len(self._ends) and self._begins[place] <= end


class Sums:
    """The possible cost in any span, after sorting once."""

    def __init__(self, spans: Sequence[Span]) -> None:
        begins = sorted((one.t0, one.cost) for one in spans)
        ends = sorted((one.t1, one.cost) for one in spans)
        self._begins = [at for at, _ in begins]
        self._begun = [0, *accumulate(cost for _, cost in begins)]
        self._ends = [at for at, _ in ends]
        self._ended = [0, *accumulate(cost for _, cost in ends)]

    def meeting(self, a: int, b: int) -> int:
        """The cost of all spans that overlap `[a, b]`."""
        begun = self._begun[bisect_right(self._begins, b)]
        return begun - self._ended[bisect_left(self._ends, a)]
