"""What a region knows of all regions, in etcd: next to the counts of an etcd engine, or alone.

    head                       the epoch, and where the log begins and ends
    log/<number>               counters that have grown, with their totals (`counter_log.py`)
    links/heard/<region>       when a region was last heard from
    links/taken/<region>       as of when it knows what this one has admitted
    links/shipper/<region>     the node that ships to it, and until when

all under `/headgate/<cluster>/c/<namespace>/`. Every node keeps the content of the log in memory. A merge is one
transaction: if the head is the one that the node knows, it writes the next entry, and the growth in it belongs to this
node alone. Otherwise it writes nothing and returns the entries that the node has missed, so that the node can try
again. Without news the transaction only reads, so an idle region writes only signs of life. etcd has no clock, so times
come from a given clock, the board's: next to an etcd engine, the cluster's.

**No growth is returned twice**, because at most one entry is written behind a head. **None is lost while the process
lives**: an entry whose outcome is unknown is sent again before anything else, with the same id, and the merge that
finds it in the log returns its growth. A node that is killed takes with it the growth that it has written and not
charged, at most one message: too little is charged then, as with Redis.
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
"""How long a merge waits for its turn on this node, and how long it retries while other nodes are faster."""
TIDY_S: Final = 10.0
"""After so many seconds without an entry, even a small log is cleaned."""
TRIES: Final = 5
"""How often a node tries to become the shipper while others do so, too."""
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
        """The revision of the head that this node has read."""
        self._appended = time.monotonic()
        self._flight: _Flight | None = None
        """An entry that may or may not be in the log."""
        self._grown: list[Growth] = []
        """Growth that no merge has returned yet."""
        self._noted: dict[str, bytes] = {}
        """Rows about links for the next transaction to write."""
        self._rows: dict[str, Item] = {}
        """Rows about links, as last read."""

    @property
    def _client(self) -> AsyncEtcdClient:
        """Made when it is first used: it belongs to the event loop."""
        if self._connected is None:
            self._connected = self._client_class(self._options)
        return self._connected

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """See `RegionStore.merge`. Also returns earlier growth that no merge has returned yet."""
        async with self._turn():
            now_us = self._now_us()
            if heard_from:
                self._noted[f"heard/{heard_from}"] = str(now_us).encode()
            for part in parts(entries):
                await self._exchange(part, now_us)
            grown, self._grown = self._grown, []
            return Merged(RegionState(now_us, self._epoch, _links(self._rows)), grown)

    async def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """See `RegionStore.changes`. Each node has its own numbers."""
        async with self._turn():
            await self._exchange((), self._now_us())
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
        """See `RegionStore.note_taken`. The next transaction of this node writes it, within an interval."""
        self._noted[f"taken/{region}"] = str(taken_us).encode()

    async def counters_of(self, key: str) -> list[CounterTotal]:
        """See `RegionStore.counters_of`."""
        async with self._turn():
            await self._exchange((), self._now_us())
            return self._log.replica.entries_of(key)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            await self._connected.close()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One call at a time: a node does not compete with itself."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._turns.acquire()
        except TimeoutError:
            raise EngineError(
                "earlier calls to etcd still wait for an answer", transient=True
            ) from None
        try:
            with explained():
                yield
        finally:
            self._turns.release()

    async def _exchange(self, told: Sequence[CounterTotal], now_us: int) -> None:
        """Append the news in this to the log, and read what others have appended."""
        self._log.forget(now_us)
        ends = time.monotonic() + DEADLINE_S
        while not await self._append(told, now_us):
            if time.monotonic() > ends:
                raise EngineError("other nodes keep writing to the log", transient=True)

    async def _append(self, told: Sequence[CounterTotal], now_us: int) -> bool:
        """Send one transaction; false if others were faster. What they appended is read by then."""
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
            self._flight = None  # It can never be written.
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
            self._apply(flight.entry, flight.number, flight.base, now_us)
        return not again

    def _prepared(self, told: Sequence[CounterTotal], now_us: int) -> _Flight | None:
        """The next entry, with the news in this; `None` if there is nothing to write."""
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
        await self._apply_all(items, head, now_us)
        self._seen = written[0].changed

    async def _load(self, now_us: int) -> None:
        """Read everything: at first, after a long silence, and when everything was lost."""
        items = (await self._client.read(self._root, end_of(self._root))).items
        written = [one for one in items if one.key == self._head_key]
        head = (
            CounterHead.unpack(written[0].value) if written else CounterHead(secrets.token_hex(8))
        )
        if head.epoch != self._epoch:
            # Other regions repeat what grew in the old epoch.
            self._log, self._epoch = CounterLog(), head.epoch
            self._flight = None
            self._grown.clear()
        self._log.begin_again(head.base)
        await self._apply_all(items, head, now_us)
        self._read_links(items)
        self._seen = written[0].changed if written else 0

    async def _apply_all(self, items: Iterable[Item], head: CounterHead, now_us: int) -> None:
        for item in items:
            if item.key.startswith(self._entries):
                number = int(item.key[len(self._entries) :], 16)
                if self._log.last < number <= head.last:
                    self._apply(CounterEntry.unpack(item.value), number, head.base, now_us)
                    await asyncio.sleep(0)  # Many entries must not block the event loop.
        self._flight = None  # It cannot be written any more: the head has changed.

    def _apply(self, entry: CounterEntry, number: int, base: int, now_us: int) -> None:
        """Apply an entry; if this node wrote it, its growth is to be returned."""
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
