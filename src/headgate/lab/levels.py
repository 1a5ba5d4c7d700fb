"""Levels: how much of its limit a key had in use over time, for the picture.

What is drawn depends on the limit: a window's count, the units in a sliding window, a bucket's backlog in units, or the
slots held. An admission counts from when its client knew it. The level is sampled in columns, each with its highest
value, so no peak is lost.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..algorithms import Concurrency, FixedWindow, TokenBucket
from .checks.slots import holdings
from .checks.sweep import Added

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .scene import Scene, Trail


class Column(NamedTuple):
    """One column of a picture."""

    level: float
    """The highest level in it."""
    bound: float
    """What the promise allows at that time."""
    allowed: int
    by_policy: int
    denied: int
    unknown: int


class Levels(NamedTuple):
    """A key's level over time, in columns of equal width."""

    begin: int
    end: int
    limit: float
    words: str
    columns: list[Column]


def levels_of(scene: Scene, trail: Trail, columns: int) -> Levels:
    """The levels of one key, ready to draw."""
    begin, lasts = scene.begin, scene.end - scene.begin + 1

    def column(at: int) -> int:
        return min(columns - 1, max(0, (at - begin) * columns // lasts))

    edges = [begin + place * lasts // columns for place in range(columns + 1)]
    tops = [0.0] * columns
    for at, until, level in _levels(scene, trail):
        first, last = column(at), column(until)
        tops[first] = max(tops[first], level.at_time(at))
        for place in range(first + 1, last + 1):
            tops[place] = max(tops[place], level.at_time(edges[place]))
    counts = [[0, 0, 0, 0] for _ in range(columns)]
    for one in trail.operations:
        if one.f in ("check", "reserve", "acquire") and one.type != "fail":
            policy = one.source in ("fallback", "open", "closed")
            kind = 3 if one.type == "info" else 2 if one.type == "deny" else 1 if policy else 0
            counts[column(one.t1)][kind] += max(0, one.cost)
    extras = Added(scene.extras(trail))
    number, standing = _limit(trail), scene.standing(trail)
    # A bucket's level depends on everything that ever came, and so does its possible content.
    bucket = isinstance(trail.limit, TokenBucket)
    window_us = lasts if bucket else trail.limit.window_us
    found = [
        Column(
            top,
            number + standing + extras.to(edges[i] - window_us, edges[i + 1]),
            *counts[i],
        )
        for i, top in enumerate(tops)
    ]
    return Levels(begin, begin + lasts, number, _words(trail), found)


def _limit(trail: Trail) -> int:
    return trail.limit.burst if isinstance(trail.limit, TokenBucket) else trail.limit.limit


def _words(trail: Trail) -> str:
    limit = trail.limit
    if isinstance(limit, Concurrency):
        return "slots held"
    if isinstance(limit, TokenBucket):
        return "units taken from the bucket"
    window = f"{limit.window_us / 1e6:g} s"
    return (
        f"units admitted in the window of {window}"
        if isinstance(limit, FixedWindow)
        else f"units admitted in the last {window}"
    )


class Draining(NamedTuple):
    """A level that decreases by itself."""

    at: int
    units: float
    per_us: float

    def at_time(self, now: int) -> float:
        """What is left of it at that time."""
        return max(0.0, self.units - (now - self.at) * self.per_us)


def _levels(scene: Scene, trail: Trail) -> Iterator[tuple[int, int, Draining]]:
    """Periods of time, and the level in each."""
    limit = trail.limit
    if isinstance(limit, Concurrency):
        yield from _held(scene, trail)
        return
    given = sorted((one.t1, one.cost) for one in scene.certain(trail))
    if not given:
        return
    ends = [at for at, _ in given[1:]] + [scene.end]
    if isinstance(limit, TokenBucket):
        level = Draining(0, 0.0, limit.limit / limit.window_us)
        for (at, cost), until in zip(given, ends, strict=True):
            level = Draining(at, level.at_time(at) + cost, level.per_us)
            yield at, until, level
    elif isinstance(limit, FixedWindow) and scene.header.aligned:
        epoch_us, stop, total = scene.header.epoch_us, 0, 0
        for (at, cost), until in zip(given, ends, strict=True):
            if at >= stop:
                stop, total = limit.bounds_us(at + epoch_us)[1] - epoch_us, 0
            total += cost
            yield at, min(until, stop - 1), Draining(at, total, 0.0)
    else:
        yield from _sliding(given, limit.window_us)


def _sliding(
    given: Iterable[tuple[int, int]], window_us: int
) -> Iterator[tuple[int, int, Draining]]:
    steps = sorted([*given, *((at + window_us, -cost) for at, cost in given)])
    total = 0
    waiting = deque(steps)
    while waiting:
        at, cost = waiting.popleft()
        total += cost
        until = waiting[0][0] if waiting else at
        yield at, until, Draining(at, total, 0.0)


def _held(scene: Scene, trail: Trail) -> Iterator[tuple[int, int, Draining]]:
    held = holdings(scene, trail)
    steps = sorted(
        [*((one.begin, one.cost) for one in held), *((one.end, -one.cost) for one in held)]
    )
    total = 0
    for place, (at, cost) in enumerate(steps):
        total += cost
        until = steps[place + 1][0] if place + 1 < len(steps) else at
        yield at, until, Draining(at, total, 0.0)
