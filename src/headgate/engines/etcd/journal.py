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
from itertools import islice
from typing import TYPE_CHECKING, Final

from .entries import MOST_BYTES, Entry, packed_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .shard import Ref, Shard

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
        self._entries: deque[tuple[int, int, deque[tuple[Shard, Ref]]]] = deque()
        """For each entry: its number, its number of rows, and those not checked by cleaning yet."""

    def __len__(self) -> int:
        return len(self._entries)

    def has_waste(self, alive: int) -> bool:
        """Whether an idle node should write an entry just to delete others."""
        return self.rows > 3 * alive

    def pack(self, shards: Iterable[Shard], now_us: int, *, tidy: bool = False) -> list[Entry]:
        """Entries with all changes; usually one. With `tidy`, also repeats old rows so that their entries can go."""
        shards = list(shards)
        rows = [(shard, ref) for shard in shards for ref in shard.take_off()]
        changed = len(rows)
        for shard, ref in rows:
            shard.where[ref] = (
                self.next
            )  # So that cleaning does not repeat them from an older entry.
        for shard in shards:
            if not shard.imports:
                continue
            few = [shard.imports.popleft() for _ in range(min(CARRIED, len(shard.imports)))]
            # Places that have changed since are in the journal already.
            rows += [(shard, ref) for ref in few if ref not in shard.where]
            if len(rows) - changed >= CARRIED:
                break
        most = 0 if tidy else FEW_ROWS
        if self.rows > most:
            most = max(most, 3 * sum(shard.store.size for shard in shards))
        carried, base = self._cleaned(most)
        rows += carried
        if not rows and base == self.base:
            return []
        return self._entries_of(rows, base, now_us)

    def _entries_of(self, rows: list[tuple[Shard, Ref]], base: int, now_us: int) -> list[Entry]:
        """As many entries as needed; only the last one drops old ones, when everything is written."""
        values = _split(rows, base, self.base, now_us)
        entries = []
        for place, (value, those) in enumerate(values):
            done, kept = self.base, base if place == len(values) - 1 else self.base
            entries.append(Entry(self.next, value, kept, done))
            self._entries.append((self.next, len(those), deque(those)))
            for shard, ref in those:
                shard.where[ref] = self.next
            self.rows += len(those)
            self.next += 1
        self.base = base
        return entries

    def _cleaned(self, most: int) -> tuple[list[tuple[Shard, Ref]], int]:
        """The rows of the oldest entries to repeat, and the first entry that is needed after that."""
        carried: list[tuple[Shard, Ref]] = []
        while self._entries and (self.rows > most or len(self._entries) > MOST_ENTRIES):
            number, count, refs = self._entries[0]
            while refs and len(carried) < CARRIED:
                shard, ref = refs[0]
                if shard.needed and shard.where.get(ref) == number:
                    # After a hand-over it stays unchanged until the next owner has read it.
                    if not shard.serving:
                        return carried, number
                    if shard.exists(ref) or shard.importing:
                        carried.append((shard, ref))
                    else:
                        del shard.where[ref]
                refs.popleft()
            if refs:
                return carried, number
            self._entries.popleft()
            self.rows -= count
        return carried, self._entries[0][0] if self._entries else self.next


def _split(
    rows: list[tuple[Shard, Ref]], base: int, old_base: int, now_us: int
) -> list[tuple[bytes, list[tuple[Shard, Ref]]]]:
    """Split the rows into pieces that etcd accepts; only the last one moves the base."""
    value = packed_rows(rows, base, now_us)
    if len(value) <= MOST_BYTES or len(rows) == 1:
        return [(value, rows)]
    half = len(rows) // 2
    first, second = list(islice(rows, half)), rows[half:]
    return [
        *_split(first, old_base, old_base, now_us),
        *_split(second, base, old_base, now_us),
    ]
