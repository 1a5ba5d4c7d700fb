"""Marks: which states and reservations have changed since they were last written to the journal.

Every change goes through one of two places: the dicts in which a table stores its states, and the book of reservations.
Both set a mark, so no change of the memory engine can be missed, and the memory engine needs no knowledge of journals.
A mark says where something changed, not what it is now: that is looked up when the journal is written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from .._memory_budget import RESERVED_PART, SHARED_BYTES, is_stand_in
from .._reservations import Held, Name, Reservations, Taken
from .._state_store import StateStore
from .._state_table import Place, StateTable
from .._weighed_states import WeighedStates, weighed_states

if TYPE_CHECKING:
    from ...algorithms import Limit, State
    from ...clock import Clock
    from ..state_file import TableName


SWEPT_STATES: Final = 1_000
"""How many states of a table are checked per sweep."""


class Marks:
    """What has changed in one table, or among the reservations, which have no name.

    Marks with anything dirty are in `changed`, so that a commit need not look at all tables.
    """

    __slots__ = ("__weakref__", "_changed", "dirty", "flying", "name", "written")

    def __init__(self, name: TableName | None, changed: dict[Marks, None]) -> None:
        self.name = name
        self._changed = changed
        self.dirty: set[Any] = set()
        """Changed since the last commit was sent."""
        self.flying: set[Any] = set()
        """In the commit that is in flight."""
        self.written: dict[Any, int] = {}
        """The journal entry in which each place was last written."""

    def add(self, place: Any) -> None:
        """Mark a change at this place."""
        if not self.dirty:
            self._changed[self] = None
        self.dirty.add(place)

    def take_off(self) -> set[Any]:
        """Move everything dirty in flight, and return it."""
        self.flying, self.dirty = self.dirty, set()
        return self.flying


class MarkedStates(dict[Any, Any]):
    """States by place; writing or dropping one sets a mark."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def __setitem__(self, place: Place, state: State) -> None:
        self._marks.add(place)
        dict.__setitem__(self, place, state)

    def pop(self, place: Place, *default: Any) -> Any:
        """Drop a state."""
        self._marks.add(place)
        return dict.pop(self, place, *default)


