"""What a region knows of all regions, in etcd: next to the counts of an etcd engine, or alone.

    head                       the epoch, and where the log begins and ends
    log/<number>               what a node has said: counters and their totals (`counter_log.py`)
    links/heard/<region>       when a region was last heard of
    links/taken/<region>       as of when it knows what this one has admitted
    links/shipper/<region>     the node that tells it, and until when

all under `/headgate/<cluster>/c/<namespace>/`. Every node keeps in memory what the log says. A merge is one
transaction: if the head is as the node knows it, the next entry is written, and the counters in it have grown for this
node alone; else nothing is written, and the entries that it has missed come with the answer, so that it can try again.
With nothing to say the transaction only reads, so an idle region writes nothing but signs of life. etcd has no clock;
times come from a given clock, which is the board's: next to an etcd engine, that of the cluster.

**No growth is told twice**, because at most one entry is written behind a head. **None is lost while the process
lives**: an entry whose fate is unknown is sent again before anything else, under the same id, and whoever merges then
is told what has grown by it. A node that is killed takes with it the growth that it has written and not charged, at
most one message: too little is charged then, as with Redis.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from ..engines.etcd.kind import etcd_module
from ..engines.etcd.options import parse_url
from ..engines.etcd.transactions import (
    ChangedAt,
    Delete,
    Item,
    Put,
    Read,
    TooLarge,
    end_of,
    explained,
)
from ..errors import EngineError
from .counter_log import CounterEntry, CounterHead, CounterLog, parts
from .store import LinkState, Merged, RegionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from ..engines.etcd.client import AsyncEtcdClient
    from ..engines.etcd.transactions import Operation
    from .counters import CounterTotal, Growth

DEADLINE_S: Final = 2.0
"""How long a merge waits for its turn on this node, and then tries while other nodes are faster."""
TIDY_S: Final = 10.0
"""After so long without an entry the log is cleaned for its own sake."""
TRIES: Final = 5
"""How often a node tries to become a shipper while others do."""
NOTES: Final = 64
"""How many rows about links are written at once: etcd takes 128 operations in one transaction."""
NEVER: Final = -1
"""A revision that no key has."""


class _Flight(NamedTuple):
    """An entry that is being written."""

    number: int
    base: int
    """Where the log begins after it."""
    entry: CounterEntry
    grown: list[Growth]
    operations: list[Operation]


class EtcdRegionStore:
    """Keeps it in etcd. Lives in one event loop."""

    def __init__(self, url: str, now_us: Callable[[], int], *, namespace: str = "") -> None:
        self._options = parse_url(url)
        self._now_us = now_us
        self._client_class = etcd_module("client").AsyncEtcdClient
        self._connected: AsyncEtcdClient | None = None
        root = f"/headgate/{self._options.cluster}/c/{quote(namespace, safe='')}/"
        self._root, self._head_key = root, f"{root}head"
        self._entries, self._links = f"{root}log/", f"{root}links/"
        self._turns = asyncio.Lock()
        self._log = CounterLog()
        self._epoch = ""
        """Empty until something was read."""
        self._seen = NEVER
        """The revision of the head that the log was read up to."""
        self._appended = time.monotonic()
        self._flight: _Flight | None = None
        """What may be in the log, or be there yet."""
        self._grown: list[Growth] = []
        """What has grown, and nobody was told yet."""
        self._noted: dict[str, bytes] = {}
        """Of links, what the next transaction writes."""
        self._rows: dict[str, Item] = {}
        """Of links, what the last transaction read."""

    @property
    def _client(self) -> AsyncEtcdClient:
        """Made when it is first used: it belongs to the event loop."""
        if self._connected is None:
            self._connected = self._client_class(self._options)
        return self._connected

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """See `RegionStore.merge`. What has grown before, and nobody was told, comes along."""
        async with self._turn():
            now_us = self._now_us()
            if heard_from:
                self._noted[f"heard/{heard_from}"] = str(now_us).encode()
            for part in parts(entries):
                await self._say(part, now_us)
            grown, self._grown = self._grown, []
            return Merged(RegionState(now_us, self._epoch, _links(self._rows)), grown)

    async def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """See `RegionStore.changes`. Numbers are this node's own."""
        async with self._turn():
            await self._say((), self._now_us())
            return self._log.replica.changes(since, most)

    async def lead(self, region: str, node: str, ttl_us: int) -> bool:
        """See `RegionStore.lead`."""
        name = f"shipper/{region}"
        with explained():
            for _ in range(TRIES):
                now_us = self._now_us()
                row = self._rows.get(name)
                if row is not None:
                    until_us, leader = _shipper(row)
                    if leader != node and until_us > now_us:
                        return False
                put = Put(self._links + name, f"{now_us + ttl_us}:{node}".encode())
                known = ChangedAt(put.key, 0 if row is None else row.changed)
                done = await self._client.transact([known], [put])
                if done.succeeded:
                    self._rows[name] = Item(put.key, put.value, 0, done.revision)
                    return True
                self._read_links((await self._client.read(self._links, end_of(self._links))).items)
        return False

    async def note_taken(self, region: str, taken_us: int) -> None:
        """See `RegionStore.note_taken`. It goes with what this node says next, an interval later at most."""
        self._noted[f"taken/{region}"] = str(taken_us).encode()

    async def counters_of(self, key: str) -> list[CounterTotal]:
        """See `RegionStore.counters_of`."""
        async with self._turn():
            await self._say((), self._now_us())
            return self._log.replica.entries_of(key)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            await self._connected.close()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One after the other: a node does not compete with itself."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._turns.acquire()
        except TimeoutError:
            raise EngineError(
                "etcd does not answer those who came before", transient=True
            ) from None
        try:
            with explained():
                yield
        finally:
            self._turns.release()

    async def _say(self, told: Sequence[CounterTotal], now_us: int) -> None:
        """Append what is new of this to the log, and read what others have appended."""
        self._log.forget(now_us)
        ends = time.monotonic() + DEADLINE_S
        while not await self._append(told, now_us):
            if time.monotonic() > ends:
                raise EngineError("other nodes keep writing to the log", transient=True)

    async def _append(self, told: Sequence[CounterTotal], now_us: int) -> bool:
        """One transaction; whether all of this is in the log now. If not, others were faster, and have been read."""
        if self._seen == NEVER:
            await self._load(now_us)
        again = self._flight is not None
        if not again:
            self._flight = self._prepared(told, now_us)
        flight = self._flight
        noted = dict(islice(self._noted.items(), NOTES))
        links = Read(self._links, end_of(self._links))
        missed = Read(self._entry_key(self._log.last + 1), end_of(self._entries))
        try:
            found = await self._client.branch(
                [ChangedAt(self._head_key, self._seen)],
                [
                    *(() if flight is None else flight.operations),
                    *(Put(self._links + name, row) for name, row in noted.items()),
                    links,
                ],
                [links, Read(self._head_key), missed],
            )
        except TooLarge:
            self._flight = None  # It never will be written.
            raise
        self._read_links(found.items)
        if not found.known:
            await self._catch_up(found.items, now_us)
            return False
        for name, row in noted.items():
            if self._noted.get(name) is row:
                del self._noted[name]
        if flight is not None:
            self._seen = found.revision
            self._hear(flight.entry, flight.number, flight.base, now_us)
        return not again

    def _prepared(self, told: Sequence[CounterTotal], now_us: int) -> _Flight | None:
        """What the log lacks of this, as the next entry; `None` if it lacks nothing."""
        log = self._log
        news = log.replica.news(told, now_us)
        idle = not news.entries and time.monotonic() - self._appended > TIDY_S
        carried, base = log.carried(news, tidy=idle)
        if not news.entries and base == log.base and self._seen:
            return None
        entry = CounterEntry(secrets.token_hex(8), [*news.entries, *carried])
        head = CounterHead(self._epoch, base, log.last + 1)
        operations: list[Operation] = [
            Put(self._entry_key(head.last), entry.pack()),
            Put(self._head_key, head.pack()),
        ]
        if base != log.base:
            operations.append(Delete(self._entry_key(log.base), self._entry_key(base)))
        return _Flight(head.last, base, entry, news.grown, operations)

    async def _catch_up(self, items: Sequence[Item], now_us: int) -> None:
        """Read what others have appended."""
        written = [one for one in items if one.key == self._head_key]
        head = CounterHead.unpack(written[0].value) if written else None
        log = self._log
        if (
            head is None
            or head.epoch != self._epoch
            or not head.base <= log.last + 1 <= head.last + 1
        ):
            await self._load(now_us)
            return
        await self._hear_all(items, head, now_us)
        self._seen = written[0].changed

    async def _load(self, now_us: int) -> None:
        """Read everything: at first, after a long silence, and when everything was lost."""
        items = (await self._client.read(self._root, end_of(self._root))).items
        written = [one for one in items if one.key == self._head_key]
        head = (
            CounterHead.unpack(written[0].value) if written else CounterHead(secrets.token_hex(8))
        )
        if head.epoch != self._epoch:
            # What grew in the old epoch will be told again by those who told it.
            self._log, self._epoch = CounterLog(), head.epoch
            self._grown.clear()
        self._log.begin_again(head.base)
        await self._hear_all(items, head, now_us)
        self._read_links(items)
        self._seen = written[0].changed if written else 0

    async def _hear_all(self, items: Iterable[Item], head: CounterHead, now_us: int) -> None:
        for item in items:
            if item.key.startswith(self._entries):
                number = int(item.key[len(self._entries) :], 16)
                if self._log.last < number <= head.last:
                    self._hear(CounterEntry.unpack(item.value), number, head.base, now_us)
                    await asyncio.sleep(0)  # Many of them would hold up everything else.
        self._flight = None  # What is not there by now never will be: the head is another.

    def _hear(self, entry: CounterEntry, number: int, base: int, now_us: int) -> None:
        """Read an entry, and know it again if this node wrote it."""
        self._log.take_in(number, base, entry.totals, now_us)
        self._appended = time.monotonic()
        if self._flight is not None and self._flight.entry.id == entry.id:
            self._grown += self._flight.grown
            self._flight = None

    def _read_links(self, items: Iterable[Item]) -> None:
        prefix = self._links
        self._rows = {one.key[len(prefix) :]: one for one in items if one.key.startswith(prefix)}

    def _entry_key(self, number: int) -> str:
        return f"{self._entries}{number:012x}"


def _links(rows: dict[str, Item]) -> dict[str, LinkState]:
    links: dict[str, LinkState] = {}
    for name, row in rows.items():
        what, _, region = name.partition("/")
        known = links.get(region, LinkState())
        if what == "taken":
            links[region] = known._replace(taken_us=int(row.value))
        elif what == "heard":
            links[region] = known._replace(heard_us=int(row.value))
        elif what == "shipper":
            links[region] = known._replace(shipper=_shipper(row)[1])
    return links


def _shipper(row: Item) -> tuple[int, str]:
    until_us, _, node = row.value.decode().partition(":")
    return int(until_us), node
