"""Space-Saving: the keys that are asked for most, in a fixed number of counters. Pure.

A key that has no counter takes over the smallest one and inherits its count as its possible error, so for every key that
is shown `hits - error <= truth <= hits`, and every key with more than `total / capacity` requests is shown (Metwally
et al., 2005). Costs come in batches: folding a batch is a dictionary update for keys that have a counter and one step on a
heap for those that have not.

What was popular yesterday should not hide what is popular now. `RecentKeys` therefore counts in two generations, and the
older one is dropped every `period`: it speaks of the last one to two periods.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CAPACITY: Final = 1_000


class Hot(NamedTuple):
    """A key and how often it was asked for: at most `hits`, at least `hits - error`."""

    key: str
    hits: int
    error: int


class SpaceSaving:
    """Counters for at most `capacity` keys."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self.total = 0

    def add(self, batch: Mapping[str, int]) -> None:
        """Count every key of a batch."""
        counts = self._counts
        for key, many in batch.items():
            self.total += many
            if key in counts:
                counts[key] += many
            elif len(counts) < self._capacity:
                counts[key] = many
                self._errors[key] = 0
            else:
                self._take_over(key, many)

    def top(self, many: int | None = None) -> list[Hot]:
        """The keys with the highest counts, the highest first."""
        errors = self._errors
        found = (Hot(key, count, errors[key]) for key, count in self._counts.items())
        return nlargest(many or self._capacity, found, key=lambda hot: (hot.hits, hot.key))

    @property
    def floor(self) -> int:
        """What a key that is not shown can have had at most."""
        return min(self._counts.values()) if len(self._counts) >= self._capacity else 0

    def _take_over(self, key: str, many: int) -> None:
        """Give the smallest counter to another key.

        Counts in the heap are as old as their last visit. They can only be too small, so the top that is
        up to date is the smallest of all.
        """
        counts, heap = self._counts, self._heap
        if not heap:
            heap.extend((count, one) for one, count in counts.items())
            heapify(heap)
        while True:
            count, smallest = heappop(heap)
            now = counts[smallest]
            if now == count:
                break
            heappush(heap, (now, smallest))
        del counts[smallest], self._errors[smallest]
        counts[key] = count + many
        self._errors[key] = count
        heappush(heap, (count + many, key))


class RecentKeys:
    """The keys that were asked for most in the last one to two periods."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._now = SpaceSaving(capacity)
        self._before = SpaceSaving(capacity)

    def add(self, batch: Mapping[str, int]) -> None:
        """Count every key of a batch."""
        self._now.add(batch)

    def turn(self) -> None:
        """A period is over."""
        self._before, self._now = self._now, SpaceSaving(self._capacity)

    def top(self, many: int) -> list[Hot]:
        """The keys with the highest counts of both generations, the highest first."""
        pair = [(one.top(), one.floor) for one in (self._before, self._now)]
        return merged(pair, many)


def merged(sketches: Iterable[tuple[Iterable[Hot], int]], many: int) -> list[Hot]:
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
    found = (Hot(key, count + floors, errors[key] + floors) for key, count in counts.items())
    return nlargest(many, found, key=lambda hot: (hot.hits, hot.key))
