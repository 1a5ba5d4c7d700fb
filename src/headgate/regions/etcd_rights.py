"""EtcdRightsStore: the escrow steps in a region's etcd, next to its counts.

    epoch                      the id of the store's epoch, ':' and when it began
    taken/<region>             rights taken back: from when, ':' and until when
    granted/<end>/<key>        one window of a key: units received from and given to other regions, by region
    asks/<end>/<id>            the grant for this ask is on record

all under `/headgate/<cluster>/r/<namespace>/`. A grant is one transaction, which succeeds if the record is unchanged,
the ask is not on record, and the epoch is the same. etcd does not lose what it has confirmed, and the engine answers
only after that. Only deleting everything can end the epoch; that is noticed within a second.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from ..engines.etcd.kind import etcd_module
from ..engines.etcd.options import parse_url
from ..engines.etcd.transactions import (
    ChangedAt,
    CreatedAt,
    Delete,
    NotDone,
    Put,
    Unsure,
    end_of,
    explained,
)
from ..errors import EngineError
from .escrow import StoreEpoch
from .rights_steps import KEPT_US, RightsSteps, field_of
from .taken_back import TakenBack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engines.etcd.client import AsyncEtcdClient
    from ..engines.etcd.transactions import Condition, Item
    from .escrow import KeyWindow, RightsGrant

TRIES: Final = 20
"""How often to retry a record that others change at the same time."""
CLEAN_EVERY: Final = 30
"""How many reads of the epoch between two cleanups of old windows."""


class EtcdRightsStore(RightsSteps):
    """A region's counts, grants and epoch, in its etcd. Lives in one event loop."""

    def __init__(self, url: str, namespace: str = "") -> None:
        super().__init__()
        self._options = parse_url(url)
        self._root = f"/headgate/{self._options.cluster}/r/{quote(namespace, safe='')}/"
        self._epoch_created = 0
        self._connected: AsyncEtcdClient | None = None
        self._looks = 0

    @property
    def _client(self) -> AsyncEtcdClient:
        """Created on first use: it belongs to the event loop."""
        if self._connected is None:
            self._connected = etcd_module("client").AsyncEtcdClient(self._options)
        return self._connected

    def open(self, engine: Any) -> None:
        """See `RightsSteps.open`."""
        self._engine = engine

    def now_us(self) -> int:
        """The current time on the cluster's clock."""
        now_us: int = self._engine.clock.now_us()
        return now_us

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            await self._connected.close()

    async def look(self) -> None:
        """Read the epoch; the first reader begins it."""
        key = f"{self._root}epoch"
        with explained():
            found = (await self._client.read(key)).items
            if not found:
                value = f"{secrets.token_hex(8)}:{self.now_us()}".encode()
                await self._client.transact([CreatedAt(key, 0)], [Put(key, value)])
                found = (await self._client.read(key)).items
        (item,) = found
        id_, _, began_us = item.value.decode().partition(":")
        self.epoch, self._epoch_created = StoreEpoch(id_, int(began_us)), item.created
        self._looks += 1
        if self._looks % CLEAN_EVERY == 0:
            with suppress(NotDone, Unsure):  # Another node does it, or the next cleanup.
                await self._forget(self.now_us() - KEPT_US)

    async def taken_back(self) -> dict[str, TakenBack]:
        """See `RightsSteps.taken_back`."""
        prefix = f"{self._root}taken/"
        with explained():
            rows = (await self._client.read(prefix, end_of(prefix))).items
        found = {}
        for row in rows:
            from_us, _, until_us = row.value.partition(b":")
            found[unquote(row.key[len(prefix) :])] = TakenBack(int(from_us), int(until_us))
        return found

    async def take_back(self, region: str, taken: TakenBack) -> None:
        """See `RightsSteps.take_back`."""
        value = f"{taken.from_us}:{taken.until_us}".encode()
        with explained():
            await self._client.transact([], [Put(f"{self._root}taken/{region}", value)])

    async def granted(self, window: KeyWindow) -> tuple[str, int]:
        """See `RightsSteps.granted`."""
        _, record = await self._read(window)
        return self.epoch.id, sum(record["from"].values())

    async def note_given(self, window: KeyWindow, region: str, units: int) -> None:
        """See `RightsSteps.note_given`."""
        await self._add(window, "to", region, units, secrets.token_hex(8))

    async def moved(
        self, window: KeyWindow, regions: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """See `RightsSteps.moved`."""
        _, record = await self._read(window)
        received, given = (
            {name: units for name, units in record[way].items() if name in regions}
            for way in ("from", "to")
        )
        return received, given

    async def _record(self, grant: RightsGrant) -> int | None:
        ask = grant.ask
        if ask.epoch != self.epoch.id:
            return None
        return await self._add(ask.window, "from", ask.giver, grant.units, ask.id)

    async def _add(
        self, window: KeyWindow, way: str, region: str, units: int, ask: str
    ) -> int | None:
        """Add to the record of a window, once per ask; returns the total granted, or `None` if the epoch differs.

        A transaction may be sent twice; the second one fails, because the ask is on record by then.
        """
        key, epoch = self._key(window), f"{self._root}epoch"
        asked = f"{self._root}asks/{window.end_us:017d}/{quote(ask, safe='')}"
        for _ in range(TRIES):
            item, record = await self._read(window)
            record[way][region] = record[way].get(region, 0) + units
            conditions: list[Condition] = [
                ChangedAt(key, 0 if item is None else item.changed),
                CreatedAt(epoch, self._epoch_created),
                CreatedAt(asked, 0),
            ]
            packed = json.dumps(record, separators=(",", ":")).encode()
            with explained():
                done = await self._client.transact(conditions, [Put(key, packed), Put(asked, b"")])
                if done.succeeded:
                    return sum(record["from"].values())
                if (await self._client.read(asked)).items:
                    return (await self.granted(window))[1]
            before = self.epoch.id
            await self.look()
            if self.epoch.id != before:
                return None
        raise EngineError("others keep changing what was granted", transient=True)

    async def _read(self, window: KeyWindow) -> tuple[Item | None, dict[str, dict[str, int]]]:
        with explained():
            found = (await self._client.read(self._key(window))).items
        if not found:
            return None, {"from": {}, "to": {}}
        return found[0], json.loads(found[0].value)

    async def _forget(self, before_us: int) -> None:
        """Delete records of windows that ended before this time."""
        await self._client.transact(
            [],
            [
                Delete(f"{self._root}{kind}/", f"{self._root}{kind}/{max(0, before_us):017d}")
                for kind in ("granted", "asks")
            ],
        )

    def _key(self, window: KeyWindow) -> str:
        name = quote(field_of(window), safe="")
        return f"{self._root}granted/{window.end_us:017d}/{name}"
