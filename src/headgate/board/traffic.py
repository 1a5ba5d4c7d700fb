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


def last_seconds(rows: Iterable[tuple[int, int, int]], last: int) -> tuple[Second, ...]:
    """`SECONDS` buckets that end with `last`, summed over nodes; what lies outside is left out."""
    first = last - SECONDS + 1
    requests, denied = [0] * SECONDS, [0] * SECONDS
    for at, its_requests, its_denied in rows:
        if first <= at <= last:
            requests[at - first] += its_requests
            denied[at - first] += its_denied
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
