"""A shard: the states of some of the keys, while this node owns it.

It is a memory engine that tracks changes. `packed` serialises the current content of some places, and `restore` loads
what another owner has written. Nothing is lost in between: states, lines, reservations, low-water marks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...algorithms import limit_of_identity
from .._reservations import Held
from .._steps import marked_never
from ..memory import MemoryEngine
from .marks import MarkedStore
from .state_cells import (
    frozen,
    packed_cell,
    packed_limit,
    state_packer,
    unpacked_cell,
    unpacked_limit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...algorithms import Limit
    from ...charge import ChargeSet
    from ...clock import Clock
    from ...decision import Decision
    from .._reservations import Name
    from .._state_table import Place, StateTable
    from ..base import Hit
    from ..state_file import TableName
    from .entries import ShardRows
    from .incarnation import Incarnation
    from .marks import Marks

MAX_HITS: Final = 1_024
MAX_ENGINES: Final = 256
"""Limits that a shard remembers how to hit, and namespaces that have an engine; both are quick to make anew."""


class ShardEngine(MemoryEngine):
    """The memory engine of one shard."""

    _core: MarkedStore

    def _new_store(self, max_keys: int, max_bytes: int) -> MarkedStore:
        return MarkedStore(max_keys, max_bytes, self.clock)

    @property
    def store(self) -> MarkedStore:
        """Its states."""
        return self._core

    def look(self, request: ChargeSet) -> Decision:
        """The answer that a request would get if it were denied elsewhere; nothing changes."""
        with self._core.lock:
            now_us = self.clock.now_us()
            try:
                steps = self._evaluate(request, now_us)
                if not all(step.first for step in steps):
                    unused = self._evaluate(request, now_us, unused=True)
                    steps = list(map(marked_never, steps, unused))
                return self._deny([step._replace(first=False) for step in steps], now_us)
            finally:
                self._core.in_hand.clear()

    def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`: the line changes even if the state does not."""
        super().leave_line(decision)
        store, key = self._core, decision.key
        name = (self._namespace, decision.context.rule, decision.limited_by.identity)
        if name in store.tables:
            store.mark(name, store.place(store.tables[name], key, self.clock.now_us()))


class Rows(NamedTuple):
    """Places in one table of a shard, or the names of some of its reservations."""

    shard: Shard
    marks: Marks
    places: list[Any]


