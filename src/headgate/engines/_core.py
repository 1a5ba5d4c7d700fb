"""What a memory engine shares with its scoped twins: every state, one lock, one clock, and one bound on all of it.

A caller holds the lock around everything it does here. `find` and `keep` hide where a state lives: under a key of its
own, or shared with strangers when memory is full (see `_table.py`).

**No work grows with the number of tables.** There is one for each window that anybody asks for, and callers may ask for
many. So tables stand in a round: when there are many, each new one looks at the next few of it, and when memory is full
so does each new key. Idle states go, and so do tables in which nothing is left.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING

from .. import fork
from ..algorithms import limit_of_identity
from ..charge import require_key
from ._baton import Baton
from ._reservations import Reservations
from ._table import SECRET_BYTES, SHARED_STATES, Place, Table, shared_index
from .state_file import Content, Row, StateFile, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..algorithms import Answer, Limit, State
    from ..clock import Clock

SWEEP_PER_KEY = 4
SWEEP_PER_TABLE = 16
TABLES_PER_TABLE = 4
"""More than the one look that it takes to let go of a table, or they would become more and more."""
TABLES_WHEN_FULL = 8
TABLES_FOR_ROOM = 64
FEW_TABLES = 1_024
"""So many are worth no look while there is memory: they take up about a megabyte."""


class Core:
    """All tables of an engine, within `max_keys`."""

    def __init__(self, max_keys: int, clock: Clock) -> None:
        self.max_keys = max_keys
        self.ticks, self.epoch_us = clock.ticks, clock.epoch_ns // 1000
        self.lock = Baton()
        self.tables: dict[TableName, Table] = {}
        self._round: deque[Table] = deque()
        self.reservations = Reservations()
        self.keys = 0
        self.dropped = 0
        self.shared_decisions = 0
        self.file: StateFile | None = None
        self._secret = secrets.token_bytes(SECRET_BYTES)
        fork.remember(self)

    def after_fork(self) -> None:
        """In a child: nobody holds the lock, and the state file is the parent's."""
        self.lock.after_fork()
        if self.file is not None:
            self.file.after_fork()

    def table(self, name: TableName, limit: Limit) -> Table:
        """The table of that name, and a look at others if it is one more of many."""
        table = self.tables.get(name)
        if table is None:
            if len(self.tables) > FEW_TABLES:
                now_us = self.ticks() // 1000 + self.epoch_us
                self._look_around(now_us, TABLES_PER_TABLE, hurry=False)
            table = self._add(Table(name, limit))
        return table

    def has_room(self, tables: int) -> bool:
        """Whether there are fewer tables than that; if not at once, then after a look for some that are idle."""
        if len(self.tables) >= tables:
            now_us = self.ticks() // 1000 + self.epoch_us
            self._look_around(now_us, TABLES_FOR_ROOM, hurry=True)
        return len(self.tables) < tables

    def live(self, table: Table) -> Table:
        """The table that counts now: this one, unless it was let go and another has taken its place."""
        if not table.dropped:
            return table
        found = self.tables.get(table.name)
        return self._add(table) if found is None else found

    def place(self, table: Table, key: str, now_us: int) -> Place:
        """Where the state that counts for a key is: under the key, or shared with strangers."""
        if table.shared and table.get(key) is None:
            index = shared_index(key, self._secret)
            state = table.shared.get(index)
            if state is not None:
                if table.limit.idle_at_us(state) > now_us:
                    return index
                table.drop_shared(index)
        return key

    def find(self, table: Table, key: str, now_us: int) -> State:
        """The state that counts for a key."""
        place = self.place(table, key, now_us)
        return table.get(place) if isinstance(place, str) else table.shared[place]

    def keep(self, table: Table, key: str, before: State, after: State, now_us: int) -> bool:
        """Write what a step has made of the state that was found; true when strangers share it."""
        if after is before:
            return isinstance(self.place(table, key, now_us), int)
        if table.get(key) is not None:
            table.put(key, after)
            return False
        self._sweep(table, now_us)
        if table.dropped:
            self._add(table)
        full = self.keys >= self.max_keys
        if full or table.shared:
            index = shared_index(key, self._secret)
            if full or index in table.shared:
                table.shared[index] = after
                return True
        table.put(key, after)
        self.keys += 1
        return False

    def take_new(
        self, table: Table, key: str, limit: Limit, now_us: int, cost: int
    ) -> tuple[Answer, bool]:
        """Take for a key that is not among the young; true when strangers share its state."""
        require_key(key)
        if table.dropped:
            table = self.live(table)
            table.note(limit)
        state = self.find(table, key, now_us)
        after, answer = limit.take(state, now_us, cost)
        shared = self.keep(table, key, state, after, now_us)
        self.shared_decisions += shared
        return answer, shared

    def forget(self, table: Table, key: str, now_us: int) -> None:
        """Drop the state of a key, also one that it shares: what strangers used of it goes with it.

        Reservations of what is forgotten end: to refund them would give back what others took since.
        """
        place = self.place(table, key, now_us)
        self.reservations.end_key(table, key)
        if isinstance(place, int):
            self.reservations.end_keys(
                table, lambda other: self.place(table, other, now_us) == place
            )
            table.drop_shared(place)
        elif table.get(place) is not None:
            table.drop(place)
            self.keys -= 1

    def open_file(self, file: StateFile) -> None:
        """Take over what an earlier process saved."""
        content = file.load()
        if content is not None:
            try:
                self._secret = _secret(content.secret)
                for row in content.rows:
                    if row.name in self.tables:
                        raise ValueError(f"the table {row.name} comes twice")  # noqa: TRY301
                    table = self._add(_table(row))
                    self.keys += len(table)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise file.refused(f"its body does not make sense ({error})") from error
        self.file = file

    def content(self) -> Content:
        """Every state as plain data."""
        return Content(self._secret.hex(), list(self._rows()))

    def _rows(self) -> Iterator[Row]:
        for name, table in self.tables.items():
            encode = table.limit.encode
            states: dict[str, Any] = {}
            for generation in (table.old, table.young):
                states.update((key, encode(state)) for key, state in generation.items())
            shared = {str(index): encode(state) for index, state in table.shared.items()}
            if states or shared:
                yield Row(name, states, shared)

    def _sweep(self, table: Table, now_us: int) -> None:
        """Do a new key's share of the sweeping; more of it, and elsewhere, when memory is full."""
        dropped = table.sweep(now_us, SWEEP_PER_KEY)
        if dropped:
            self._count_dropped(dropped)
        if self.keys >= self.max_keys:
            self._look_around(now_us, TABLES_WHEN_FULL, hurry=True)

    def _look_around(self, now_us: int, tables: int, *, hurry: bool) -> None:
        """Sweep the next few tables of the round, and let go of those in which nothing is left."""
        for _ in range(min(tables, len(self._round))):
            table = self._round.popleft()
            for _ in range(2):  # If the first only begins a generation, the second sweeps it.
                self._count_dropped(table.sweep(now_us, SWEEP_PER_TABLE, hurry=hurry))
            if table.shared:
                table.sweep_shared(now_us, SWEEP_PER_TABLE)
            if table.unused:
                del self.tables[table.name]
                table.dropped = True
            else:
                self._round.append(table)

    def _add(self, table: Table) -> Table:
        """Take in a table whose name is free."""
        table.dropped = False
        self.tables[table.name] = table
        self._round.append(table)
        return table

    def _count_dropped(self, keys: int) -> None:
        self.keys -= keys
        self.dropped += keys


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def _table(row: Row) -> Table:
    """The table that a row describes, with every key, number and state of it checked."""
    namespace, rule, identity = row.name
    table = Table(row.name, limit_of_identity(identity))
    if not isinstance(namespace, str) or not isinstance(rule, str | None):
        raise TypeError(f"a namespace and a rule are text, not {namespace!r} and {rule!r}")
    if table.limit.identity != identity:
        raise ValueError(f"{identity!r} should read {table.limit.identity!r}")
    table.several = True  # As far as anybody knows.
    decode = table.limit.decode
    for key, data in row.states.items():
        require_key(key)
        table.young[key] = decode(data)
    for text, data in row.shared.items():
        index = int(text)
        if str(index) != text or not 0 <= index < SHARED_STATES:
            raise ValueError(f"no shared state has the number {text!r}")
        table.shared[index] = decode(data)
    return table
