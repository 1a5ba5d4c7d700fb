"""The journal of a node: which entries are needed, and what the next one says.

**It cleans itself.** A place is right where it was written last, so an old entry is needed only for places that nobody
has touched since. When there is more in the journal than three times what is alive, the next entry says again what is
still needed of the oldest ones, and those are deleted with the same transaction. There are no snapshots, so there is
one format, one way to load, and no pause. A place with nothing in it is said again only while an earlier owner's
journal may say otherwise.

**Imports** go the same way: what was loaded from another node's journal is said in this one, a few hundred places with
each commit.

No I/O: it gives entries, and is told nothing of how they fare, because an entry is sent until it is confirmed.
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
"""How many places an entry says again at most."""
FEW_ROWS: Final = 10_000
"""So many rows are kept whatever is alive, while there is other work to do."""
MOST_ENTRIES: Final = 4_096


class Journal:
    """Everything a node has written and may still need."""

    def __init__(self) -> None:
        self.next = 1
        """The number of the next entry."""
        self.base = 1
        """The first entry that is needed."""
        self.rows = 0
        """How many places all entries name, those that were named again since among them."""
        self._entries: deque[tuple[int, int, deque[tuple[Shard, Ref]]]] = deque()
        """Of each entry its number, how many places it named, and those that were not looked at since."""

    def __len__(self) -> int:
        return len(self._entries)

    def has_waste(self, alive: int) -> bool:
        """Whether an idle node should write an entry only to get rid of others."""
        return self.rows > 3 * alive

    def pack(self, shards: Iterable[Shard], now_us: int, *, tidy: bool = False) -> list[Entry]:
        """Entries that say all that has changed; usually one. `tidy`: also get rid of what is not needed."""
        shards = list(shards)
        rows = [(shard, ref) for shard in shards for ref in shard.take_off()]
        changed = len(rows)
        for shard in shards:
            few = [shard.imports.popleft() for _ in range(min(CARRIED, len(shard.imports)))]
            # What was said since is in the journal as it is now.
            rows += [(shard, ref) for ref in few if ref not in shard.where]
            if len(rows) - changed >= CARRIED:
                break
        alive = sum(shard.store.size for shard in shards)
        carried, base = self._cleaned(set(rows), 3 * alive if tidy else max(3 * alive, FEW_ROWS))
        rows += carried
        if not rows and base == self.base:
            return []
        return self._entries_of(rows, base, now_us)

    def _entries_of(self, rows: list[tuple[Shard, Ref]], base: int, now_us: int) -> list[Entry]:
        """As many entries as it takes; only the last one lets go of old ones, when all is said."""
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

    def _cleaned(
        self, fresh: set[tuple[Shard, Ref]], most: int
    ) -> tuple[list[tuple[Shard, Ref]], int]:
        """What to say again of the oldest entries, and the first entry that is needed then."""
        carried: list[tuple[Shard, Ref]] = []
        while self._entries and (self.rows > most or len(self._entries) > MOST_ENTRIES):
            number, count, refs = self._entries[0]
            while refs and len(carried) < CARRIED:
                shard, ref = refs[0]
                if shard.needed and shard.where.get(ref) == number and (shard, ref) not in fresh:
                    if (
                        not shard.serving
                    ):  # Handed over: it stays as it is until the next owner has read it.
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
    """The rows in pieces that etcd takes; those in front of the last leave the base as it was."""
    value = packed_rows(rows, base, now_us)
    if len(value) <= MOST_BYTES or len(rows) == 1:
        return [(value, rows)]
    half = len(rows) // 2
    first, second = list(islice(rows, half)), rows[half:]
    return [
        *_split(first, old_base, old_base, now_us),
        *_split(second, base, old_base, now_us),
    ]
