"""Counters that merge: what each region has admitted of a limit, for all regions to know. Pure.

A counter belongs to one **actor**, a node in one life of its region's store, and only grows. It is told by its absolute
total, and whoever hears of it keeps the largest: messages may be lost, doubled, late and out of order, and in the end
everybody has the same totals. There is one counter for each key, limit and **slice**, a tenth of the limit's window, so
that it is known when units were admitted: a message that comes late is charged only as far as it still counts.

What a counter grew by is charged to the engine by force (`charges`), except where the engine knows it already: a
region does not charge its own admissions, unless its store has lost them. A store that was emptied has another epoch.
Counters of this region under an earlier epoch, which other regions have kept, are charged like theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms import FixedWindow, SlidingLog, SlidingWindow, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..algorithms import Limit

SLICES: Final = 10
"""How many parts of a window are told apart."""
MAX_COUNTERS: Final = 1_000_000
"""How many counters a region keeps in memory; the one that changed longest ago goes first."""
GRACE_US: Final = 5_000_000
"""How far clocks of two regions may differ before a counter is forgotten too early, or refused for being early."""


class CounterName(NamedTuple):
    """What is counted."""

    rule: str | None
    key: str
    limit: Limit
    slice_us: int
    """When the slice begins, by the clock of the store that admitted."""


class Actor(NamedTuple):
    """Who counts: a process, in one life of the store of its region."""

    region: str
    epoch: str
    node: str


class CounterTotal(NamedTuple):
    """A counter, and how far it has grown."""

    name: CounterName
    actor: Actor
    total: int


class Growth(NamedTuple):
    """By how much a counter has grown since it was last heard of."""

    name: CounterName
    actor: Actor
    units: int


class Charged(NamedTuple):
    """What is charged."""

    rule: str | None
    key: str
    limit: Limit
    came_us: int = 0
    """When its units were admitted, where each has a time of its own: in a log. Else 0."""


def slice_of(limit: Limit, now_us: int) -> int:
    """When the slice began that `now_us` lies in."""
    return slice_bounds_us(limit, now_us)[0]


def slice_bounds_us(limit: Limit, now_us: int) -> tuple[int, int]:
    """The start and the end of the slice that `now_us` lies in. A slice lies in one window."""
    start_us, end_us = _window_bounds(limit, now_us)
    length_us = slice_length_us(limit)
    slice_us = start_us + (now_us - start_us) // length_us * length_us
    return slice_us, min(slice_us + length_us, end_us)


def slice_length_us(limit: Limit) -> int:
    """How long a slice is, at most."""
    return max(1, -(-limit.window_us // SLICES))


def _window_bounds(limit: Limit, now_us: int) -> tuple[int, int]:
    if isinstance(limit, FixedWindow):  # Calendars have windows of their own.
        return limit.bounds_us(now_us)
    start_us = now_us - now_us % limit.window_us
    return start_us, start_us + limit.window_us


def forget_at_us(name: CounterName) -> int:
    """When a counter does not count any more, whatever the algorithm: nothing later can be told of it."""
    limit = name.limit
    burst = getattr(limit, "burst", 0)
    lasts_us = limit.window_us * (-(-burst // max(1, limit.limit)) if burst else 1)
    return name.slice_us + 2 * max(lasts_us, limit.window_us) + GRACE_US


def is_early(name: CounterName, now_us: int) -> bool:
    """Whether a slice has not begun here: its window may not have, either, so it has to be told again."""
    return name.slice_us > now_us


class Replica:
    """What one region knows of all counters: the largest total of each. Redis keeps it by `lua/merge.lua`."""

    def __init__(self, max_counters: int = MAX_COUNTERS) -> None:
        self._max_counters = max_counters
        self._totals: dict[tuple[CounterName, Actor], int] = {}
        self._changed: dict[tuple[CounterName, Actor], int] = {}
        """By the number of the change; the order of the dictionary is the order of the changes."""
        self._changes = 0

    def __len__(self) -> int:
        return len(self._totals)

    def merge(self, entries: Iterable[CounterTotal], now_us: int) -> list[Growth]:
        """Keep what is larger than what was known, and say by how much."""
        grown = []
        for name, actor, total in entries:
            if forget_at_us(name) <= now_us:  # It may have been known, and forgotten.
                continue
            known = self._totals.get((name, actor), 0)
            if total > known:
                grown.append(Growth(name, actor, total - known))
                self._totals[name, actor] = total
                self._changes += 1
                self._changed.pop((name, actor), None)
                self._changed[name, actor] = self._changes
        # One that is told again after that is charged again: too much, rather than too little.
        while len(self._totals) > self._max_counters:
            oldest = next(iter(self._changed))
            del self._totals[oldest], self._changed[oldest]
        return grown

    def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """Counters that changed after a change, the oldest change first, and the number of the last one."""
        found: list[CounterTotal] = []
        last = since
        for (name, actor), number in self._changed.items():
            if number > since:
                if len(found) >= most:
                    break
                found.append(CounterTotal(name, actor, self._totals[name, actor]))
                last = number
        return found, last

    def forget(self, now_us: int) -> None:
        """Drop counters that do not count any more."""
        over = [one for one in self._totals if forget_at_us(one[0]) <= now_us]
        for one in over:
            del self._totals[one], self._changed[one]

    def entries(self) -> Iterator[CounterTotal]:
        """All counters."""
        for (name, actor), total in self._totals.items():
            yield CounterTotal(name, actor, total)


class OwnCounts:
    """What this process has admitted: the totals of the slices that still grow."""

    def __init__(self) -> None:
        self._totals: dict[CounterName, int] = {}
        self._former: list[CounterTotal] = []
        """What it counted in earlier lives of the store."""

    def __len__(self) -> int:
        return len(self._totals)

    def add(self, grown: Iterable[tuple[CounterName, int]]) -> list[CounterName]:
        """Count more; the names of what has grown."""
        names = []
        for name, units in grown:
            self._totals[name] = self._totals.get(name, 0) + units
            names.append(name)
        return names

    def entries(self, names: Iterable[CounterName], actor: Actor) -> list[CounterTotal]:
        """The totals of these."""
        return [CounterTotal(name, actor, self._totals[name]) for name in names]

    def forget(self, now_us: int) -> None:
        """Drop slices that are over: they have been told, and do not grow any more."""
        self._totals = {
            name: total for name, total in self._totals.items() if _may_grow(name, now_us)
        }
        self._former = [one for one in self._former if _may_grow(one.name, now_us)]

    def names(self) -> list[CounterName]:
        """All that still grows."""
        return list(self._totals)

    def clear(self) -> None:
        """Begin at zero, for another actor."""
        self._totals = {}

    def retire(self, actor: Actor) -> list[CounterTotal]:
        """Begin at zero, because the store has lost everything; what to tell it of all lives before.

        Other regions may not have heard of it when the store is lost again.
        """
        self._former += self.entries(self._totals, actor)
        self._totals = {}
        return list(self._former)


def _may_grow(name: CounterName, now_us: int) -> bool:
    return name.slice_us + slice_length_us(name.limit) + GRACE_US > now_us


def foreign(grown: Iterable[Growth], here: str, epoch: str) -> list[Growth]:
    """Growth that the store of this region does not know: of other regions, and of its own under another epoch."""
    return [one for one in grown if not (one.actor.region == here and one.actor.epoch == epoch)]


def charges(grown: Iterable[Growth], now_us: int) -> dict[Charged, int]:
    """What to charge by force for growth, as far as it still counts at this time."""
    by_state: dict[Charged, dict[int, int]] = {}
    for (rule, key, limit, slice_us), _, units in grown:
        slices = by_state.setdefault(Charged(rule, key, limit), {})
        slices[slice_us] = slices.get(slice_us, 0) + units
    counted: dict[Charged, int] = {}
    for state, slices in by_state.items():
        if isinstance(state.limit, SlidingLog):
            counted.update(_still_logged(state, slices, now_us))
        else:
            counted[state] = _still_counts(state.limit, slices, now_us)
    return {state: units for state, units in counted.items() if units > 0}


def _still_logged(
    state: Charged, slices: dict[int, int], now_us: int
) -> Iterator[tuple[Charged, int]]:
    """Units of a log as of the ends of their slices: each is there for a window, and at most a slice more."""
    length_us = slice_length_us(state.limit)
    for slice_us, units in slices.items():
        came_us = slice_us + length_us
        if came_us + state.limit.window_us > now_us:
            yield state._replace(came_us=came_us), units


def _still_counts(limit: Limit, slices: dict[int, int], now_us: int) -> int:
    """How many of these units count now. Rounded up: too much is charged rather than too little."""
    if isinstance(limit, TokenBucket):
        return _left_in_bucket(limit, slices, now_us)
    window_us = limit.window_us
    start_us, _ = _window_bounds(limit, now_us)
    units = sum(one for slice_us, one in slices.items() if slice_us >= start_us)
    if isinstance(limit, SlidingWindow):
        before = sum(
            one for slice_us, one in slices.items() if start_us - window_us <= slice_us < start_us
        )
        units += -(-before * (start_us + window_us - now_us) // window_us)
    return units


def _left_in_bucket(limit: TokenBucket, slices: dict[int, int], now_us: int) -> int:
    """What these units, taken at the ends of their slices from a bucket of their own, have left in it; a burst at most.

    Two buckets together are never emptier than one that all units went into, so this is never too little.
    """
    length_us = slice_length_us(limit)
    level = at_us = 0  # In units times microseconds of the window, which keeps it exact.
    for slice_us, units in sorted(slices.items()):
        end_us = min(slice_us + length_us, now_us)
        level = max(0, level - (end_us - at_us) * limit.limit) + units * limit.window_us
        at_us = end_us
    level = max(0, level - (now_us - at_us) * limit.limit)
    return min(-(-level // limit.window_us), limit.burst)
