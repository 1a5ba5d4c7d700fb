"""Traffic figures from ten one-second buckets. Pure.

A node counts in plain integers and reads them once a second, so the count of a second is a difference of two readings.
After a late reading, the difference covers several seconds and is spread over them: the sum is always right, and no
second looks like a burst because the node was busy.
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
"""How many seconds a node reports: ten are used, and the newest may arrive late."""
ENOUGH: Final = 20
"""With fewer requests in all buckets, the busiest one is no evidence of a burst."""


class TrafficRates(NamedTuple):
    """Traffic rates over all nodes."""

    req_per_sec: float
    burst_ratio: float
    """The busiest second relative to the mean; 0 if there was too little traffic."""
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
    """The busiest second relative to the mean, which is over all of them but for two exceptions.

    Traffic that has just begun is no burst: while it continues, the mean is over the seconds since it began. It
    continues while the last second has at least half of that mean. When it falls off, the silence before it counts
    again.

    Traffic that ends, or falls off, is no burst either. It ends with the last second that has at least half of the
    busiest one. If it was already there when the ten seconds began, the mean is over the seconds until its end; it was
    there if one of the first two has at least half of that mean. Later seconds count only if they raise the mean.
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
    """A node's counts of its last seconds, up to `last`: requests and denied alternate."""

    last: int = 0
    counts: tuple[int, ...] = (0,) * (2 * KEPT_SECONDS)


class SecondBuckets:
    """Splits growing counters into the last `KEPT_SECONDS` seconds. Its size never changes."""

    __slots__ = ("_counted", "_seconds", "counted_to")

    def __init__(self) -> None:
        self.counted_to = -1
        """The last second that has been counted; negative before `begin`."""
        self._counted = NONE_YET
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)

    def begin(self, totals: Totals, last: int) -> None:
        """Start counting after the second `last`: everything before belongs to no bucket."""
        self._counted, self.counted_to = totals, last

    def note(self, totals: Totals, last: int) -> None:
        """Spread what was counted since the previous call over the seconds up to `last`."""
        if self.counted_to < 0 or last <= self.counted_to:
            return  # Not begun, or this second is counted already.
        first = max(self.counted_to + 1, last - KEPT_SECONDS + 1)
        requests = totals.requests - self._counted.requests
        denied = totals.denied - self._counted.denied
        self._seconds.extend(spread_evenly(first, last, requests, denied))
        self.begin(totals, last)

    def strip(self) -> SecondCounts:
        """The last seconds."""
        return strip_of(self._seconds, max(0, self.counted_to))


def strip_of(seconds: Iterable[Second], last: int) -> SecondCounts:
    """These seconds as a strip that ends with `last`; missing seconds are zeros."""
    known = {second.at: (second.requests, second.denied) for second in seconds}
    span = range(last - KEPT_SECONDS + 1, last + 1)
    return SecondCounts(last, tuple(count for at in span for count in known.get(at, (0, 0))))


def last_seconds(strips: Iterable[SecondCounts], last: int) -> tuple[Second, ...]:
    """`SECONDS` buckets that end with `last`, summed over nodes; other seconds are left out.

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
    """The newest second up to `last` that every node has reported, whose strips end with `ends`.

    A node that is a little late shifts the ten seconds back by as much, because a second without its counts would make
    the rest look like a burst. Strips are long enough for that (`KEPT_SECONDS`). A node that has been silent for longer
    is not waited for: what it has reported still counts, and the rest is not guessed.
    """
    oldest = last - (KEPT_SECONDS - SECONDS)
    return min((end for end in ends if oldest <= end < last), default=last)


def spread_evenly(first: int, last: int, requests: int, denied: int) -> list[Second]:
    """Spread counts over the seconds from `first` to `last`, as evenly as whole numbers allow."""
    many = last - first + 1
    return [
        Second(
            first + i,
            requests * (i + 1) // many - requests * i // many,
            denied * (i + 1) // many - denied * i // many,
        )
        for i in range(many)
    ]
