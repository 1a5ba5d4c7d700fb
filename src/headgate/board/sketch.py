"""The keys that are asked for most, in a fixed number of counters. Pure.

Space-Saving gives a key without a counter the smallest one (Metwally et al., 2005), which costs a step on a heap for
every stranger. This is the same idea in batches (Anderson et al., 2017): strangers get counters until there are twice
as many as wanted; then the count of the first one too many is subtracted from all, and those left with nothing go. At
least `capacity + 1` counters pay for each such step, so what was ever subtracted is at most `total / (capacity + 1)`.
That sum is the only error: for every key `hits - error <= truth <= hits`, and a key that is not shown was asked for at
most `error` times.

What was popular yesterday should not hide what is popular now. `RecentKeys` therefore counts in two generations, and
the older one is dropped every period: it speaks of the last one to two periods.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CAPACITY: Final = 1_000


class TopKey(NamedTuple):
    """A key and how often it was asked for: at most `hits`, at least `hits - error`."""

    key: str
    hits: int
    error: int


class SpaceSaving:
    """Counters for about `capacity` keys: never more than twice that and a batch."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: Counter[str] = Counter()
        self.floor = 0
        """What a key that is not shown can have had at most."""
        self.total = 0

    def add(self, batch: Sequence[str]) -> None:
        """Count every key of a batch."""
        self._counts.update(batch)
        self.total += len(batch)
        if len(self._counts) >= 2 * self._capacity:
            self._purge()

    def top(self, many: int | None = None) -> list[TopKey]:
        """The keys with the highest counts, the highest first."""
        floor = self.floor
        tops = nlargest(many or self._capacity, self._counts.items(), key=itemgetter(1, 0))
        return [TopKey(key, count + floor, floor) for key, count in tops]

    def _purge(self) -> None:
        paid = sorted(self._counts.values(), reverse=True)[self._capacity]
        left = {key: count - paid for key, count in self._counts.items() if count > paid}
        self._counts = Counter(left)
        self.floor += paid


class RecentKeys:
    """The keys that were asked for most in the last one to two periods."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._now = SpaceSaving(capacity)
        self._before = SpaceSaving(capacity)

    def add(self, batch: Sequence[str]) -> None:
        """Count every key of a batch."""
        self._now.add(batch)

    def turn(self) -> None:
        """A period is over."""
        self._before, self._now = self._now, SpaceSaving(self._capacity)

    def top(self, many: int) -> list[TopKey]:
        """The keys with the highest counts of both generations, the highest first."""
        return merged([_shortened(one, 2 * many) for one in (self._before, self._now)], many)


def _shortened(sketch: SpaceSaving, many: int) -> tuple[list[TopKey], int]:
    """The top of a sketch, and what a key that is not in it can have had at most."""
    top = sketch.top(many)
    return top, top[-1].hits if len(top) == many else sketch.floor


def merged(sketches: Iterable[tuple[Iterable[TopKey], int]], many: int) -> list[TopKey]:
    """Several sketches as one. Each comes with its floor, which a key that it does not show may have had."""
    counts: dict[str, int] = {}
    errors: dict[str, int] = {}
    floors = 0
    for tops, floor in sketches:
        for key, count, error in tops:
            # Counted from its own floor: those of the others are added to every key at the end.
            counts[key] = counts.get(key, 0) + count - floor
            errors[key] = errors.get(key, 0) + error - floor
        floors += floor
    best = nlargest(many, counts.items(), key=itemgetter(1, 0))
    return [TopKey(key, count + floors, errors[key] + floors) for key, count in best]