class Shard:
    """One tenure of one shard."""

    own: Incarnation
    """The incarnation that serves it."""

    def __init__(  # noqa: PLR0917 - what a shard is made of
        self, number: int, epoch: int, clock: Clock, secret: bytes, max_keys: int, max_bytes: int
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.engine = ShardEngine(max_keys=max_keys, max_bytes=max_bytes, clock=clock)
        self.store = self.engine.store
        self.store.use_secret(secret)
        self.serving = False
        """Whether it decides: not while it is loaded, and not after it is handed over."""
        self.importing = False
        """Whether some of its states are only in the journals of earlier owners."""
        self.imports: deque[Rows] = deque()
        """Places that still have to be written to this node's journal."""
        self.imported_with = 0
        """The entry that contains the last of them."""
        self.needed = True
        """Whether its rows in the journal are needed: not after the next owner has them all."""
        self.hits: dict[int, tuple[Hit, Marks]] = {}
        """Bound hits, by the number of their form."""
        self.engines: dict[str, ShardEngine] = {}

    def scoped(self, namespace: str) -> ShardEngine:
        """Its engine for a namespace."""
        engine = self.engines.get(namespace)
        if engine is None:
            if len(self.engines) >= MAX_ENGINES:
                self.engines.clear()
            engine = self.engines[namespace] = self.engine.scoped(namespace)
        return engine

    def bound(self, form: int, namespace: str, limit: Limit, rule: str | None) -> tuple[Hit, Marks]:
        """A function that takes units of a limit, and the marks of the limit's table."""
        found = self.hits.get(form)
        if found is None:
            if len(self.hits) >= MAX_HITS:
                self.hits.clear()
            hit = self.scoped(namespace).bind(limit, rule)
            marks = self.store.marks_of((namespace, rule, limit.identity))
            found = self.hits[form] = (hit, marks)
        return found

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that is in no commit yet."""
        return bool(self.store.changed)

    @property
    def is_confirmed(self) -> bool:
        """Whether all decisions are in etcd."""
        return not (self.store.changed or self.store.flying)

    def take_off(self) -> list[Rows]:
        """All places that have changed; they are in flight from now on."""
        return [Rows(self, marks, places) for marks, places in self.store.take_off()]

    def landed(self) -> None:
        """Record that what was in flight is in etcd."""
        self.store.landed()

    def exists(self, name: TableName | None, place: Any) -> bool:
        """Whether there is anything at a place in a table or, without a table, a reservation of that name."""
        store = self.store
        if name is None:
            return place in store.reservations
        table = store.tables.get(name)
        if table is not None:
            found = table.shared.get(place) if isinstance(place, int) else table.get(place)
            if found is not None:
                return True
        return store.reservations.watch(name, place) is not None

    def packed(self, rows: Iterable[Rows]) -> list[Any]:
        """The current content of these rows."""
        tables: dict[TableName, list[Any]] = {}
        reservations: list[list[Any]] = []
        for _, marks, places in rows:
            name = marks.name
            if name is None:
                reservations += [[*one, self._packed_reservation(one)] for one in places]
                continue
            table = self.store.tables.get(name)
            found = tables.get(name)
            if found is None:
                limit = limit_of_identity(name[2]) if table is None else table.limit
                found = tables[name] = [name[0], name[1], packed_limit(limit), {}, {}]
            self._pack_cells(name, table, places, found[3], found[4])
        return [self.number, self.epoch, list(tables.values()), reservations]

    def _pack_cells(
        self,
        name: TableName,
        table: StateTable | None,
        places: Iterable[Place],
        own: dict[str, list[Any] | None],
        shared: dict[int, list[Any] | None],
    ) -> None:
        if table is None or table.lines or self.store.reservations.has_watches:
            for place in places:
                cells: dict[Any, Any] = shared if isinstance(place, int) else own
                cells[place] = self._cell(name, table, place)
            return
        pack = state_packer(table.limit)
        young, old = table.young, table.old
        for place in (
            places
        ):  # Only states, the usual case: every commit runs this for all that has changed.
            if isinstance(place, int):
                shared[place] = self._cell(name, table, place)
                continue
            state = young.get(place)
            if state is None:
                state = old.get(place)
            own[place] = None if state is None else [pack(state)]

    def _cell(self, name: TableName, table: StateTable | None, place: Place) -> list[Any] | None:
        watch = self.store.reservations.watch(name, place)
        if table is None:
            return None if watch is None else [None, None, watch.encode()]
        state = table.shared.get(place) if isinstance(place, int) else table.get(place)
        line = table.lines.get(place)
        if state is None and watch is None:
            return None
        return packed_cell(table.limit, state, line, watch)

    def _packed_reservation(self, name: Name) -> list[Any] | None:
        found = self.store.reservations.found(name)
        if found is None:
            return None
        expires_us, charges, held = found
        rows = [
            [
                *one.table.name[:2],
                packed_limit(one.table.limit),
                one.key,
                packed_limit(one.limit),
                one.cost,
                one.mark,
                one.charge,
                one.place,
                one.number,
            ]
            for one in held
        ]
        return [expires_us, charges, rows]

    def restore(self, rows: ShardRows) -> None:
        """Load the rows of an entry."""
        store, now_us = self.store, rows.now_us
        for namespace, rule, numbers, own, shared in rows.tables:
            limit = unpacked_limit(numbers)
            name = (namespace, rule, limit.identity)
            table = store.restored_table(name, limit)
            table.note(limit)
            cells: list[tuple[Place, Any]] = list(own.items())
            cells += [(int(number), cell) for number, cell in shared.items()]
            for place, cell in cells:
                state, line, watch = unpacked_cell(limit, cell or [None])
                store.put_back(table, place, state, now_us)
                store.reservations.put_watch(name, place, watch)
                if line is None:
                    table.lines.pop(place, None)
                else:
                    table.lines[place] = line
        for namespace, token, record in rows.reservations:
            if (namespace, token) in store.reservations:
                store.reservations.close((namespace, token))
            if record is not None:
                self._restore_reservation((namespace, token), record)

    def _restore_reservation(self, name: Name, record: list[Any]) -> None:
        expires_us, charges, rows = record
        held = []
        for namespace, rule, table_limit, key, numbers, cost, mark, charge, place, number in rows:
            own = unpacked_limit(table_limit)
            table = self.store.table((namespace, rule, own.identity), own)
            limit = unpacked_limit(numbers)
            held.append(Held(table, key, limit, cost, frozen(mark), charge, place, number))
        self.store.reservations.restore(name, expires_us, charges, held)

    def begin_imports(self) -> None:
        """Queue everything that was restored for this node's own journal."""
        self.imports.extend(self.take_off())
        self.landed()
