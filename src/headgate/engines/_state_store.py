"""What a memory engine shares with its scoped copies: all states, one lock, one clock, and one memory bound.

Callers hold the lock for everything here. `find` and `keep` hide where a state is stored: under its own key, or shared
with other keys when memory is full (see `_state_table.py`).

**No work grows with the number of tables.** Each window in use has a table, and callers may use many windows. Memory is
bounded in bytes, and tables count, too; `_memory_budget.py` says what happens to windows when it is full. Tables form a
ring: when there are many, each new table sweeps the next few, and when memory is full so does each new key. Idle states
are dropped, and so are empty tables.

**Time never runs backwards** for a key, so an idle state is kept for as long as the clock may step back behind it. The
system's clock, as we read it, never steps back, except that the next process may find it set back when it loads a state
file. A state that is too far ahead of now is cut to now wherever it is found, even by a peek: otherwise callers that
only peek, such as waiters, would cut it again every time, and it would never recover.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from .. import _fork
from ..algorithms import Concurrency, limit_of_identity
from ..charge import require_key
from ..clock import SystemClock
from ._lock import FastLock
from ._memory_budget import (
    RESERVED_PART,
    SHARED_BYTES,
    SHARED_PART,
    is_stand_in,
    stand_in,
    table_weight,
    weight_of,
)
from ._reservations import Reservations
from ._state_table import LAST_SHARED, SECRET_BYTES, Place, StateTable, shared_index
from ._weighed_states import WeighedStates, weighed_states
from .state_file import Content, StateFile, StateFileRow, TableName

if TYPE_CHECKING:
    from ..algorithms import Answer, Limit, State
    from ..clock import Clock

Copies: TypeAlias = "list[tuple[TableName, Limit, dict[str, State], dict[int, State]]]"
"""The states of every table, with a limit that reads them: own ones, and those that strangers share."""

ANY_RULE = ""
"""Stand-ins that all rules use for which there is no memory to have their own."""
SWEEP_PER_KEY = 4
SWEEP_PER_TABLE = 16
TABLES_PER_TABLE = 4
"""More than the one look that it takes to let go of a table, or they would become more and more."""
TABLES_WHEN_FULL = 8
FEW_TABLES = 1_024
"""So many are worth no look while there is memory: they take up about a megabyte."""


class StateStore:
    """All tables of an engine, within `max_keys` and `max_bytes`."""

    def __init__(self, max_keys: int, max_bytes: int, clock: Clock) -> None:
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self._most_bytes = max_bytes + max_bytes // SHARED_PART
        """With what keys share when there is no room for one more."""
        self.bytes = 0
        """What everything weighs: tables, keys, states that strangers share, and what logs and slots hold."""
        self.ticks, self.epoch_us = clock.ticks, clock.epoch_ns // 1000
        self._clock_steps = not isinstance(clock, SystemClock)
        self.lock = FastLock()
        self.tables: dict[TableName, StateTable] = {}
        self._stand_ins: dict[TableName, StateTable] = {}
        """Those of the tables that count for windows for which there was no room."""
        self._round: deque[StateTable] = deque()
        self.reservations = Reservations(max_bytes // RESERVED_PART)
        self.in_hand: list[tuple[TableName, str]] = []
        """The keys of the request that is being decided, which may have no states yet: where they are counted stays."""
        self.keys = 0
        self.dropped = 0
        self.shared_decisions = 0
        self.file: StateFile | None = None
        self._secret = secrets.token_bytes(SECRET_BYTES)
        _fork.reset_after_fork(self)

    def after_fork(self) -> None:
        """In a child process: the lock is free, and the state file belongs to the parent."""
        self.lock.after_fork()
        if self.file is not None:
            self.file.after_fork()

    def table(self, name: TableName, limit: Limit) -> StateTable:
        """The table of that name, and a look at others if it is one more of many."""
        table = self.tables.get(name)
        if table is None:
            if len(self.tables) > FEW_TABLES:
                now_us = self.ticks() // 1000 + self.epoch_us
                self._sweep_next_tables(now_us, TABLES_PER_TABLE, hurry=False)
            table = self._add(self._new_table(name, limit))
        return table

    def counted(
        self, namespace: str, rule: str | None, limit: Limit, key: str = ""
    ) -> tuple[str | None, Limit]:
        """What a limit is counted by for a key, and under which rule: itself, or its stand-in if there is no room.

        A key that started there stays there until its state is idle, so that its count never restarts in between. While
        a limit has a stand-in, new keys without room are counted there, too: strangers that began to share a state of
        the limit itself would seem to be one of those. A rule has stand-ins of its own while they fit into what shared
        states may take; then it uses those of any rule.
        """
        own = self.tables.get((namespace, rule, limit.identity))
        is_there = own is not None and limit.window_us > 0
        if not self._stand_ins and (is_there or self.bytes < self.max_bytes):
            return rule, limit
        other = stand_in(limit, self._secret)
        if other is None or other.identity == limit.identity:
            return rule, self._slots_in_room(own, limit, key)
        now_us = self.ticks() // 1000 + self.epoch_us
        if own is not None and (not key or self._has_state(own, key, now_us)):
            return rule, limit
        table = self._stand_in_of(namespace, rule, other)
        if table is None:
            if own is not None or self.bytes < self.max_bytes:
                return rule, limit
            name = rule if self.bytes < self._most_bytes else ANY_RULE
            table = self.table((namespace, name, other.identity), other)
            table.stands_in = True
            self._stand_ins[table.name] = table
        elif not self._is_full and not (key and self._is_in_use(table, key, now_us)):
            return rule, limit
        return table.name[1], other

    def _stand_in_of(self, namespace: str, rule: str | None, other: Limit) -> StateTable | None:
        """The table that stands in for limits of a rule, if there is one: its own, or else that of any rule."""
        for name in (rule, ANY_RULE):
            table = self._stand_ins.get((namespace, name, other.identity))
            if table is not None:
                return table
        return None

    @property
    def _is_full(self) -> bool:
        return self.keys >= self.max_keys or self.bytes >= self.max_bytes

    def _slots_in_room(self, own: StateTable | None, limit: Limit, key: str) -> Limit:
        """A limit without a window: of slots only those that are held, if there is no memory for another holder."""
        is_full = self.bytes >= self.max_bytes
        if own is None or not key or not is_full or not isinstance(limit, Concurrency):
            return limit
        now_us = self.ticks() // 1000 + self.epoch_us
        held = limit.used(self.find(own, key, limit, now_us), now_us)
        return Concurrency(min(held, limit.limit), limit.ttl_us) if held else limit

    def _has_state(self, table: StateTable, key: str, now_us: int) -> bool:
        """Whether there is a state for a key, also one that is idle: hits find that, too."""
        if self._is_in_hand(table, key) or table.get(key) is not None:
            return True
        return isinstance(self.place(table, key, now_us), int)

    def _is_in_hand(self, table: StateTable, key: str) -> bool:
        return bool(self.in_hand) and (table.name, key) in self.in_hand

    def _is_in_use(self, table: StateTable, key: str, now_us: int) -> bool:
        if self._is_in_hand(table, key):
            return True
        place = self.place(table, key, now_us)
        if isinstance(place, int):
            return True
        state = table.get(place)
        return state is not None and table.live(state, now_us) is not None

    def detached_table(self, name: TableName, limit: Limit) -> StateTable:
        """A table for callers that need one while there is no room for it. It counts nothing until there is."""
        table = self._new_table(name, limit)
        table.dropped = True
        return table

    def _new_table(self, name: TableName, limit: Limit) -> StateTable:
        states = weighed_states(WeighedStates, self, limit) or dict
        return StateTable(name, limit, clock_steps=self._clock_steps, new_states=states)

    def live(self, table: StateTable) -> StateTable:
        """The table in use: this one, unless another has replaced it. A dropped table is added again on write."""
        return self.tables.get(table.name, table) if table.dropped else table

    def place(self, table: StateTable, key: str, now_us: int) -> Place:
        """Where the state that counts for a key is: under the key, or shared with strangers."""
        if table.shared and table.get(key) is None:
            for index in (shared_index(key, self._secret), LAST_SHARED):
                state = table.shared.get(index)
                if state is not None:
                    if table.live(state, now_us) is not None:
                        return index
                    self._drop_shared(table, index)
        return key

    def find(self, table: StateTable, key: str, limit: Limit, now_us: int) -> State:
        """The state that counts for a key, cut to now if it is too far ahead."""
        place = self.place(table, key, now_us)
        state = table.get(place) if isinstance(place, str) else table.shared[place]
        if state is None:
            return None
        seen, _ = limit.seen(state, now_us)
        if seen is not state:
            if isinstance(place, str):
                table.put(place, seen)
            else:
                table.shared[place] = seen
        return seen

    def keep(self, table: StateTable, key: str, before: State, after: State, now_us: int) -> bool:
        """Write what a step has made of the state that was found; true when strangers share it."""
        if after is before:
            return isinstance(self.place(table, key, now_us), int)
        if table.get(key) is not None:
            table.put(key, after)
            return False
        self._sweep(table, now_us)
        if table.dropped:
            self._add(table)
        full = self._is_full
        if full or table.shared:
            index = self._shared_place(table, key, full=full and not self._has_stand_in(table))
            if index is not None:
                self.bytes += 0 if index in table.shared else SHARED_BYTES
                table.shared[index] = after
                return True
        self._put_own(table, key, after)
        return False

    def _put_own(self, table: StateTable, key: str, state: State) -> None:
        """Keep a state for a key that had none of its own."""
        table.put(key, state)
        self.keys += 1
        weight = weight_of(key)
        table.bytes += weight
        self.bytes += weight

    def _has_stand_in(self, table: StateTable) -> bool:
        """Whether keys of this table may be counted elsewhere, and must not be taken for those that share a state."""
        if table.stands_in or not self._stand_ins:
            return False
        namespace, rule, _ = table.name
        other = stand_in(table.limit, self._secret)
        return other is not None and self._stand_in_of(namespace, rule, other) is not None

    def _shared_place(self, table: StateTable, key: str, *, full: bool) -> int | None:
        """The shared state of a key without its own: chosen by hash, or one for all keys when there is no room."""
        index = shared_index(key, self._secret)
        if index in table.shared:
            return index
        if LAST_SHARED in table.shared:
            return LAST_SHARED
        if not full:
            return None
        return index if self.bytes < self._most_bytes else LAST_SHARED

    def take_new(
        self, table: StateTable, key: str, limit: Limit, now_us: int, cost: int
    ) -> tuple[Answer, bool]:
        """Take for a key that is not among the young, or slots; true when strangers share its state."""
        require_key(key)
        replaced = False
        if table.dropped or self._stand_ins or not limit.window_us:
            table, counted = self.counting(table, limit, key)
            replaced = counted is not limit
            limit = counted
            table.note(limit)
        state = self.find(table, key, limit, now_us)
        after, answer = limit.take(state, now_us, cost)
        shared = self.keep(table, key, state, after, now_us) or replaced
        self.shared_decisions += shared
        return answer, shared

    def counting(self, table: StateTable, limit: Limit, key: str) -> tuple[StateTable, Limit]:
        """The table that counts a key by now, and by which limit: this one, or its stand-in (see `counted`)."""
        namespace, rule, _ = table.name
        rule, counted = self.counted(namespace, rule, limit, key)
        if counted is limit:
            return self.live(table), limit
        return self.table((namespace, rule, counted.identity), counted), counted

    def forget(self, table: StateTable, key: str, now_us: int) -> None:
        """Drop the state of a key, also one that it shares: what strangers used of it goes with it.

        Reservations of what is forgotten end: to refund them would give back what others took since.
        """
        place = self.place(table, key, now_us)
        self.reservations.end_key(table, key)
        if isinstance(place, int):
            self.reservations.end_keys(
                table, lambda other: self.place(table, other, now_us) == place
            )
            self._drop_shared(table, place)
        else:
            self._drop_own(table, place)

    def open_file(self, file: StateFile) -> None:
        """Take over what an earlier process saved."""
        content = file.load()
        self._clock_steps = True
        if content is not None:
            try:
                self._secret = _secret(content.secret)
                for row in content.rows:
                    if row.name in self.tables:
                        raise ValueError(f"the table {row.name} appears twice")  # noqa: TRY301
                    table = self._loaded(row)
                    table.stands_in = is_stand_in(table.limit, self._secret)
                    self._add(table)
                    self.keys += len(table)
                    self.bytes += SHARED_BYTES * len(table.shared)
                    self._add_bytes(table, sum(map(weight_of, table.young)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise file.refused(f"its body is invalid ({error})") from error
        self.file = file

    def _loaded(self, row: StateFileRow) -> StateTable:
        """The table that a row describes, with every key, number and state of it checked."""
        namespace, rule, identity = row.name
        table = self._new_table(row.name, limit_of_identity(identity))
        if not isinstance(namespace, str) or not isinstance(rule, str | None):
            raise TypeError(f"a namespace and a rule are text, not {namespace!r} and {rule!r}")
        if table.limit.identity != identity:
            raise ValueError(f"{identity!r} should read {table.limit.identity!r}")
        table.several = True  # As far as is known.
        decode = table.limit.decode
        for key, data in row.states.items():
            require_key(key)
            table.young[key] = decode(data)
        for text, data in row.shared.items():
            index = int(text)
            if str(index) != text or not 0 <= index <= LAST_SHARED:
                raise ValueError(f"no shared state has the number {text!r}")
            table.shared[index] = decode(data)
        return table

    def save_to(self, file: StateFile) -> None:
        """Write every state. One save at a time, from the copy to the file, or an older copy could be written last."""
        with file.saving:
            file.require_held()
            with self.lock:
                copies = self.copied()
            file.save(self.content(copies))

    def copied(self) -> Copies:
        """Every state as it is now. Only copying takes the lock: encoding a million states would block all callers."""
        tables = self.tables.items()
        return [
            (name, table.limit, {**table.old, **table.young}, table.shared.copy())
            for name, table in tables
            if not table.unused
        ]

    def content(self, copies: Copies) -> Content:
        """Those states as plain data. States are values, so this needs no lock."""
        rows = []
        for name, limit, states, shared in copies:
            encode = limit.encode
            kept = {key: encode(state) for key, state in states.items()}
            rows.append(
                StateFileRow(name, kept, {str(place): encode(shared[place]) for place in shared})
            )
        return Content(self._secret.hex(), rows)

    def _sweep(self, table: StateTable, now_us: int) -> None:
        """Do a new key's share of the sweeping; more of it, and elsewhere, when memory is full."""
        before = table.bytes
        dropped = table.sweep(now_us, SWEEP_PER_KEY)
        if dropped:
            self._count_dropped(dropped, before - table.bytes)
        if self._is_full:
            self._sweep_next_tables(now_us, TABLES_WHEN_FULL, hurry=True)

    def _sweep_next_tables(self, now_us: int, tables: int, *, hurry: bool) -> None:
        """Sweep the next few tables of the round, and let go of those in which nothing is left."""
        for _ in range(min(tables, len(self._round))):
            table = self._round.popleft()
            self._sweep_or_drop(table, now_us, hurry=hurry)
            if table.unused and all(table.name != name for name, _ in self.in_hand):
                self._drop_table(table)
            else:
                self._round.append(table)

    def _sweep_or_drop(self, table: StateTable, now_us: int, *, hurry: bool) -> None:
        for _ in range(2):  # If the first only begins a generation, the second sweeps it.
            self._sweep_table(table, now_us, SWEEP_PER_TABLE, hurry=hurry)
        if table.shared:
            before = len(table.shared)
            table.sweep_shared(now_us, SWEEP_PER_TABLE)
            self.bytes -= SHARED_BYTES * (before - len(table.shared))

    def _sweep_table(self, table: StateTable, now_us: int, steps: int, *, hurry: bool) -> None:
        before = table.bytes
        dropped = table.sweep(now_us, steps, hurry=hurry)
        self._count_dropped(dropped, before - table.bytes)

    def _count_dropped(self, keys: int, weight: int) -> None:
        self.keys -= keys
        self.dropped += keys
        self.bytes -= weight

    def _add(self, table: StateTable) -> StateTable:
        """Take in a table whose name is free."""
        table.dropped = False
        self.tables[table.name] = table
        self._round.append(table)
        self.bytes += table_weight(table.limit)
        if table.stands_in:
            self._stand_ins[table.name] = table
        return table

    def _drop_table(self, table: StateTable) -> None:
        """Drop a table in which nothing is left."""
        del self.tables[table.name]
        self._stand_ins.pop(table.name, None)
        table.dropped = True
        self.bytes -= table_weight(table.limit)

    def _drop_own(self, table: StateTable, key: str) -> None:
        if table.get(key) is not None:
            table.drop(key)
            self.keys -= 1
            self._add_bytes(table, -weight_of(key))

    def _drop_shared(self, table: StateTable, index: int) -> None:
        if index in table.shared:
            table.drop_shared(index)
            self.bytes -= SHARED_BYTES

    def _add_bytes(self, table: StateTable, difference: int) -> None:
        table.bytes += difference
        self.bytes += difference


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    return secret
