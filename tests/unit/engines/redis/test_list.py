"""Lists of keys: counted by the limit that was stored, a page at a time, and none is lost between pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.algorithms import CalendarWindow
from headgate.algorithms.calendar import Calendar
from headgate.charge import Charge, ChargeSet
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from headgate import Engine, Limit
    from headgate.engines.base import KeyEntry
    from tests.servers.redis import Cluster, RedisServer

HOUR_US = 3_600_000_000
START = 1_800_000_000
LIMITS: list[Limit] = [
    FixedWindow(80, HOUR_US),
    CalendarWindow(80, calendar=Calendar("day", "UTC")),
    SlidingWindow(80, HOUR_US),
    SlidingLog(80, HOUR_US),
    TokenBucket(80, HOUR_US),
    TokenBucket(10, HOUR_US, 80),
    ExponentialBackoff(80, HOUR_US),
    Adaptive(80, HOUR_US),
    Concurrency(80, HOUR_US),
]


def listed(engine: Engine, prefix: str = "", limit: int = 100) -> list[list[KeyEntry]]:
    """All pages."""
    pages, cursor = [], ""
    while True:
        entries, cursor = engine.list_keys(prefix, cursor, limit)
        pages.append(entries)
        if not cursor:
            return pages


@on_flavours("redis_server", "redis-7.0", "valkey-9")
@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_list_counts_by_the_limit_that_the_key_was_counted_with(
    redis_server: RedisServer, limit: Limit
) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(START))
    engine.bind(limit, "rule")("key", 50)
    (entry,) = engine.list_keys().entries
    usage = engine.usage("key", limit, "rule")
    assert (entry.key, entry.rule, entry.algorithm) == ("key", "rule", limit.name)
    assert (entry.count, entry.limit, entry.window_us) == (50, limit.limit, limit.window_us)
    assert entry.idle_at_us == START * 1_000_000 + usage.answer[3]
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_limit_of_nothing_is_listed_too(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(START))
    engine.bind(FixedWindow(3, HOUR_US))("key", 2)
    engine.bind(FixedWindow(0, HOUR_US))("key", 0)
    engine.bind(TokenBucket(5, HOUR_US))("key", 2)
    assert sorted(entry.count for entry in engine.list_keys().entries) == [2, 2]
    engine.close()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@on_flavours("redis_server", "redis-7.0", "redis-8", "valkey-9")
def test_no_page_is_larger_than_asked_for_and_no_key_is_missed(
    redis_server: RedisServer, size: int
) -> None:
    engine = RedisEngine(redis_server.url)
    keys = {f"key {number}" for number in range(150)}
    limit = FixedWindow(3, HOUR_US * 24 * 200)
    engine.decide([ChargeSet((Charge(key, limit),)) for key in keys])
    pages = listed(engine, limit=size)
    assert max(map(len, pages)) <= size
    assert {entry.key for page in pages for entry in page} == keys
    assert {entry.key for page in listed(engine, "key 1", size) for entry in page} == {
        key for key in keys if key.startswith("key 1")
    }
    engine.close()


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_keys_that_stay_are_seen_though_others_come_and_go_between_pages(
    redis_server: RedisServer,
) -> None:
    """The server's table grows and shrinks meanwhile."""
    engine = RedisEngine(redis_server.url)
    limit = FixedWindow(3, HOUR_US * 24 * 200)
    stay = {f"stay {number}" for number in range(40)}
    engine.decide([ChargeSet((Charge(key, limit),)) for key in stay])
    seen, cursor, turn = set(), "", 0
    while True:
        entries, cursor = engine.list_keys("", cursor, 3)
        seen |= {entry.key for entry in entries}
        if not cursor:
            break
        turn += 1
        crowd = [f"go {number}" for number in range(300)]
        if turn % 20 == 1:
            engine.decide([ChargeSet((Charge(key, limit),)) for key in crowd])
        elif turn % 20 == 11:
            for key in crowd:
                engine.reset(key, limit)
    assert seen >= stay
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_keys_that_are_stored_as_hashes_are_listed_as_hashes(redis_server: RedisServer) -> None:
    engine = RedisEngine(f"{redis_server.url}?hash_keys=yes&secret=s")
    engine.bind(LIMITS[0])("alice", 5)
    (entry,) = engine.list_keys().entries
    assert entry.key.startswith("#")
    assert len(entry.key) == 33
    assert entry.count == 5
    assert engine.list_keys("#").entries == []
    assert engine.list_keys("alice").entries == []
    engine.close()


@pytest.mark.parametrize(
    "cursor",
    ["x", "1", "0:", ":0", "0:0", "-1:0:", "0:-1:", "0:99999999999999999999:", "0:0:é", "٣:0:"],
)
@on_flavours("redis_server", "redis-7.0")
def test_an_invalid_cursor_is_a_usage_error(redis_server: RedisServer, cursor: str) -> None:
    engine = RedisEngine(redis_server.url)
    with pytest.raises(UsageError, match="not a valid cursor"):
        engine.list_keys("", cursor)
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_what_others_wrote_beside_our_states_is_not_listed(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url)
    engine.bind(LIMITS[0])("key", 1)
    for name in (
        "hg:s", "hg:sx", "hg:s:-:fixed_window.x:=a", "hg:s:-:unknown.5:=a", "hg:s:-:fixed_window:=a",
        "hg:s:-:fixed_window.3600000000:=text", b"hg:s:-:fixed_window.3600000000:=\xff",
    ):  # fmt: skip
        redis_server.call("SET", name, "something")
    redis_server.call("RPUSH", "hg:s:-:fixed_window.3600000000:=list", "something")
    redis_server.call("RPUSH", "hg:s:-:concurrency:=list", "something")
    redis_server.call("RPUSH", "hg:s:-:sliding_log.3600000000:=list", "something")
    assert [entry.key for entry in engine.list_keys().entries] == ["key"]
    engine.close()


@pytest.mark.slow
@on_flavours("redis_cluster", "redis-7.0")
def test_a_list_goes_over_all_servers_of_a_cluster(redis_cluster: Cluster) -> None:
    engine = RedisEngine(redis_cluster.url)
    keys = {f"key {number}" for number in range(40)}
    engine.decide([ChargeSet((Charge(key, LIMITS[4], 9),)) for key in keys])
    pages = listed(engine, limit=7)
    assert max(map(len, pages)) <= 7
    assert {(one.key, one.count, one.limit) for page in pages for one in page} == {
        (key, 9, 80) for key in keys
    }
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_an_asynchronous_list_is_the_same(redis_server: RedisServer) -> None:
    async def entries() -> list[KeyEntry]:
        engine = AsyncRedisEngine(redis_server.url)
        for number, limit in enumerate(LIMITS):
            await engine.decide([ChargeSet((Charge(f"key {number}", limit, 7),))])
        page = await engine.list_keys()
        assert page.cursor == ""
        with pytest.raises(UsageError):
            await engine.list_keys("", "nonsense")
        await engine.aclose()
        return page.entries

    found = sorted((one.key, one.count, one.limit) for one in asyncio.run(entries()))
    assert found == [(f"key {number}", 7, limit.limit) for number, limit in enumerate(LIMITS)]
