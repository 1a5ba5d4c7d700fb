"""Shares: a region's part of a limit, by weight. Pure.

By the largest remainder method: each region gets its exact part rounded down, and the units left over go to the regions
that lost most by rounding, in the order of their names. So shares add up to the limit exactly, and every region
computes the same ones without communication.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..algorithms import Adaptive, FixedWindow, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..algorithms import Limit
    from .model import Regions


def shares(units: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Units distributed by weight.

    >>> shares(100, {"asia": 1, "eu": 1, "us": 1})
    {'asia': 34, 'eu': 33, 'us': 33}
    """
    total = sum(weights.values())
    given = {name: units * weight // total for name, weight in weights.items()}
    by_loss = sorted(weights, key=lambda name: (-(units * weights[name] % total), name))
    for name in by_loss[: units - sum(given.values())]:
        given[name] += 1
    return given


def share_of(limit: Limit, regions: Regions) -> Limit:
    """This region's share of a limit; a limit of 0 if it gets nothing. It is counted in the same place as the limit."""
    return _share(limit, regions.here, tuple(regions.weights.items()))


@lru_cache(maxsize=4_096)
def _share(limit: Limit, here: str, weights: tuple[tuple[str, int], ...]) -> Limit:
    by_region = dict(weights)
    number = shares(limit.limit, by_region)[here]
    kind: type[Any] = type(limit)
    if isinstance(limit, TokenBucket | Adaptive):
        burst = shares(limit.burst, by_region)[here]
        if not number or not burst:  # There is no empty bucket.
            return FixedWindow(0, limit.window_us)
        made: Limit = kind(number, limit.window_us, burst, *limit.made_of[3:])
    else:
        made = kind(number, *limit.made_of[1:])
    return made
