"""Shares: which part of a limit a region has by its weight. Pure.

By the method of the largest remainder: each region gets what its weight gives it, rounded down, and the units that are
left go to those that lost most by rounding, in the order of their names. So shares add up to the limit exactly, and
every region works out the same ones without asking.
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
    """So many units, given out by weight.

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
    """What this region may admit of a limit; a limit of 0 if that is nothing. It is counted where the limit is."""
    return _share(limit, regions.here, tuple(regions.weights.items()))


@lru_cache(maxsize=4_096)
def _share(limit: Limit, here: str, weights: tuple[tuple[str, int], ...]) -> Limit:
    by_region = dict(weights)
    number = shares(limit.limit, by_region)[here]
    kind: type[Any] = type(limit)
    if isinstance(limit, TokenBucket | Adaptive):
        burst = shares(limit.burst, by_region)[here]
        if not number or not burst:  # There is no bucket of nothing.
            return FixedWindow(0, limit.window_us)
        made: Limit = kind(number, limit.window_us, burst, *limit.made_of[3:])
    else:
        made = kind(number, *limit.made_of[1:])
    return made
