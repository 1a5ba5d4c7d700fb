"""Safety: no more than the limit plus what the promise adds, in any span that the algorithm's guarantee covers.

Only what certainly happened counts, so clocks and late answers never cause a finding. It needs no receipts, so it works
for any limiter.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ...algorithms import CalendarWindow, FixedWindow, TokenBucket
from ..scene import counted_of
from .finding import Finding
from .sweep import NONE, NOWHERE, Added, Worst, flowing, widest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...algorithms import Limit
    from ..scene import Scene, Trail
    from ..spans import Extra, Span


class Excess(NamedTuple):
    """By how much one key exceeded its limit, and its bound."""

    rule: str
    key: str
    over_limit: int
    bound: int
    """What the promise allows beyond the limit, over the whole history."""
    over_bound: int
    where: Worst
    """The worst span, measured by the bound."""


def excesses(scene: Scene) -> list[Excess]:
    """For every key, the units beyond its limit, and beyond its bound; 0 if there are none."""
    return [one for trail in counted_of(scene) for one in _excess(scene, trail)]


def _excess(scene: Scene, trail: Trail) -> Iterator[Excess]:
    spans = scene.certain(trail)
    if not spans or trail.limit.name == "adaptive":
        return
    extras, standing = scene.extras(trail), scene.standing(trail)
    allowed = standing + sum(one.units for one in extras)
    bare = worst_of(trail.limit, spans, scene)
    bound = worst_of(trail.limit, spans, scene, extras, standing) if extras or standing else bare
    yield Excess(trail.rule, trail.key, max(0, bare.over), allowed, max(0, bound.over), bound)


def findings(found: list[Excess]) -> Iterator[Finding]:
    """Keys that exceeded their bound."""
    for one in found:
        if one.over_bound:
            worst = one.where
            yield Finding(
                "over-admission",
                f"{_amount(worst)}, {one.over_bound} more than the limit plus what faults may add",
                one.rule,
                one.key,
                worst.line,
                worst.at,
                one.over_bound,
            )


def _amount(worst: Worst) -> str:
    if worst.begin == worst.end:
        return f"{worst.admitted} units at one time"
    return f"{worst.admitted} units in {(worst.end - worst.begin) / 1e6:.6f} s"


def worst_of(
    limit: Limit,
    spans: Sequence[Span],
    scene: Scene,
    extras: Sequence[Extra] = (),
    standing: int = 0,
) -> Worst:
    """The worst span under one limit."""
    header = scene.header
    if not spans:
        return NONE
    if isinstance(limit, TokenBucket):
        return flowing(spans, limit.burst + standing, limit.limit, limit.window_us, extras)
    added, number, window_us = Added(extras), limit.limit + standing, limit.window_us
    if limit.name == "sliding_log":
        return widest(spans, window_us, lambda a, b: number + added.to(a, b))
    calendar = isinstance(limit, CalendarWindow)
    if not header.aligned and not calendar:  # Wherever windows begin, a span overlaps two of them.
        return widest(spans, window_us, lambda a, b: 2 * number + added.to(a, b))
    within = _within(limit, spans, header.epoch_us, added, number)
    if limit.name != "sliding_window":
        return within
    wide = header.epsilon_us

    def fading(a: int, b: int) -> int:
        """A span that ends at a fraction f of a window holds at most L·(1 + f)."""
        into_us = (b + 1 + header.epoch_us) % window_us
        sure = wide <= into_us < window_us - wide
        return (
            number + (number * (into_us + wide) // window_us if sure else number) + added.to(a, b)
        )

    return max(within, widest(spans, window_us, fading), key=lambda one: one.over)


def _within(limit: Limit, spans: Sequence[Span], epoch_us: int, added: Added, number: int) -> Worst:
    """The worst of the windows with fixed bounds; what may lie in two of them counts in none."""
    bounds_us = limit.bounds_us if isinstance(limit, FixedWindow) else None
    window_us = limit.window_us
    sums: dict[int, int] = defaultdict(int)
    last: dict[int, tuple[int, int, int]] = {}
    for one in spans:
        begin_us, end_us = one.t0 + epoch_us, one.t1 + epoch_us
        start_us, stop_us = bounds_us(begin_us) if bounds_us else _bounds(begin_us, window_us)
        if end_us < stop_us:
            sums[start_us] += one.cost
            last[start_us] = max(last.get(start_us, (0, 0, 0)), (one.t1, one.line, stop_us))
    worst = Worst(NOWHERE, 0, 0)
    for start_us, total in sums.items():
        at, line, stop_us = last[start_us]
        begin, end = start_us - epoch_us, stop_us - epoch_us
        over = total - number - added.to(begin, end - 1)
        if over > worst.over:
            worst = Worst(over, begin, end, total, line, at)
    return worst


def _bounds(at_us: int, window_us: int) -> tuple[int, int]:
    start_us = at_us - at_us % window_us
    return start_us, start_us + window_us
