"""Reservations that can still be settled, and what a late refund needs to know.

A reservation is a record with a time to live. It remembers for each charge where it was taken (`mark`), so that a
refund gives back exactly what has not refilled meanwhile. Buckets also need their lowest backlog since then (see
`_watch.py`): that is kept per state, and only while a reservation of it is open.

A reset ends the reservations of its key: what they took is forgotten, so there is nothing to give back.

Memory is bounded: beyond `max_bytes`, the reservation that would expire first ends early, and its units stay charged.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..algorithms.base import MAX_EXACT
from ..errors import UsageError
from ._memory_budget import reserved_weight
from ._watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from ._state_table import Place, StateTable
    from .state_file import TableName


Name: TypeAlias = tuple[str, str]
"""The namespace that a reservation was made in, and its token."""

FEW = 64
"""A heap with at most this many closed entries is not cleaned up."""


class Taken(NamedTuple):
    """One charge that is to be reserved."""

    table: StateTable
    key: str
    limit: Limit
    cost: int
    mark: State
    charge: int
    """Its place among the charges of the request."""
    place: Place | None = None
    """Where its state is, if that is watched; `low` is the low-water mark that it had before."""
    low: int = 0


class Held(NamedTuple):
    """One charge of a reservation."""

    table: StateTable
    key: str
    limit: Limit
    cost: int
    mark: State
    charge: int
    place: Place | None
    number: int
    """Its number in the watch of that place."""


class Reservations:
    """All open reservations of an engine, within `max_bytes`. Not safe under threads: the engine holds its lock."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._open: dict[Name, tuple[int, int, list[Held]]] = {}
        """When each expires, how many charges it was made of, and what it holds of them."""
        self._due: list[tuple[int, int, Name]] = []
        """A heap of when each expires, older ones first. Those that were ended stay in it until they are half of it."""
        self._made = 0
        self._names: dict[tuple[TableName, str], set[Name]] = {}
        """The reservations of each key."""
        self._watches: dict[tuple[TableName, Place], Watch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: Name) -> bool:
        return name in self._open

    def require_free_token(self, namespace: str, token: str | None, now_us: int) -> None:
        """Make sure that `token` can be used: drop expired reservations, refuse a name that is taken."""
        self.expire(now_us)
        if (namespace, token) in self._open:
            raise UsageError(f"the reservation {token!r} is already open; settle it first")

    def open(self, name: Name, expires_us: int, charges: int, taken: list[Taken]) -> None:
        """Record that these units were taken and may be settled until `expires_us`."""
        held: list[Held] = []
        for table, key, limit, cost, mark, charge, place, low in taken:
            self._names.setdefault((table.name, key), set()).add(name)
            number = 0
            if place is not None:
                number = self._watches.setdefault((table.name, place), Watch()).begin(low)
            held.append(Held(table, key, limit, cost, mark, charge, place, number))
        self._add(name, expires_us, charges, held)
        while self._bytes > self._max_bytes and len(self._open) > 1:
            self._end_first()

    def restore(self, name: Name, expires_us: int, charges: int, held: list[Held]) -> None:
        """Take over a reservation that was made elsewhere; its low-water marks come by `watch`."""
        for one in held:
            self._names.setdefault((one.table.name, one.key), set()).add(name)
        self._add(name, expires_us, charges, held)

    def found(self, name: Name) -> tuple[int, int, list[Held]] | None:
        """When a reservation ends, of how many charges it was made, and what it holds; `None` if there is none."""
        return self._open.get(name)

    @property
    def has_watches(self) -> bool:
        """Whether any state is watched."""
        return bool(self._watches)

    def watch(self, table: TableName, place: Place) -> Watch | None:
        """The low-water marks of a state, if it is watched."""
        return self._watches.get((table, place))

    def put_watch(self, table: TableName, place: Place, watch: Watch | None) -> None:
        """Take over the low-water marks of a state, or forget them."""
        if watch is None:
            self._watches.pop((table, place), None)
        else:
            self._watches[table, place] = watch

    def charges(self, name: Name) -> int:
        """How many charges a reservation was made of; 0 when there is none."""
        return self._open[name][1] if name in self._open else 0

    def close(self, name: Name) -> list[Held]:
        """End a reservation; each is ended once, and then unknown. Each charge of it is to be forgotten, too."""
        _, _, held = self._open.pop(name)
        self._bytes -= _weight(name, held)
        for one in held:
            names = self._names.get((one.table.name, one.key), set())
            names.discard(name)
            if not names:
                self._names.pop((one.table.name, one.key), None)
        if len(self._due) > 2 * len(self._open) + FEW:
            opened = enumerate(self._open.items())  # In the order in which they were made.
            self._due = [
                (expires_us, number, other) for number, (other, (expires_us, *_)) in opened
            ]
            heapify(self._due)
        return held

    def low_since(self, held: Held) -> int:
        """The smallest low-water mark since the charge, but for the state's own."""
        if held.place is None:
            return MAX_EXACT
        return self._watches[held.table.name, held.place].low_since(held.number)

    def note_refund(self, held: Held, given: int) -> None:
        """So much was given back for this charge."""
        if held.place is not None and given:
            self._watches[held.table.name, held.place].note_refund(held.number, given)

    def forget(self, held: Held) -> bool:
        """Let go of a charge; true when its state need not be watched any more."""
        if held.place is None:
            return False
        over = self._watches[held.table.name, held.place].end(held.number)
        if over:
            del self._watches[held.table.name, held.place]
        return over

    def expire(self, now_us: int) -> None:
        """Drop reservations that were not settled in time; their units stay charged."""
        while self._due and self._due[0][0] <= now_us:
            self._end_first()

    def end_key(self, table: StateTable, key: str) -> None:
        """End the reservations of a key that is forgotten, with whatever else they hold: it stays charged."""
        for name in list(self._names.get((table.name, key), ())):
            self._end(name)

    def end_keys(self, table: StateTable, chosen: Callable[[str], bool]) -> None:
        """The same for every key of a table that is chosen."""
        for name, key in list(self._names):
            if name == table.name and chosen(key):
                self.end_key(table, key)

    def _add(self, name: Name, expires_us: int, charges: int, held: list[Held]) -> None:
        self._open[name] = (expires_us, charges, held)
        self._bytes += _weight(name, held)
        heappush(self._due, (expires_us, self._made, name))
        self._made += 1

    def _end_first(self) -> None:
        """End the one that expires first, if it is still open."""
        expires_us, _, name = heappop(self._due)
        if name in self._open and self._open[name][0] == expires_us:
            self._end(name)

    def _end(self, name: Name) -> None:
        for held in self.close(name):
            self.forget(held)


def _weight(name: Name, held: list[Held]) -> int:
    return reserved_weight(name[1], [one.key for one in held])
