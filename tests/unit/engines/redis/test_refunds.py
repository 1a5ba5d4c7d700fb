"""Refunds in Redis beside nodes that know no low-water marks, and with more open reservations than are kept apart."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from headgate.algorithms import FixedWindow, TokenBucket
from headgate.charge import Charge, ChargeSet
from headgate.engines._watch import MAX_OPEN
from headgate.engines.memory import MemoryEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from tests.servers.redis import Cluster, RedisServer

pytestmark = pytest.mark.slow
NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
LIMIT = TokenBucket(10, 10 * SECOND_US)
STATE = "hg:s:-:token_bucket.10000000:=key"

RESERVE_AS_BEFORE = """
redis.call('SET', KEYS[1], struct.pack('<ddd', ARGV[1], ARGV[2], 10))
redis.call('HSET', 'hg:f' .. string.sub(KEYS[1], 5), 'sum', '0')
redis.call('RPUSH', KEYS[2], cmsgpack.pack(ARGV[1] + 60000000), cmsgpack.pack({
    KEYS[1], 4, { 10, 10, 256000000 }, ARGV[3] + 0, { ARGV[1] + 0, ARGV[2] + 0 }, 0, 0 }))
"""
"""What a node of before low-water marks writes when it has reserved `ARGV[3]` units, and the backlog is `ARGV[2]`."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US / SECOND_US)


@pytest.fixture
def engine(redis_server: RedisServer, clock: ManualClock) -> Iterator[RedisEngine]:
    redis_server.flush()
    engine = RedisEngine(redis_server.url, clock=clock)
    yield engine
    engine.close()
    redis_server.flush()


def reserve(engine: Engine, cost: int, name: str) -> None:
    request = ChargeSet((Charge("key", LIMIT, cost),), reserve_us=60 * SECOND_US, token=name)
    assert engine.decide([request])[0]


def reserve_as_before(server: RedisServer, backlog_units: int, cost: int, name: str) -> None:
    backlog = backlog_units * LIMIT.emission
    server.call("EVAL", RESERVE_AS_BEFORE, 2, STATE, f"hg:r:{name}", NOW_US, backlog, cost)


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_what_an_older_node_reserved_can_be_settled(
    engine: RedisEngine, redis_server: RedisServer, clock: ManualClock
) -> None:
    """By its own rule: what is left of the backlog right after the take."""
    reserve_as_before(redis_server, 6, 6, "old")
    clock.advance(2)
    assert engine.settle("old", 1)
    assert engine.usage("key", LIMIT).used == 0
    assert not engine.settle("old", 1)


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_a_refund_of_an_older_node_s_reservation_counts_for_ours(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """4 by an older node, 5 by us: both come back once, and nothing else."""
    reserve_as_before(redis_server, 4, 4, "old")
    reserve(engine, 5, "new")
    assert engine.settle("old", 0)
    assert engine.usage("key", LIMIT).used == 5
    assert engine.settle("new", 0)
    assert engine.usage("key", LIMIT).used == 0


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_what_an_older_node_wrote_in_between_can_only_lose_refunds(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """It writes the state without a low-water mark, and nobody knows how low it was."""
    reserve(engine, 5, "new")
    older = struct.pack("<ddd", NOW_US, 7 * LIMIT.emission, 10)
    redis_server.call("SET", STATE, older, "KEEPTTL")
    reserve(engine, 2, "newer")
    assert engine.settle("new", 0)
    assert engine.usage("key", LIMIT).used == 9
    assert engine.settle("newer", 0)
    assert engine.usage("key", LIMIT).used == 7


def test_beyond_what_is_kept_apart_both_engines_lose_the_same(
    engine: RedisEngine, clock: ManualClock
) -> None:
    """And never give back more than was taken, whatever the order."""
    limit = TokenBucket(10 * MAX_OPEN, 1_000 * SECOND_US)
    memory_clock = ManualClock(NOW_US / SECOND_US)
    memory = MemoryEngine(clock=memory_clock)
    number = MAX_OPEN + 20
    for name in range(number):
        for each in (engine, memory):
            request = ChargeSet(
                (Charge("key", limit, 3),), reserve_us=60 * SECOND_US, token=f"{name}"
            )
            assert each.decide([request])[0]
        if name % 50 == 0:
            for one in (clock, memory_clock):
                one.advance(us=700_000)
    for name in [*range(15, number, 3), *range(number - 1, -1, -1)]:
        assert engine.settle(f"{name}", 1) == memory.settle(f"{name}", 1)
        assert engine.usage("key", limit) == memory.usage("key", limit)
    taken = number * limit.emission // 256
    passed_us = memory_clock.now_us() - NOW_US
    assert memory.usage("key", limit).answer[3] >= taken - passed_us


def test_reservations_settled_in_one_call_are_settled_as_one_by_one(
    engine: RedisEngine, clock: ManualClock
) -> None:
    """Of one key and of others, at any cost, twice, and under a name that nobody has."""
    limit = TokenBucket(1_000, 100 * SECOND_US)
    memory_clock = ManualClock(NOW_US / SECOND_US)
    memory = MemoryEngine(clock=memory_clock)
    for name in range(30):
        for each, time in ((engine, clock), (memory, memory_clock)):
            charge = Charge(f"key {name % 3}", limit, 20)
            request = ChargeSet((charge,), reserve_us=60 * SECOND_US, token=f"{name}")
            assert each.decide([request])[0]
            time.advance(us=10_000)
    settlements = [(f"{name}", 3 * name % 25) for name in (7, 21, 1, *range(31), 5)]
    engine.settle_each(settlements)
    for settlement in settlements:
        memory.settle(*settlement)
    for key in ("key 0", "key 1", "key 2"):
        assert engine.usage(key, limit) == memory.usage(key, limit)
    assert not engine.settle("7", 0)


def test_a_state_that_is_not_ours_does_not_keep_others_from_being_settled(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    for key in ("bad", "key"):
        request = ChargeSet((Charge(key, LIMIT, 5),), reserve_us=60 * SECOND_US, token=key)
        assert engine.decide([request])[0]
    redis_server.call("SET", STATE.replace("=key", "=bad"), "something else")
    engine.settle_each([("bad", 0), ("key", 1)])
    assert engine.usage("key", LIMIT).used == 1


@on_flavours("redis_cluster", "redis-7.0")
def test_reservations_of_several_slots_are_settled_together(redis_cluster: Cluster) -> None:
    engine = RedisEngine(redis_cluster.url)
    limit = FixedWindow(10, 3_600 * SECOND_US)
    tokens = []
    for number in range(20):
        request = ChargeSet((Charge(f"together {number}", limit, 5),), reserve_us=60 * SECOND_US)
        tokens.append(str(engine.decide([request])[0].token))
    engine.settle_each([(token, 2) for token in tokens])
    assert {engine.usage(f"together {number}", limit).used for number in range(20)} == {2}
    engine.close()
