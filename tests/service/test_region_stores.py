"""Where a region keeps what it knows of all regions: Redis, a Redis Cluster and etcd keep it as one in memory does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from headgate import FixedWindow
from headgate.clock import SystemClock
from headgate.regions.counters import Actor, CounterName, CounterTotal, slice_of
from headgate.regions.opening import open_region_store
from headgate.regions.store import MemoryRegionStore, Merged
from tests.servers.fixtures import installed, on_flavours
from tests.servers.process import HOST
from tests.servers.redis import Cluster, RedisServer, standalone
from tests.service.region_stores import StorePlace, store_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from headgate.regions.store import RegionStore

LIMIT = FixedWindow(10, 3_600_000_000).across_regions("merge")


@pytest.fixture(scope="module", params=["redis", "etcd"])
def place(request: pytest.FixtureRequest) -> Iterator[StorePlace]:
    with store_place(request.param) as started:
        yield started


@contextlib.asynccontextmanager
async def stores(url: str, many: int = 1) -> AsyncIterator[list[RegionStore]]:
    """What so many nodes of a region have open."""
    made = [open_region_store("", url, "n", SystemClock().now_us) for _ in range(many)]
    try:
        yield made
    finally:
        for one in made:
            await one.aclose()


def test_a_store_in_etcd_keeps_counters_as_one_in_memory_does() -> None:
    with store_place("etcd") as server:
        asyncio.run(same_as_in_memory(server.url))


@on_flavours("redis_server")
def test_a_store_in_redis_keeps_counters_as_one_in_memory_does(redis_server: RedisServer) -> None:
    redis_server.call("FLUSHALL")
    asyncio.run(same_as_in_memory(redis_server.url))


def test_it_does_so_in_a_cluster(redis_cluster: Cluster) -> None:
    asyncio.run(same_as_in_memory(redis_cluster.url))


def test_the_documented_access_list_is_enough() -> None:
    rights = (
        "+eval +evalsha +time +get +set +pexpire +pttl +hget +hgetall +hmget +hset +hsetnx +hincrby +hdel "
        "+zadd +zrem +zrangebyscore +hscan"
    )
    with installed(), standalone("redis-7.0") as server:
        words = ["on", ">pw", "resetkeys", "~hg:*", "resetchannels", "-@all", *rights.split()]
        server.call("ACL", "SETUSER", "headgate", *words)
        asyncio.run(same_as_in_memory(f"redis://headgate:pw@{HOST}:{server.port}/0"))


async def same_as_in_memory(url: str) -> None:
    """The same random messages to both, some of them twice; the store's clock decides what is over."""
    rng = random.Random(7)
    async with stores(url) as (store,):
        memory = MemoryRegionStore()
        now_us = (await store.merge([])).state.now_us
        names = [
            CounterName(rule, key, LIMIT, slice_of(LIMIT, now_us) - back * 3_600_000_000)
            for rule in (None, "r{}")
            for key in ("k", "ключ\n")
            for back in (0, 1, 5)
        ]
        actors = [Actor("eu", "1", "a"), Actor("us", "x", "b")]
        for _ in range(60):
            entries = [
                CounterTotal(rng.choice(names), rng.choice(actors), rng.randrange(20))
                for _ in range(rng.randrange(6))
            ]
            for _ in range(rng.choice([1, 1, 2])):
                told, kept = await store.merge(entries, "us"), await memory.merge(entries, "us")
                assert told.grown == kept.grown
        assert await store.changes(0, 1_000) == await memory.changes(0, 1_000)
        assert await store.changes(3, 2) == await memory.changes(3, 2)
        for key in ("k", "ключ\n", "none"):
            found = [sorted(map(repr, await one.counters_of(key))) for one in (store, memory)]
            assert found[0] == found[1]
        assert await store.lead("us", "a", 60_000_000)
        assert not await store.lead("us", "b", 60_000_000)
        await store.note_taken("us", 5)
        link = (await store.merge([])).state.links["us"]
        assert (link.taken_us, link.shipper) == (5, "a")
        assert abs(link.heard_us - now_us) < 60_000_000


def test_a_store_that_was_emptied_has_another_epoch(place: StorePlace) -> None:
    async def main() -> None:
        async with stores(place.url) as (store,):
            first = (await store.merge([])).state.epoch
            assert (await store.merge([])).state.epoch == first
            place.empty()
            assert (await store.merge([])).state.epoch != first

    asyncio.run(main())


def test_nodes_that_merge_the_same_totals_at_once_get_each_growth_once(
    place: StorePlace,
) -> None:
    """Four nodes hear the totals of ten counters grow, all of them at the same time."""
    place.empty()

    async def main() -> None:
        async with stores(place.url, 4) as nodes:
            slice_us = slice_of(LIMIT, SystemClock().now_us())
            names = [CounterName("r", f"{n}", LIMIT, slice_us) for n in range(10)]
            grown, merged = 0, list[Merged]()
            for total in range(1, 21):
                entries = [CounterTotal(name, Actor("us", "1", "a"), total) for name in names]
                merged = await asyncio.gather(*(node.merge(entries, "us") for node in nodes))
                grown += sum(growth.units for one in merged for growth in one.grown)
                assert grown == total * len(names)
            assert len({one.state.epoch for one in merged}) == 1
            known = [await node.changes(0, 100) for node in nodes]
            assert all(sorted(found) == sorted(known[0][0]) for found, _ in known)
            led = await asyncio.gather(
                *(node.lead("us", f"{n}", 60_000_000) for n, node in enumerate(nodes))
            )
            assert sum(led) == 1

    asyncio.run(main())


def test_a_region_that_has_nothing_to_say_writes_nothing_to_etcd() -> None:
    async def main(server: StorePlace) -> None:
        async with stores(server.url, 2) as nodes:
            now_us = SystemClock().now_us()
            name = CounterName("r", "k", LIMIT, slice_of(LIMIT, now_us))
            await nodes[0].merge([CounterTotal(name, Actor("us", "1", "a"), 5)])

            def revision() -> int:
                return int(server.call("/v3/maintenance/status", {})["header"]["revision"])

            before = revision()
            for node in nodes * 5:
                await node.merge([CounterTotal(name, Actor("us", "1", "a"), 5)])
                assert len((await node.changes(0, 10))[0]) == 1
            assert revision() == before
            await nodes[1].merge([CounterTotal(name, Actor("us", "1", "a"), 6)], "us")
            assert revision() == before + 1

    with store_place("etcd") as server:
        asyncio.run(main(server))
