"""Counters that merge: what each region has admitted of a limit, shared with all regions. Pure.

A counter belongs to one **actor**, a node during one epoch of its region's store, and only grows. It is sent as an
absolute total, and receivers keep the largest: messages may be lost, duplicated, late or out of order, and in the end
all regions have the same totals. There is one counter per key, limit and **slice**, a tenth of the limit's window, so
that the time of admission is known: a late message is charged only as far as it still counts.

The growth of a counter is charged to the engine by force (`charges`), unless the engine knows it already: a region does
not charge its own admissions, unless its store has lost them. A store that was emptied has a new epoch. Counters of
this region from an earlier epoch, which other regions have kept, are charged like theirs.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..algorithms import FixedWindow, SlidingLog, SlidingWindow, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..algorithms import Limit

SLICES: Final = 10
"""How many slices a window has."""
MAX_COUNTERS: Final = 1_000_000
"""How many counters a region keeps in memory; the least recently changed is dropped first."""
GRACE_US: Final = 5_000_000
"""How far the clocks of two regions may differ before a counter is dropped too early, or refused as early."""


class CounterName(NamedTuple):
    """What a counter counts."""

    rule: str | None
    key: str
    limit: Limit
    slice_us: int
    """The start of the slice, by the clock of the store that admitted."""


class Actor(NamedTuple):
    """Who counts: a process, during one epoch of its region's store."""

    region: str
    epoch: str
    node: str


Counter: TypeAlias = tuple[CounterName, Actor]


class CounterTotal(NamedTuple):
    """A counter and its total."""

    name: CounterName
    actor: Actor
    total: int


class Growth(NamedTuple):
    """By how much a counter has grown since the last message."""

    name: CounterName
    actor: Actor
    units: int


class News(NamedTuple):
    """Totals that were not known before, and what they have grown by."""

    entries: list[CounterTotal]
    grown: list[Growth]


class Charged(NamedTuple):
    """The target of a charge."""

    rule: str | None
    key: str
    limit: Limit
    came_us: int = 0
    """When its units were admitted, for a log, which has a time per unit. Otherwise 0."""


def slice_of(limit: Limit, now_us: int) -> int:
    """The start of the slice that contains `now_us`."""
    return slice_bounds_us(limit, now_us)[0]


def slice_bounds_us(limit: Limit, now_us: int) -> tuple[int, int]:
    """The start and end of the slice that contains `now_us`. A slice never spans two windows."""
    start_us, end_us = _window_bounds(limit, now_us)
    length_us = slice_length_us(limit)
    slice_us = start_us + (now_us - start_us) // length_us * length_us
    return slice_us, min(slice_us + length_us, end_us)


