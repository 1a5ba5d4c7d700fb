"""Traffic: what ten one-second buckets say. Pure.

A node counts in plain integers and looks at them once a second, so what it has to say about a second is a difference of two
counts. When it looks late, the difference belongs to several seconds and is spread over them: the sum is always right,
and no second looks like a burst because the node was busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .model import Second

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECONDS: Final = 10
KEPT_SECONDS: Final = 12
"""How many seconds a node tells of: ten are read, and their last pieces come late."""
ENOUGH: Final = 20
"""Below that many requests in all buckets the busiest one says nothing about bursts."""


class Figures(NamedTuple):
    """How traffic has been, over all nodes."""

    req_per_sec: float
    burst_ratio: float
    """The busiest second against the mean of all; 0 when there was too little to tell."""
    deny_rate: float
    """Between 0 and 1."""


def figures_of(seconds: Sequence[Second]) -> Figures:
    """Mean rate, burst ratio and deny rate of these seconds."""
    requests = sum(one.requests for one in seconds)
    if not requests:
        return Figures(0.0, 0.0, 0.0)
    mean = requests / len(seconds)
    busiest = max(one.requests for one in seconds)
    ratio = busiest / mean if requests >= ENOUGH else 0.0
    return Figures(mean, ratio, sum(one.denied for one in seconds) / requests)


class Strip(NamedTuple):
    """What a node counted in each of its last seconds, the last being `last`: requests and denied in turn."""

    last: int = 0
    counts: tuple[int, ...] = (0,) * (2 * KEPT_SECONDS)


def strip_of(seconds: Iterable[Second], last: int) -> Strip:
    """These seconds as a strip that ends with `last`; those in which nothing was noted are zeros."""
    known = {second.at: (second.requests, second.denied) for second in seconds}
    span = range(last - KEPT_SECONDS + 1, last + 1)
    return Strip(last, tuple(count for at in span for count in known.get(at, (0, 0))))


def last_seconds(strips: Iterable[Strip], last: int) -> tuple[Second, ...]:
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


def spread(first: int, last: int, requests: int, denied: int) -> list[Second]:
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
