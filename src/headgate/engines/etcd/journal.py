"""The journal of a node: which entries are needed, and what goes into the next one.

**It cleans itself.** Only the last entry about a place is valid, so an old entry is needed only for places that have
not changed since. When the journal has more than three times as many rows as there are live states, the next entry
repeats what is still needed of the oldest ones, and the same transaction deletes them. There are no snapshots, so there
is one format, one way to load, and no pause. An empty place is repeated only while an earlier owner's journal may
contradict it.

**Imports** work the same way: what was loaded from another node's journal is repeated in this one, a few hundred places
per commit.

No I/O: it only produces entries. It need not know their outcome, because an entry is sent until it is confirmed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .entries import MOST_BYTES, Entry, packed_rows
from .shard import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .marks import Marks
    from .shard import Shard

CARRIED: Final = 512
"""How many places an entry repeats at most."""
FEW_ROWS: Final = 10_000
"""This many rows are always allowed, while there is other work to do."""
MOST_ENTRIES: Final = 4_096


class Journal:
    """Everything a node has written and may still need."""

    def __init__(self) -> None:
        self.next = 1
        """The number of the next entry."""
        self.base = 1
        """The first entry that is needed."""
        self.rows = 0
        """The number of rows in all entries, including outdated ones."""
        self._entries: deque[tuple[int, int, list[Rows]]] = deque()
        """For each entry: its number, its number of rows, and those not checked by cleaning yet."""

    def __len__(self) -> int:
        return len(self._entries)

    def has_waste(self, alive: int) -> bool:
        """Whether an idle node should write an entry just to delete others."""
        return self.rows > 3 * alive

    def pack(self, shards: Iterable[Shard], now_us: int, *, tidy: bool = False) -> list[Entry]:
        """Entries with all changes; usually one. With `tidy`, also repeats old rows so that their entries can go."""
        shards = list(shards)
        rows = [one for shard in shards if shard.is_dirty for one in shard.take_off()]
        rows += _imported(shards)
        most = 0 if tidy else FEW_ROWS
        if self.rows > most:
            most = max(most, 3 * sum(shard.store.size for shard in shards))
        carried, base = self._cleaned(most)
        rows += carried
        if not rows and base == self.base:
            return []
        return self._entries_of(rows, base, now_us)

    def _entries_of(self, rows: list[Rows], base: int, now_us: int) -> list[Entry]:
        """As many entries as needed; only the last one drops old ones, when everything is written."""
        values = _split(rows, base, self.base, now_us)
        entries = []
        for place, (value, those) in enumerate(values):
            done, kept = self.base, base if place == len(values) - 1 else self.base
            entries.append(Entry(self.next, value, kept, done))
            for _, marks, places in those:
                marks.written.update(dict.fromkeys(places, self.next))
            count = _count(those)
            self._entries.append((self.next, count, those))
            self.rows += count
            self.next += 1
        self.base = base
        return entries

    def _cleaned(self, most: int) -> tuple[list[Rows], int]:
        """The rows of the oldest entries to repeat, and the first entry that is needed after that."""
        carried: list[Rows] = []
        room = CARRIED
        while self._entries and (self.rows > most or len(self._entries) > MOST_ENTRIES):
            number, count, unchecked = self._entries[0]
            while unchecked:
                shard, marks, places = unchecked[-1]
                needed = _written_last(marks, places, number) if shard.needed else []
                # After a hand-over it stays unchanged until the next owner has read it.
                if needed and not shard.serving:
                    return carried, number
                unchecked.pop()
                alive = _taken_alive(shard, marks, needed, room)
                if alive:
                    carried.append(Rows(shard, marks, alive))
                    room -= len(alive)
                if needed:
                    unchecked.append(Rows(shard, marks, needed))
                    return carried, number
            self._entries.popleft()
            self.rows -= count
        return carried, self._entries[0][0] if self._entries else self.next


def _imported(shards: Sequence[Shard]) -> list[Rows]:
    """The next few places that are to be imported; those that have changed since are in the journal already."""
    rows: list[Rows] = []
    room = CARRIED
    for shard in shards:
        while shard.imports and room:
            _, marks, places = shard.imports.popleft()
            few, rest = places[:room], places[room:]
            room -= len(few)
            if rest:
                shard.imports.appendleft(Rows(shard, marks, rest))
            written, flying = marks.written, marks.flying
            new = [place for place in few if place not in written and place not in flying]
            if new:
                rows.append(Rows(shard, marks, new))
    return rows


def _written_last(marks: Marks, places: list[Any], number: int) -> list[Any]:
    """The places that no later entry contains, nor the one that is being packed."""
    written, flying = marks.written, marks.flying
    return [place for place in places if written.get(place) == number and place not in flying]


def _taken_alive(shard: Shard, marks: Marks, needed: list[Any], most: int) -> list[Any]:
    """Take at most so many places off the list that have to be repeated, and drop those where nothing is left."""
    alive: list[Any] = []
    while needed and len(alive) < most:
        place = needed.pop()
        if shard.importing or shard.exists(marks.name, place):
            alive.append(place)
        else:
            del marks.written[place]
    return alive


def _count(rows: Iterable[Rows]) -> int:
    return sum(len(one.places) for one in rows)


def _split(
    rows: list[Rows], base: int, old_base: int, now_us: int
) -> list[tuple[bytes, list[Rows]]]:
    """Split the rows into pieces that etcd accepts; only the last one moves the base."""
    value = packed_rows(rows, base, now_us)
    if len(value) <= MOST_BYTES or _count(rows) == 1:
        return [(value, rows)]
    first, second = _halves(rows)
    return [
        *_split(first, old_base, old_base, now_us),
        *_split(second, base, old_base, now_us),
    ]


def _halves(rows: list[Rows]) -> tuple[list[Rows], list[Rows]]:
    if len(rows) > 1:
        half = len(rows) // 2
        return rows[:half], rows[half:]
    (one,) = rows
    half = len(one.places) // 2
    return [one._replace(places=one.places[:half])], [one._replace(places=one.places[half:])]
