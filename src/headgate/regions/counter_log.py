"""What a region knows of all counters, as a log that all of its nodes append to. Pure.

An entry lists counters that have grown, with their totals. Every node has read all entries, so it knows the largest
total of each counter, and by how much the next entry exceeds it. If a store appends an entry only behind the last one
that its writer has read, there is one order for all nodes, and every growth belongs to one of them.

**It cleans itself**, as the journal of the etcd engine does: when its entries list more than three times as many
counters as still count, the next entry repeats what still counts of the oldest ones, and those are deleted. So a log
that is read from its base is complete.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import EngineError, UsageError
from .counters import CounterTotal, Replica
from .messages import counters_content, read_counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .counters import Counter, News

VERSION: Final = 1
CARRIED: Final = 512
"""How many counters an entry repeats at most."""
FEW_COUNTERS: Final = 10_000
"""So many counters are listed before any are repeated, unless the region is idle."""
MOST_ENTRIES: Final = 1_024
MOST_BYTES: Final = 262_144
"""The most bytes of new counters in an entry, and of repeated ones: etcd takes 1.5 MB in one transaction."""


class CounterHead(NamedTuple):
    """Where a log begins and ends."""

    epoch: str
    """Another one if everything was lost."""
    base: int = 1
    """The first entry that is needed."""
    last: int = 0

    def pack(self) -> bytes:
        """As it is stored."""
        return json.dumps([VERSION, *self]).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> CounterHead:
        """The inverse of `pack`."""
        with _readable():
            epoch, base, last = _values(packed)
            return cls(str(epoch), int(base), int(last))


class CounterEntry(NamedTuple):
    """What a node appends at once."""

    id: str
    """By which its writer recognizes it."""
    totals: Sequence[CounterTotal]

    def pack(self) -> bytes:
        """As it is stored."""
        row = [VERSION, self.id, counters_content(self.totals)]
        return zlib.compress(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode(), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> CounterEntry:
        """The inverse of `pack`."""
        with _readable():
            id_, content = _values(zlib.decompress(packed))
            return cls(str(id_), read_counters(content))


class CounterLog:
    """The log as far as this node has read it."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.base, self.last = 1, 0
        self._entries: deque[tuple[int, list[Counter]]] = deque()
        """The number of each entry, and the counters in it."""
        self._listed = 0
        self._where: dict[Counter, int] = {}
        """The last entry that lists a counter."""

    def __len__(self) -> int:
        return len(self._entries)

    def begin_again(self, base: int) -> None:
        """Prepare to read from the base; known totals stay known."""
        self.base, self.last = base, base - 1
        self._entries.clear()
        self._where.clear()
        self._listed = 0

    def take_in(self, number: int, base: int, totals: Sequence[CounterTotal], now_us: int) -> None:
        """Apply the next entry. From then on the log begins at `base`."""
        self.replica.merge(totals, now_us)
        counters = [(name, actor) for name, actor, _ in totals]
        for counter in counters:
            if counter in self.replica:
                self._where[counter] = number
        self._entries.append((number, counters))
        self._listed += len(counters)
        while self._entries and self._entries[0][0] < base:
            self._listed -= len(self._entries.popleft()[1])
        self.base, self.last = base, number

    def forget(self, now_us: int) -> None:
        """Drop counters that have stopped counting."""
        for counter in self.replica.forget(now_us):
            self._where.pop(counter, None)

    def carried(self, news: News, *, tidy: bool) -> tuple[list[CounterTotal], int]:
        """What the next entry repeats besides its news, and where the log begins after it.

        With `tidy`, even a small log is cleaned.
        """
        alive = 3 * len(self.replica)
        most = alive if tidy else max(alive, FEW_COUNTERS)
        said = {(name, actor) for name, actor, _ in news.entries}
        carried: list[CounterTotal] = []
        listed, many, size = self._listed, len(self._entries), 0
        for number, counters in self._entries:
            if listed + len(carried) <= most and many <= MOST_ENTRIES:
                return carried, number
            for counter in counters:
                if self._where.get(counter) != number or counter in said:
                    continue
                said.add(counter)
                total = CounterTotal(*counter, self.replica.total(counter))
                size += _size(total)
                if size > MOST_BYTES or len(carried) == CARRIED:
                    return carried, number
                if total.total:
                    carried.append(total)
            listed -= len(counters)
            many -= 1
        return carried, self.last + 1


def parts(totals: Iterable[CounterTotal]) -> Iterator[list[CounterTotal]]:
    """The totals in parts that each fit into an entry; one empty part if there are none."""
    part: list[CounterTotal] = []
    size = 0
    for one in totals:
        size += _size(one)
        if size > MOST_BYTES and part:
            yield part
            part, size = [], _size(one)
        part.append(one)
    yield part


def _size(one: CounterTotal) -> int:
    """Roughly how many bytes a counter takes."""
    name, actor, _ = one
    return 200 + 2 * (len(name.key) + len(name.rule or "") + sum(map(len, actor)))


def _values(packed: bytes) -> list[Any]:
    read: list[Any] = json.loads(packed)
    version, *values = read
    if version != VERSION:
        raise UsageError(f"it has the version {version!r:.20}, and this node understands {VERSION}")
    return values


@contextmanager
def _readable() -> Iterator[None]:
    """Raise what cannot be read as an error of the store."""
    try:
        yield
    except (UsageError, ValueError, TypeError, zlib.error) as error:
        problem = f"the log of this region cannot be read: {error}"
        raise EngineError(problem, transient=False) from error
