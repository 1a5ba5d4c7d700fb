"""What a region knows of all counters, as a log that all of its nodes append to. Pure.

An entry says what has grown: counters and their totals. Every node has read all entries, so it knows the largest total
of each counter and what the next entry adds to it. A store that appends an entry only behind the one that its writer
has read last gives all nodes one order, and every growth to one of them.

**It cleans itself**, as the journal of the etcd engine does: when its entries name three times as many counters as
still count, the next entry says again what counts of the oldest ones, and those can go. A log that is read from its
base is therefore complete.
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
"""How many counters an entry says again at most."""
FEW_COUNTERS: Final = 10_000
"""So many are named before anything is said again, while there is something new to say."""
MOST_ENTRIES: Final = 1_024
MOST_BYTES: Final = 262_144
"""How long what is new in an entry may be, and what it says again: etcd takes 1.5 MB in one transaction."""


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
    """What one node says at once."""

    id: str
    """By which its writer knows it again."""
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
        """Of each entry its number, and what it names."""
        self._named = 0
        self._where: dict[Counter, int] = {}
        """The last entry that names a counter."""

    def __len__(self) -> int:
        return len(self._entries)

    def begin_again(self, base: int) -> None:
        """Read it from its base; what is known stays known."""
        self.base, self.last = base, base - 1
        self._entries.clear()
        self._where.clear()
        self._named = 0

    def take_in(self, number: int, base: int, totals: Sequence[CounterTotal], now_us: int) -> None:
        """Read the next entry. The log begins at `base` from then on."""
        self.replica.merge(totals, now_us)
        counters = [(name, actor) for name, actor, _ in totals]
        for counter in counters:
            if counter in self.replica:
                self._where[counter] = number
        self._entries.append((number, counters))
        self._named += len(counters)
        while self._entries and self._entries[0][0] < base:
            self._named -= len(self._entries.popleft()[1])
        self.base, self.last = base, number

    def forget(self, now_us: int) -> None:
        """Drop counters that do not count any more."""
        for counter in self.replica.forget(now_us):
            self._where.pop(counter, None)

    def carried(self, news: News, *, tidy: bool) -> tuple[list[CounterTotal], int]:
        """What the next entry has to say again besides what is new, and where the log begins after it.

        With `tidy` it is cleaned as far as it can be, also while it is small.
        """
        alive = 3 * len(self.replica)
        most = alive if tidy else max(alive, FEW_COUNTERS)
        said = {(name, actor) for name, actor, _ in news.entries}
        carried: list[CounterTotal] = []
        named, many, size = self._named, len(self._entries), 0
        for number, counters in self._entries:
            if named + len(carried) <= most and many <= MOST_ENTRIES:
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
            named -= len(counters)
            many -= 1
        return carried, self.last + 1


def parts(totals: Iterable[CounterTotal]) -> Iterator[list[CounterTotal]]:
    """The same in pieces of which each fits into an entry; one of nothing, if there is nothing."""
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
    """About how many bytes a counter takes."""
    name, actor, _ = one
    return 200 + 2 * (len(name.key) + len(name.rule or "") + sum(map(len, actor)))


def _values(packed: bytes) -> list[Any]:
    version, *values = json.loads(packed)
    if version != VERSION:
        raise UsageError(f"it has the version {version!r:.20}, and this node understands {VERSION}")
    return values


@contextmanager
def _readable() -> Iterator[None]:
    """Whatever cannot be read is a problem of the store."""
    try:
        yield
    except (UsageError, ValueError, TypeError, zlib.error) as error:
        problem = f"the log of this region cannot be read: {error}"
        raise EngineError(problem, transient=False) from error
