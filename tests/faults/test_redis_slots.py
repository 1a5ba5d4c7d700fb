"""Held slots in a Cluster: their two keys move, and are replicated, as one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from headgate import Charge, Concurrency
from headgate.charge import ChargeSet
from headgate.engines.redis.keys import slot_of
from headgate.engines.redis.sync import RedisEngine
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import Cluster

pytestmark = pytest.mark.slow

LIMIT = Concurrency(5, 60_000_000)


def hold(engine: RedisEngine, token: str) -> bool:
    (decision,) = engine.decide([ChargeSet((Charge("key", LIMIT),), token=token)])
    return bool(decision)


def names_of(engine: Any) -> tuple[bytes, bytes]:
    """The names of a state and of its set."""
    keys = engine._operations.codec.keys
    state = engine._operations.codec.state_name("key", LIMIT, None)
    return state, keys.beside(state)


@on_flavours("redis_cluster", "redis-7.0")
def test_half_moved_slots_wait_until_both_of_their_keys_are_there(redis_cluster: Cluster) -> None:
    """Whichever is moved first. Else a set would be made anew where the other one is about to arrive."""
    engine = RedisEngine(f"{redis_cluster.url}?deadline=20")
    names = names_of(engine)
    slot = slot_of(names[0])
    for first in (names, names[::-1]):
        engine.reset("key", LIMIT)
        assert hold(engine, "a")
        source = redis_cluster.owner(slot)
        target = next(one for one in redis_cluster.masters if one is not source)
        move = redis_cluster.begin_move(slot, target)
        assert hold(engine, "b")  # Both are still where they were.
        source.call("MIGRATE", "127.0.0.1", target.port, first[0], 0, 5_000)
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(hold, engine, "c")
            time.sleep(
                0.2
            )  # So that it finds them apart, which changes nothing but what is tested.
            assert not held.done()
            source.call("MIGRATE", "127.0.0.1", target.port, first[1], 0, 5_000)
            assert held.result(20)
        move.move_keys(10)
        move.finish()
        assert engine.usage("key", LIMIT).used == 3
        assert [hold(engine, token) for token in "dez"] == [True, True, False]
    engine.close()


@on_flavours("redis_cluster", "redis-7.0", "valkey-9")
def test_holders_are_known_after_a_failover_and_a_move(redis_cluster: Cluster) -> None:
    engine = RedisEngine(f"{redis_cluster.url}?deadline=20")
    state, ends = names_of(engine)
    slot = slot_of(state)
    assert all(hold(engine, token) for token in "abcd")
    engine.release("key", LIMIT, "d")
    owner = redis_cluster.owner(slot)
    assert owner.call("WAIT", 1, 10_000) == 1
    redis_cluster.fail_over(slot)
    assert engine.usage("key", LIMIT).used == 3
    assert hold(engine, "e")
    owner = redis_cluster.owner(slot)
    assert owner.call("ZCARD", ends) == 5
    target = next(one for one in redis_cluster.masters if one is not owner)
    redis_cluster.move_slot(slot, target)
    assert [hold(engine, token) for token in "fg"] == [True, False]
    for token in "abcef":
        assert engine.renew("key", LIMIT, token)
        engine.release("key", LIMIT, token)
    assert engine.usage("key", LIMIT).used == 0
    assert target.call("HGET", state, "limit") == "+5"
    engine.close()
