"""Traffic: what ten one-second buckets say. Pure.

A node counts in plain integers and looks at them once a second, so what it has to say about a second is a difference of
two counts. When it looks late, the difference belongs to several seconds and is spread over them: the sum is always
right, and no second looks like a burst because the node was busy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from .model import NONE_YET, Second

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .model import Totals

SECONDS: Final = 10
KEPT_SECONDS: Final = 12
"""How many seconds a node reports: ten are used, and the last ones may come late."""
ENOUGH: Final = 20
"""With fewer requests in all buckets, the busiest one says nothing about bursts."""


class TrafficRates(NamedTuple):
    """Rates of traffic over all nodes."""

    req_per_sec: float
    burst_ratio: float
    """The busiest second against the mean; 0 when there was too little to tell."""
    deny_rate: float
    """Between 0 and 1."""


def figures_of(seconds: Sequence[Second]) -> TrafficRates:
    """Mean rate, burst ratio and deny rate of these seconds."""
    requests = sum(one.requests for one in seconds)
    if not requests:
        return TrafficRates(0.0, 0.0, 0.0)
    ratio = _burst_ratio([one.requests for one in seconds]) if requests >= ENOUGH else 0.0
    denied = sum(one.denied for one in seconds)
    return TrafficRates(requests / len(seconds), ratio, denied / requests)


def _burst_ratio(counts: list[int]) -> float:
    """The busiest second against the mean, which is over all of them but for two exceptions.

    Traffic that has just begun is no burst: while it goes on, the mean is over the seconds since it began. It goes on
    while the last second has at least half of that mean. When it falls off, the silence before it counts again.

    Traffic that ends, or falls off, is no burst either. It ends with the last second that has at least half of the
    busiest one. If it was there when the ten seconds began, the mean is over the seconds until its end; it was there
    if one of the first two has at least half of that mean. Later seconds count only if they make the mean higher.
    """
    busiest, total = max(counts), sum(counts)
    begun = next(i for i, count in enumerate(counts) if count)
    active = len(counts) - begun
    if begun and 2 * counts[-1] * active >= total:
        return busiest * active / total
    end = max(i for i, count in enumerate(counts) if 2 * count >= busiest) + 1
    until_end = sum(counts[:end])
    ratio = busiest * len(counts) / total
    was_there = 2 * max(counts[:2]) * end >= until_end
    return min(ratio, busiest * end / until_end) if was_there else ratio


class SecondCounts(NamedTuple):
    """What a node counted in each of its last seconds, the last being `last`: requests and denied in turn."""

    last: int = 0
    counts: tuple[int, ...] = (0,) * (2 * KEPT_SECONDS)


class SecondBuckets:
    """Counts that only grow, cut into the last `KEPT_SECONDS` seconds. Its size never changes."""

    __slots__ = ("_counted", "_seconds", "counted_to")

    def __init__(self) -> None:
        self.counted_to = -1
        """The last second that has been noted; before `begin` there is none."""
        self._counted = NONE_YET
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)

    def begin(self, totals: Totals, last: int) -> None:
        """What has been counted so far belongs to no second that is told of; the next one is the first."""
        self._counted, self.counted_to = totals, last

    def note(self, totals: Totals, last: int) -> None:
        """Note what was counted since the last time, up to the second `last`, by the seconds in which it was."""
        if self.counted_to < 0 or last <= self.counted_to:
            return  # It has not begun, or this second has been noted.
        first = max(self.counted_to + 1, last - KEPT_SECONDS + 1)
        requests = totals.requests - self._counted.requests
        denied = totals.denied - self._counted.denied
        self._seconds.extend(spread_evenly(first, last, requests, denied))
        self.begin(totals, last)

    def strip(self) -> SecondCounts:
        """The last seconds."""
        return strip_of(self._seconds, max(0, self.counted_to))


def strip_of(seconds: Iterable[Second], last: int) -> SecondCounts:
    """These seconds as a strip that ends with `last`; those in which nothing was noted are zeros."""
    known = {second.at: (second.requests, second.denied) for second in seconds}
    span = range(last - KEPT_SECONDS + 1, last + 1)
    return SecondCounts(last, tuple(count for at in span for count in known.get(at, (0, 0))))


def last_seconds(strips: Iterable[SecondCounts], last: int) -> tuple[Second, ...]:
    """`SECONDS` buckets that end with `last`, added over nodes; what lies outside is left out.

    Nodes beat together, so most strips end with the same second and are added column by column, in C.
    """
    by_last: dict[int, list[tuple[int, ...]]] = {}
    for strip in strips:
        by_last.setdefault(strip.last, []).append(strip.counts)
    first = last - SECONDS + 1
    requests, denied = [0] * SECONDS, [0] * SECONDS
    for end, rows in by_last.items():
        sums = list(map(sum, zip(*rows, strict=True)))
        for i in range(KEPT_SECONDS):
            at = end - KEPT_SECONDS + 1 + i - first
            if 0 <= at < SECONDS:
                requests[at] += sums[2 * i]
                denied[at] += sums[2 * i + 1]
    return tuple(Second(first + i, requests[i], denied[i]) for i in range(SECONDS))


def settled_second(ends: Iterable[int], last: int) -> int:
    """The newest second up to `last` that every node has told of, whose strips end with `ends`.

    A node that is a little late moves the ten seconds that are read back by as much, since a second that lacks its
    part would make the others look like a burst. Strips are long enough for that (`KEPT_SECONDS`). One that has
    been silent for longer is not waited for: what it has told of still counts, and what it has not is not guessed
    at.
    """
    oldest = last - (KEPT_SECONDS - SECONDS)
    return min((end for end in ends if oldest <= end < last), default=last)


def spread_evenly(first: int, last: int, requests: int, denied: int) -> list[Second]:
    """Counts that were gathered from second `first` to `last`, as evenly as whole numbers go."""
    many = last - first + 1
    return [
        Second(
            first + i,
            requests * (i + 1) // many - requests * i // many,
            denied * (i + 1) // many - denied * i // many,
        )
        for i in range(many)
    ]