def slice_length_us(limit: Limit) -> int:
    """The maximum length of a slice."""
    return max(1, -(-limit.window_us // SLICES))


def _window_bounds(limit: Limit, now_us: int) -> tuple[int, int]:
    if isinstance(limit, FixedWindow):  # Calendars have their own windows.
        return limit.bounds_us(now_us)
    start_us = now_us - now_us % limit.window_us
    return start_us, start_us + limit.window_us


def forget_at_us(name: CounterName) -> int:
    """When a counter stops counting with any algorithm: it will not change after that."""
    limit = name.limit
    burst = getattr(limit, "burst", 0)
    lasts_us = limit.window_us * (-(-burst // max(1, limit.limit)) if burst else 1)
    return name.slice_us + 2 * max(lasts_us, limit.window_us) + GRACE_US


def is_early(name: CounterName, now_us: int) -> bool:
    """Whether a slice has not begun here: its window may not have either, so the sender must repeat it later."""
    return name.slice_us > now_us


class Replica:
    """One region's view of all counters: the largest total of each. In Redis, `lua/merge.lua` does the same."""

    def __init__(self, max_counters: int = MAX_COUNTERS) -> None:
        self._max_counters = max_counters
        self._totals: dict[Counter, int] = {}
        self._changed: dict[Counter, int] = {}
        """By the number of the change, in the order of the changes."""
        self._changes = 0
        self._ends: dict[int, dict[Counter, None]] = {}
        """When counters stop counting; the slices of all keys end at the same times."""

    def __len__(self) -> int:
        return len(self._totals)

    def __contains__(self, counter: Counter) -> bool:
        return counter in self._totals

    def total(self, counter: Counter) -> int:
        """The known total of a counter; 0 for an unknown one."""
        return self._totals.get(counter, 0)

    def news(self, entries: Iterable[CounterTotal], now_us: int) -> News:
        """The totals larger than the known ones, and their growth; nothing is kept."""
        news, known = News([], []), dict[Counter, int]()
        for one in entries:
            name, actor, total = one
            if forget_at_us(name) <= now_us:  # It may have been known, and dropped.
                continue
            before = known.get((name, actor)) or self.total((name, actor))
            if total > before:
                news.entries.append(one)
                news.grown.append(Growth(name, actor, total - before))
                known[name, actor] = total
        return news

    def merge(self, entries: Iterable[CounterTotal], now_us: int) -> list[Growth]:
        """Keep totals larger than the known ones, and return their growth."""
        news = self.news(entries, now_us)
        for name, actor, total in news.entries:
            counter = (name, actor)
            self._totals[counter] = total
            self._changes += 1
            self._changed.pop(counter, None)
            self._changed[counter] = self._changes
            self._ends.setdefault(forget_at_us(name), {})[counter] = None
        # A dropped counter that comes again is charged again: rather too much than too little.
        while len(self._totals) > self._max_counters:
            oldest = next(iter(self._changed))
            del self._totals[oldest], self._changed[oldest]
            del self._ends[forget_at_us(oldest[0])][oldest]
        return news.grown

    def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """Counters changed after `since`, oldest change first, and the number of the last change."""
        later = takewhile(lambda one: one[1] > since, reversed(self._changed.items()))
        first = list(later)[::-1][:most]
        found = [CounterTotal(*counter, self._totals[counter]) for counter, _ in first]
        return found, first[-1][1] if first else since

    def forget(self, now_us: int) -> list[Counter]:
        """Drop counters that have stopped counting, and return them."""
        over = [end_us for end_us in self._ends if end_us <= now_us]
        forgotten = [counter for end_us in over for counter in self._ends.pop(end_us)]
        for counter in forgotten:
            del self._totals[counter], self._changed[counter]
        return forgotten

    def entries(self) -> Iterator[CounterTotal]:
        """All counters."""
        for (name, actor), total in self._totals.items():
            yield CounterTotal(name, actor, total)

    def entries_of(self, key: str) -> list[CounterTotal]:
        """All counters of a key."""
        return [one for one in self.entries() if one.name.key == key]


class OwnCounts:
    """What this process has admitted: the totals of slices that can still grow."""

    def __init__(self) -> None:
        self._totals: dict[CounterName, int] = {}
        self._former: list[CounterTotal] = []
        """Totals from earlier epochs of the store."""

    def __len__(self) -> int:
        return len(self._totals)

    def add(self, grown: Iterable[tuple[CounterName, int]]) -> list[CounterName]:
        """Add units; returns the names of the counters that have grown."""
        names = []
        for name, units in grown:
            self._totals[name] = self._totals.get(name, 0) + units
            names.append(name)
        return names

    def entries(self, names: Iterable[CounterName], actor: Actor) -> list[CounterTotal]:
        """The totals of these counters."""
        return [CounterTotal(name, actor, self._totals[name]) for name in names]

    def forget(self, now_us: int) -> None:
        """Drop slices that are over: they have been sent, and do not grow any more."""
        self._totals = {
            name: total for name, total in self._totals.items() if _may_grow(name, now_us)
        }
        self._former = [one for one in self._former if _may_grow(one.name, now_us)]

    def names(self) -> list[CounterName]:
        """The counters that can still grow."""
        return list(self._totals)

    def clear(self) -> None:
        """Restart from zero, for another actor."""
        self._totals = {}

    def retire(self, actor: Actor) -> list[CounterTotal]:
        """Restart from zero, because the store has lost everything; returns what to send it, of all earlier epochs.

        Other regions may not have received it yet when the store is lost again.
        """
        self._former += self.entries(self._totals, actor)
        self._totals = {}
        return list(self._former)


def _may_grow(name: CounterName, now_us: int) -> bool:
    return name.slice_us + slice_length_us(name.limit) + GRACE_US > now_us


def foreign(grown: Iterable[Growth], here: str, epoch: str) -> list[Growth]:
    """Growth that this region's store does not know: of other regions, and of this one under an earlier epoch."""
    return [one for one in grown if not (one.actor.region == here and one.actor.epoch == epoch)]


def charges(grown: Iterable[Growth], now_us: int) -> dict[Charged, int]:
    """What to charge by force for growth, as far as it still counts now."""
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
    """Units of a log, dated at the end of their slice: each stays for a window, and at most a slice more."""
    length_us = slice_length_us(state.limit)
    for slice_us, units in slices.items():
        came_us = slice_us + length_us
        if came_us + state.limit.window_us > now_us:
            yield state._replace(came_us=came_us), units


def _still_counts(limit: Limit, slices: dict[int, int], now_us: int) -> int:
    """How many of these units count now. Rounded up: rather too much than too little."""
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
    """The level of a separate bucket from which these units were taken at the end of their slices; at most a burst.

    Two buckets together are never emptier than one that all units went through, so this is never too little.
    """
    length_us = slice_length_us(limit)
    level = at_us = 0  # In units times microseconds of the window, to stay exact.
    for slice_us, units in sorted(slices.items()):
        end_us = min(slice_us + length_us, now_us)
        level = max(0, level - (end_us - at_us) * limit.limit) + units * limit.window_us
        at_us = end_us
    level = max(0, level - (now_us - at_us) * limit.limit)
    return min(-(-level // limit.window_us), limit.burst)
