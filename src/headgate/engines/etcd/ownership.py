"""Ownership: which shards an incarnation claims, loads, hands over and drops.

    free ──claim──▶ loading ──▶ serving ──▶ draining ──release──▶ free

The map in etcd is authoritative. A claim may succeed without its answer arriving, so a shard that is ours according to
the map is loaded, and any other is dropped. Every write of a shard's record compares the revision of its last change,
and that this incarnation has not been fenced.

**Taking over**: claim, read the journals that the record names, serve, and then repeat everything in this node's own
journal; until that is done the record also names the old journals. **Handing over**: stop deciding, wait until
everything is committed, and mark the shard as free; the next owner reads it from this node's journal, which is kept
that long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from .assignment import assign
from .entries import JournalContent, read_journal, unpacked
from .records import Tenure
from .shard import Shard
from .transactions import ChangedAt, CreatedAt, Delete, NotDone, Put, Unsure, end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cluster_clock import ClusterClock
    from .incarnation import Incarnation
    from .records import ShardRecord
    from .transactions import Condition, Operation

AT_ONCE: Final = 40
"""Shards per transaction: etcd allows 128 conditions."""
CALM_S: Final = 2.0
"""How long the members must have been unchanged before a shard is handed over."""
READ_S: Final = 5.0
"""How often the map is read, even without events from the watch."""
SOON_S: Final = 0.02
SLICE_S: Final = 0.005
"""How long loading may block the event loop."""
SWEPT_TABLES: Final = 64
log = logging.getLogger("headgate.etcd")


class Ownership:
    """The shards of one incarnation."""

    def __init__(
        self,
        incarnation: Incarnation,
        serving: list[Shard | None],
        changed: Callable[[], None],
        cluster_clock: ClusterClock | None,
    ) -> None:
        self._own = incarnation
        self._serving = serving
        """The shards that decide, by number; read by every decision."""
        self._changed = changed
        self._clock = cluster_clock
        self._loop = asyncio.get_running_loop()
        self._left: list[Shard] = []
        """Shards handed over that the next owner has not fully read yet."""
        self._orphans: set[str] = set()
        """Incarnations whose journals have been imported."""
        self._calm_since = self._loop.time()
        self._members: frozenset[str] = frozenset()
        self.draining = False
        """Whether everything is being handed over."""

    async def tend(self) -> None:
        """Act on the map whenever it changes."""
        own = self._own
        while True:
            own.map_changed.clear()
            busy = False
            try:
                await own.read_map()
                busy = await self._step()
            except (NotDone, Unsure) as error:
                log.info("the map of the cluster is read again: %s", error)
                busy = True
            try:
                async with asyncio.timeout(SOON_S if busy else self._pause_s()):
                    await own.map_changed.wait()
            except TimeoutError:
                pass

    def _pause_s(self) -> float:
        until_calm = self._calm_since + CALM_S - self._loop.time()
        return until_calm + SOON_S if 0 < until_calm < READ_S else READ_S

    async def _step(self) -> bool:
        """Read the map once and act on it; returns whether there is more to do soon."""
        own = self._own
        members = frozenset(own.map.members)
        if members != self._members:
            self._members, self._calm_since = members, self._loop.time()
        self._let_go()
        await self._load()
        if self.draining:
            await self._release(list(own.shards.values()))
            return bool(own.shards)
        targets = assign(own.map, own.settings.numbers)
        await self._claim([number for number, name in targets.items() if name == own.name])
        busy = await self._finish_imports()
        calm = self._loop.time() - self._calm_since >= CALM_S
        # A hand-over that has begun is finished, even if the shard should stay here by now: the transaction that
        # releases it may still be on its way to etcd. Once the shard is free, its target claims it again.
        moving = [
            shard
            for shard in own.shards.values()
            if not shard.serving or (calm and targets.get(shard.number) != own.name)
        ]
        await self._release(moving)
        busy = busy or bool(moving)
        await self._delete_orphans()
        return busy

    def _let_go(self) -> None:
        """Drop shards that are no longer ours, and journal rows that nobody needs."""
        own = self._own
        for number, shard in list(own.shards.items()):
            record = own.map.shard(number).record
            if (record.holder, record.epoch) != (own.name, shard.epoch):
                self._drop(shard)
                self._left.append(shard)
            elif not record.sources:
                shard.importing = False
        for shard in list(self._left):
            record = own.map.shard(shard.number).record
            if Tenure(own.name, shard.epoch) not in record.sources:
                shard.needed = False
                self._left.remove(shard)

    def _drop(self, shard: Shard) -> None:
        shard.serving = False
        if self._serving[shard.number] is shard:
            self._serving[shard.number] = None
        self._own.shards.pop(shard.number, None)
        self._changed()

    # Taking over

    async def _claim(self, numbers: Sequence[int]) -> None:
        own = self._own
        free = [number for number in numbers if own.map.is_free(number)]
        for start in range(0, len(free), AT_ONCE):
            conditions: dict[Condition, None] = {own.fence: None}
            puts: list[Operation] = []
            for number in free[start : start + AT_ONCE]:
                record, changed = own.map.shard(number)
                conditions[ChangedAt(own.paths.shard(number), changed)] = None
                if record.holder:
                    conditions[CreatedAt(own.paths.member(record.holder), 0)] = None
                claimed = record.claimed(own.name)
                puts.append(Put(own.paths.shard(number), claimed.encode()))
            await own.client.transact(list(conditions), puts)
        if free:  # Whatever the outcome: the map shows what is ours now.
            await own.read_map()
            await self._load()

    async def _load(self) -> None:
        """Load every shard that is ours according to the map."""
        own = self._own
        records = {
            number: stored.record
            for number, stored in own.map.shards.items()
            if stored.record.holder == own.name and number not in own.shards
        }
        if not records:
            return
        journals: dict[str, JournalContent] = {}
        for name in dict.fromkeys(
            tenure.incarnation for record in records.values() for tenure in record.sources
        ):
            journals[name] = await self._read(name)
        if self._clock is not None and journals:
            self._clock.not_before(max(one.now_us for one in journals.values()))
        pause = _Pauses(self._loop.time)
        for number, record in records.items():
            own.shards[number] = await self._loaded(number, record, journals, pause)
            self._serving[number] = own.shards[number]
            own.shards[number].serving = True
            self._changed()
        own.wake()

    async def _read(self, name: str) -> JournalContent:
        own = self._own
        prefix = own.paths.journal(name)
        found = await own.client.read(prefix, end_of(prefix))
        entries: list[tuple[int, Any]] = []
        pause = _Pauses(self._loop.time)
        for item in found.items:
            entries.append((int(item.key[len(prefix) :], 16), unpacked(item.value)))
            await pause()
        return read_journal(name, entries)

    async def _loaded(
        self,
        number: int,
        record: ShardRecord,
        journals: dict[str, JournalContent],
        pause: _Pauses,
    ) -> Shard:
        own = self._own
        shards = own.settings.shards
        shard = Shard(
            number,
            record.epoch,
            own.clock,
            own.settings.secret,
            max(1_000, own.options.max_keys // shards),
            max(1_000_000, own.options.max_bytes // shards),
        )
        for tenure in record.sources:
            for rows in journals[tenure.incarnation].rows.get((number, tenure), ()):
                shard.restore(rows)
                await pause()
        shard.own = own
        shard.begin_imports()
        shard.importing = bool(record.sources)
        return shard

    async def _finish_imports(self) -> bool:
        """Update the map for shards that are completely in this node's journal."""
        own = self._own
        waiting = False
        for shard in [one for one in own.shards.values() if one.importing]:
            if not shard.imports and not shard.imported_with:
                shard.imported_with = own.commits.journal.next - 1
            if shard.imports or own.confirmed < shard.imported_with:
                waiting = True
                continue
            record, changed = own.map.shard(shard.number)
            if record.sources and record.holder == own.name:
                key = own.paths.shard(shard.number)
                put = Put(key, record.imported().encode())
                await own.client.transact([own.fence, ChangedAt(key, changed)], [put])
                self._orphans.update(tenure.incarnation for tenure in record.sources)
                own.map_changed.set()
        return waiting

    async def _delete_orphans(self) -> None:
        """Delete journals that no shard needs any more; their nodes' names are never reused."""
        own = self._own
        for name in list(self._orphans):
            if name not in own.map.members and name not in own.map.needed:
                prefix = own.paths.journal(name)
                await own.client.transact([own.fence], [Delete(prefix, end_of(prefix))])
                self._orphans.discard(name)

    # Handing over

    async def _release(self, shards: Sequence[Shard]) -> None:
        """Hand shards over: stop deciding, commit all decisions, and then free them."""
        own = self._own
        for shard in shards:
            shard.serving = False
            self._serving[shard.number] = None
        if shards:
            self._changed()
            own.wake()
        ready = [shard for shard in shards if shard.is_confirmed]
        for start in range(0, len(ready), AT_ONCE):
            conditions: list[Condition] = [own.fence]
            puts: list[Operation] = []
            for shard in ready[start : start + AT_ONCE]:
                record, changed = own.map.shard(shard.number)
                if record.holder == own.name:
                    conditions.append(ChangedAt(own.paths.shard(shard.number), changed))
                    puts.append(Put(own.paths.shard(shard.number), record.released().encode()))
            if puts:
                await own.client.transact(conditions, puts)
        if shards:
            own.map_changed.set()

    # Idle states

    def sweep(self) -> None:
        """Drop idle states, in memory and then in etcd."""
        own = self._own
        now_us = own.clock.now_us()
        for shard in own.shards.values():
            if shard.serving:
                with shard.store.lock:
                    shard.store.sweep(now_us, SWEPT_TABLES)
        alive = sum(shard.store.size for shard in own.shards.values())
        if own.commits.journal.has_waste(alive):
            own.commits.tidy = True
            own.wake()


class _Pauses:
    """Yields to other tasks whenever a slice of time is used up."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._until = time() + SLICE_S

    async def __call__(self) -> None:
        if self._time() >= self._until:
            await asyncio.sleep(0)
            self._until = self._time() + SLICE_S