class MarkedWeighedStates(WeighedStates):
    """The same for states that are weighed."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Marks, *weighing: Any) -> None:
        super().__init__(*weighing)
        self._marks = marks

    def __setitem__(self, place: Place, state: State) -> None:
        self._marks.add(place)
        super().__setitem__(place, state)

    def pop(self, place: Place, *default: Any) -> Any:
        """Drop a state."""
        self._marks.add(place)
        return super().pop(place, *default)


class MarkedReservations(Reservations):
    """Reservations; any change of one, or of a low-water mark, sets a mark."""

    def __init__(self, store: MarkedStore, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.marks = Marks(None, store.changed)
        self._store = store

    def open(self, name: Name, expires_us: int, charges: int, taken: list[Taken]) -> None:
        """See `Reservations.open`."""
        super().open(name, expires_us, charges, taken)
        self.marks.add(name)
        for one in taken:
            if one.place is not None:
                self._store.mark(one.table.name, one.place)

    def close(self, name: Name) -> list[Held]:
        """See `Reservations.close`."""
        self.marks.add(name)
        return super().close(name)

    def note_refund(self, held: Held, given: int) -> None:
        """See `Reservations.note_refund`."""
        super().note_refund(held, given)
        self._mark_watch(held)

    def forget(self, held: Held) -> bool:
        """See `Reservations.forget`."""
        self._mark_watch(held)
        return super().forget(held)

    def _mark_watch(self, held: Held) -> None:
        if held.place is not None:
            self._store.mark(held.table.name, held.place)


class MarkedStore(StateStore):
    """The states of one shard."""

    reservations: MarkedReservations

    def __init__(self, max_keys: int, max_bytes: int, clock: Clock) -> None:
        super().__init__(max_keys, max_bytes, clock)
        self.marks: dict[TableName, Marks] = {}
        """The marks of all tables."""
        self.changed: dict[Marks, None] = {}
        """The marks that the next commit looks at; there may be many tables, and few of them change."""
        self.flying: list[Marks] = []
        """The marks in the commit that is in flight."""
        self._shared = 0
        self._known: WeakValueDictionary[TableName, Marks] = WeakValueDictionary()
        """All marks in use anywhere. A dropped table is added again by whoever still holds it, and keeps using its
        marks: a name must never have two."""
        self.reservations = MarkedReservations(self, max_bytes // RESERVED_PART)

    def use_secret(self, secret: bytes) -> None:
        """Assign shared states in the same way as every other owner."""
        self._secret = secret

    def mark(self, name: TableName, place: Place) -> None:
        """Mark a change of something other than the state itself."""
        self.marks_of(name).add(place)

    def marks_of(self, name: TableName) -> Marks:
        """The marks of a table; they outlive it, and stay the same object for as long as anyone holds it."""
        marks = self.marks.get(name)
        if marks is None:
            marks = self._known.get(name)
            if marks is None:
                marks = self._known[name] = Marks(name, self.changed)
            self.marks[name] = marks
        return marks

    def take_off(self) -> list[tuple[Marks, list[Any]]]:
        """All places that have changed; they are in flight from now on."""
        changed = list(self.changed)
        self.changed.clear()
        self.flying += changed
        return [(marks, list(marks.take_off())) for marks in changed]

    def landed(self) -> None:
        """Record that what was in flight is in etcd."""
        for marks in self.flying:
            marks.flying = set()
        self.flying.clear()

    @property
    def size(self) -> int:
        """The number of states and reservations; of states that keys share, as of the last sweep."""
        return self.keys + self._shared + len(self.reservations)

    def put_back(self, table: StateTable, place: Place, state: State, now_us: int) -> None:
        """Load a state as another node left it, where it was, however full this one is; `None` if there is none."""
        if isinstance(place, int):
            self._drop_shared(table, place)
            if state is not None:
                table = self.table(table.name, table.limit)
                table.shared[place] = state
                self.bytes += SHARED_BYTES
        elif state is None:
            self._drop_own(table, place)
        elif table.get(place) is not None:
            table.put(place, state)
        else:
            self._sweep(table, now_us)
            if table.dropped:
                self._add(table)
            self._put_own(table, place, state)

    def restored_table(self, name: TableName, limit: Limit) -> StateTable:
        """The table of that name, which counts for other windows if it did so for the earlier owner."""
        table = self.table(name, limit)
        if not table.stands_in and is_stand_in(limit, self._secret):
            table.stands_in = True
            self._stand_ins[name] = table
        return table

    def sweep(self, now_us: int, tables: int) -> None:
        """Drop idle states in the next few tables, and tables that are empty."""
        for _ in range(min(tables, len(self._round))):
            table = self._round.popleft()
            self._sweep_table(table, now_us, SWEPT_STATES, hurry=False)
            before = len(table.shared)
            table.sweep_shared(now_us, SWEPT_STATES)
            self.bytes -= SHARED_BYTES * (before - len(table.shared))
            if table.unused:
                self._drop_table(table)
            else:
                self._round.append(table)
        self._shared = sum(len(table.shared) for table in self.tables.values())
        for name in [name for name in self.marks if name not in self.tables]:
            marks = self.marks[name]
            if not marks.dirty and not marks.flying:
                del self.marks[name]

    def _add(self, table: StateTable) -> StateTable:
        self.marks_of(table.name)  # The table may have been dropped, and its marks with it.
        return super()._add(table)

    def _new_table(self, name: TableName, limit: Limit) -> StateTable:
        marks = self.marks_of(name)
        weighed = weighed_states(partial(MarkedWeighedStates, marks), self, limit)
        states = weighed or partial(MarkedStates, marks)
        return StateTable(name, limit, clock_steps=self._clock_steps, new_states=states)
