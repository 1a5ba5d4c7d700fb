"""The busiest keys, in a fixed number of counters. Pure.

Space-Saving reuses the smallest counter for a key that has none (Metwally et al., 2005), which costs a heap operation
for every new key. This is the same idea in batches (Anderson et al., 2017): new keys get counters until there are twice
as many as wanted; then the first count beyond the wanted number is subtracted from all, and counters that reach zero
are dropped. At least `capacity + 1` counters pay for each such step, so the sum subtracted is at most `total /
(capacity + 1)`. That sum is the only error: for every key `hits - error <= truth <= hits`, and a key that is not listed
had at most `error` hits.

Yesterday's popular keys should not hide today's. So `RecentKeys` counts in two generations and drops the older one
every period: it covers the last one to two periods.
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
    """A key and its number of hits: at most `hits`, at least `hits - error`."""

    key: str
    hits: int
    error: int


class SpaceSaving:
    """Counters for about `capacity` keys: never more than twice that plus a batch."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: Counter[str] = Counter()
        self.floor = 0
        """Upper bound for the hits of a key that is not listed."""
        self.total = 0

    def add(self, batch: Sequence[str]) -> None:
        """Count every key of a batch."""
        self._counts.update(batch)
        self.total += len(batch)
        if len(self._counts) >= 2 * self._capacity:
            self._purge()

    def top(self, many: int | None = None) -> list[TopKey]:
        """The keys with the highest counts, highest first."""
        floor = self.floor
        tops = nlargest(many or self._capacity, self._counts.items(), key=itemgetter(1, 0))
        return [TopKey(key, count + floor, floor) for key, count in tops]

    def _purge(self) -> None:
        paid = sorted(self._counts.values(), reverse=True)[self._capacity]
        left = {key: count - paid for key, count in self._counts.items() if count > paid}
        self._counts = Counter(left)
        self.floor += paid


class RecentKeys:
    """The busiest keys of the last one to two periods."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._now = SpaceSaving(capacity)
        self._before = SpaceSaving(capacity)

    def add(self, batch: Sequence[str]) -> None:
        """Count every key of a batch."""
        self._now.add(batch)

    def rotate(self) -> None:
        """Start a new period."""
        self._before, self._now = self._now, SpaceSaving(self._capacity)

    def top(self, many: int) -> list[TopKey]:
        """The keys with the highest counts in both generations, highest first."""
        return merged([_shortened(one, 2 * many) for one in (self._before, self._now)], many)


def _shortened(sketch: SpaceSaving, many: int) -> tuple[list[TopKey], int]:
    """The top of a sketch, and an upper bound for the hits of any other key."""
    top = sketch.top(many)
    return top, top[-1].hits if len(top) == many else sketch.floor


def merged(sketches: Iterable[tuple[Iterable[TopKey], int]], many: int) -> list[TopKey]:
    """Merge several sketches. Each comes with its floor, an upper bound for keys it does not list."""
    counts: dict[str, int] = {}
    errors: dict[str, int] = {}
    floors = 0
    for tops, floor in sketches:
        for key, count, error in tops:
            # Relative to the sketch's own floor: the sum of all floors is added to every key at the end.
            counts[key] = counts.get(key, 0) + count - floor
            errors[key] = errors.get(key, 0) + error - floor
        floors += floor
    best = nlargest(many, counts.items(), key=itemgetter(1, 0))
    return [TopKey(key, count + floors, errors[key] + floors) for key, count in best]
