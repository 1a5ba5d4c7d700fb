"""Liveness: no denial while there was certainly room.

A denial is false if the cost would have fitted at every moment between `t0` and `t1`, counting everything that the
engine may have counted by then: what was allowed, and what is unknown. So findings are certain here, too, and a denial
that could have been right is accepted. Denials during a fault, and those of a policy, are ignored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from ...algorithms import FixedWindow, TokenBucket
from ...algorithms.token_bucket import GRAIN
from ..limits import memory_us
from ..scene import OF_POLICY, counted_of
from ..spans import Span, Sums
from .finding import Finding
from .sweep import NOWHERE, Suffixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...algorithms import Limit
    from ..history import Operation
    from ..scene import Scene, Trail

BLIND: Final = frozenset(("exponential_backoff", "adaptive"))
"""Algorithms whose denials depend on more than admissions: only a replay can judge them."""
UNASKED: Final = frozenset((*OF_POLICY, "shadow"))
"""Sources of admissions that a store is charged for without asking it."""
MOST_WINDOWS: Final = 1_000
"""A denial that took longer than this many windows is ignored."""
MOST_RESETS: Final = 100


def findings(scene: Scene) -> Iterator[Finding]:
    """Every false denial."""
    for trail in counted_of(scene):
        if trail.limit.name in BLIND:
            continue
        judged_from = _judged_from(scene, trail.limit)
        denials = [one for one in scene.denials(trail) if scene.looks_from(one) >= judged_from]
        for one, room in _false(scene, trail, denials):
            yield Finding(
                "false denial",
                f"{one.cost} of {trail.limit.limit} denied, but {room} were certainly free",
                one.rule,
                one.key,
                one.line,
                one.t0,
            )


def _judged_from(scene: Scene, limit: Limit) -> int:
    if scene.header.fresh:
        return scene.begin
    return _complete_from(scene) + memory_us(limit)


def _complete_from(scene: Scene) -> int:
    """From when on a history that begins in the middle contains every call.

    A record is written when its call ends. So calls that are missing may have been carried out until the first call
    ended, not only until it began.
    """
    return min(one.t1 for one in scene.operations) + scene.header.epsilon_us


def _false(
    scene: Scene, trail: Trail, denials: Sequence[Operation]
) -> Iterator[tuple[Operation, int]]:
    if not denials:
        return
    possible = scene.possible(trail)
    if isinstance(trail.limit, TokenBucket) and not scene.header.fresh:
        # It may have been full, and a bucket that is never idle does not recover from that by time alone.
        full_at = _complete_from(scene)
        possible.append(Span(full_at, full_at, trail.limit.burst))
    if isinstance(trail.limit, TokenBucket):
        possible += _not_drained(scene, trail, trail.limit, possible)
    groups = _by_reset(scene, trail, denials)
    if len(groups) > MOST_RESETS:
        return
    for since, members in groups:
        spans = [one for one in possible if one.t1 >= since]
        if isinstance(trail.limit, TokenBucket):
            yield from _bucket(scene, trail.limit, spans, members)
        else:
            yield from _windows(scene, trail.limit, spans, members)


def _not_drained(
    scene: Scene, trail: Trail, limit: TokenBucket, possible: Sequence[Span]
) -> list[Span]:
    """Units that did not flow back while the key's time stood still, because a clock had stepped.

    They are as good as taken: a bucket that is never idle carries them along. There are at most as many as would have
    flowed back in that time, and no more than the bucket held: its burst, and what it was charged without asking.
    """
    asked = {
        one.line
        for one in trail.operations
        if one.f in ("check", "reserve", "lease") and one.source not in UNASKED
    }
    found = []
    for fault in scene.faults:
        if fault.fault == "clock_step":
            until = scene.held_until(trail, fault)
            flow = -(-limit.limit * (until - fault.t0) // limit.window_us)
            forced = sum(one.cost for one in possible if one.t0 <= until and one.line not in asked)
            found.append(Span(fault.t0, until, min(flow, limit.burst + forced)))
    return found


def _by_reset(
    scene: Scene, trail: Trail, denials: Sequence[Operation]
) -> list[tuple[int, list[Operation]]]:
    """Denials by the last reset before them that no fault has undone: what ended before it began does not count."""
    resets = sorted(
        (one.t1, one.t0) for one in trail.operations if one.f == "reset" and one.type == "allow"
    )
    ends = [end for end, _ in resets]
    groups: dict[int, list[Operation]] = {}
    for one in denials:
        place = bisect_right(ends, scene.looks_from(one))
        before = reversed(resets[:place])
        since = next(
            (begin for end, begin in before if not scene.may_forget(begin, end, by=one.t1)), NOWHERE
        )
        groups.setdefault(since, []).append(one)
    return list(groups.items())


def _windows(
    scene: Scene, limit: Limit, spans: Sequence[Span], denials: Sequence[Operation]
) -> Iterator[tuple[Operation, int]]:
    sums = Sums(spans)
    header = scene.header
    for one in denials:
        begin, end = scene.looks_from(one), one.t1 + header.epsilon_us
        if limit.name == "sliding_window":  # Two counters hold at most two windows' worth.
            most = sums.meeting(begin - 2 * limit.window_us, end)
        elif isinstance(limit, FixedWindow) and header.aligned:
            if (end - begin) // limit.window_us > MOST_WINDOWS:
                continue
            most = 0
            at_us = begin + header.epoch_us
            while at_us <= end + header.epoch_us:
                start_us, stop_us = limit.bounds_us(at_us)
                inside = sums.meeting(
                    start_us - header.epoch_us, min(stop_us - 1 - header.epoch_us, end)
                )
                most, at_us = max(most, inside), stop_us
        else:
            most = sums.meeting(begin - limit.window_us, end)
        room = limit.limit - most
        if one.cost <= room:
            yield one, room


def _bucket(
    scene: Scene, limit: TokenBucket, spans: Sequence[Span], denials: Sequence[Operation]
) -> Iterator[tuple[Operation, int]]:
    """The largest possible backlog between `t0` and `t1`, in the bucket's grains."""
    emission, capacity = limit.emission, limit.capacity
    if not emission:
        return
    begins = [scene.looks_from(one) for one in denials]
    moments = sorted({*begins, *(one.t0 for one in spans)})
    backlogs = _backlogs(spans, moments, emission)
    tops = Tops(backlogs)
    for one, begin in zip(denials, begins, strict=True):
        first = bisect_left(moments, begin)
        last = bisect_right(moments, one.t1 + scene.header.epsilon_us)
        room = (capacity - tops.largest(first, last)) // emission
        if one.cost <= min(room, limit.burst):
            yield one, room


def _backlogs(spans: Sequence[Span], moments: Sequence[int], emission: int) -> list[int]:
    """For each moment, the backlog if everything that may have come before it came as late as possible."""
    places = sorted({*moments, *(one.t1 for one in spans)})
    tree = Suffixes(len(places))
    coming = sorted(spans, key=lambda one: one.t0)
    found, at, begun = [], 0, 0
    for moment in moments:
        while begun < len(places) and places[begun] <= moment:
            tree.begin(begun, places[begun] * GRAIN)
            begun += 1
        while at < len(coming) and coming[at].t0 <= moment:
            tree.add(bisect_left(places, coming[at].t1), coming[at].cost * emission)
            at += 1
        found.append(tree.largest() - moment * GRAIN)
    return found


class Tops:
    """Range maximum queries."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._levels = [list(numbers)]
        width = 1
        while 2 * width <= len(numbers):
            below = self._levels[-1]
            self._levels.append(
                [max(below[i], below[i + width]) for i in range(len(below) - width)]
            )
            width *= 2

    def largest(self, first: int, last: int) -> int:
        """The largest from `first` to just before `last`; the range must not be empty."""
        level = (last - first).bit_length() - 1
        row = self._levels[level]
        return max(row[first], row[last - (1 << level)])
