"""Slots in Redis: as many holders as you like, and nodes that know nothing of their sorted set."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from headgate.algorithms import Concurrency
from headgate.charge import Charge, ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines.memory import MemoryEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours
from tests.servers.redis.older_nodes import OlderEngine, old_and_new

if TYPE_CHECKING:
    from headgate import Engine
    from tests.servers.redis import RedisServer

SECOND_US = 1_000_000
START = 1_800_000_000.0
LIMIT = Concurrency(2, SECOND_US)
SET = "hg:e:-:concurrency:=key"
LAST = "\udcff"
"""Is always in the set, behind all others."""


def hold(engine: Engine, token: str, limit: Concurrency = LIMIT) -> bool:
    (decision,) = engine.decide([ChargeSet((Charge("key", limit),), token=token)])
    return bool(decision)


def url_of(server: RedisServer) -> str:
    return f"{server.url}?deadline=10"


def state_of(server: RedisServer) -> str:
    (name,) = server.call("KEYS", "hg:s*")
    return str(name)


def test_slots_written_by_an_older_node_count_and_carry_its_time(redis_server: RedisServer) -> None:
    """Also one of those that did not remember the latest hold."""
    clock = ManualClock(START)
    engine = RedisEngine(url_of(redis_server), clock=clock)
    older = OlderEngine(url_of(redis_server), clock=clock)
    assert hold(older, "a")
    clock.advance(us=500_000)
    assert hold(older, "b")
    state = state_of(redis_server)
    assert redis_server.call("HDEL", state, "newest") == 1
    assert not hold(engine, "c")
    clock.advance(us=-500_000)
    engine.release("key", LIMIT, "a")
    assert redis_server.call("HEXISTS", state, "newest") == 1
    assert hold(engine, "c")  # At the time of the key, which is that of b.
    clock.advance(us=1_000_000)
    assert engine.usage("key", LIMIT).used == 2
    clock.advance(us=500_000)
    assert engine.usage("key", LIMIT).used == 0
    for each in (engine, older):
        each.close()


def test_the_time_alone_is_no_slot(redis_server: RedisServer) -> None:
    clock = ManualClock(START)
    engine = RedisEngine(url_of(redis_server), clock=clock)
    assert hold(engine, "a")
    engine.release("key", LIMIT, "a")
    assert engine.usage("key", LIMIT).used == 0
    assert engine.list_keys("", "", 10)[0] == []
    assert hold(engine, "b")
    assert hold(engine, "c")
    assert not hold(engine, "d")
    engine.close()


def test_an_older_node_reads_what_a_newer_one_wrote(redis_server: RedisServer) -> None:
    clock = ManualClock(START)
    engine = RedisEngine(url_of(redis_server), clock=clock)
    older = OlderEngine(url_of(redis_server), clock=clock)
    assert hold(engine, "a")
    assert hold(older, "b")
    assert not hold(engine, "c")
    assert not hold(older, "c")
    assert older.renew("key", LIMIT, "a")
    older.release("key", LIMIT, "b")
    assert hold(engine, "c")
    assert not hold(older, "d")
    (entry,) = older.list_keys("", "", 10).entries
    assert (entry.key, entry.limit, entry.count) == ("key", 2, 2)
    older.reset("key", LIMIT)
    assert redis_server.call("EXISTS", SET) == 1  # It knows nothing of it.
    assert hold(engine, "e")
    assert redis_server.call("ZRANGE", SET, 0, -1) == ["e", LAST]
    assert hold(engine, "f")
    assert not hold(engine, "g")
    for each in (engine, older):
        each.close()


@pytest.mark.parametrize(
    "damage",
    [
        ("DEL", SET),
        ("ZREM", SET, "a"),
        ("ZADD", SET, 1, "nobody"),
        ("SET", SET, "text"),
    ],
    ids=lambda words: words[0],
)
def test_a_lost_or_damaged_set_is_rebuilt(
    redis_server: RedisServer, damage: tuple[Any, ...]
) -> None:
    """A server that evicts keys may take it and leave the state."""
    clock = ManualClock(START)
    engine = RedisEngine(url_of(redis_server), clock=clock)
    assert hold(engine, "a")
    clock.advance(us=500_000)
    assert hold(engine, "b")
    if damage[0] == "SET":
        redis_server.call("DEL", SET)
    redis_server.call(*damage)
    assert not hold(engine, "c")
    clock.advance(us=500_000)  # a expires.
    assert hold(engine, "c")
    assert redis_server.call("ZRANGE", SET, 0, -1) == ["b", "c", LAST]
    assert engine.usage("key", LIMIT).used == 2
    engine.close()


def test_a_reset_deletes_the_set_too(redis_server: RedisServer) -> None:
    engine = RedisEngine(url_of(redis_server))
    assert hold(engine, "a")
    assert 0 < redis_server.call("PTTL", SET) <= 3_000
    engine.reset("key", LIMIT)
    assert redis_server.call("KEYS", "*") == []
    engine.close()


def played(engine: Engine, clock: ManualClock, seed: int) -> list[Any]:
    """Holders who come, renew, leave and die by the hundred, while the clock moves, also back."""
    choose = random.Random(seed)
    limits = [
        Concurrency(choose.choice([1, 5, 40, 300]), choose.choice([1, 3, 20]) * SECOND_US)
        for _ in range(2)
    ]
    tokens = [f"t{number}" for number in range(choose.choice([3, 30, 300]))]
    answers: list[Any] = []
    for _ in range(400):
        clock.advance(us=choose.choice([0, 0, 1, 50_000, 400_000, SECOND_US, -200_000]))
        if choose.random() < 0.01:
            clock.advance(us=choose.choice([-30, 30]) * SECOND_US)
        limit, token = choose.choice(limits), choose.choice(tokens)
        cost = choose.choice([1, 1, 1, 2, limit.limit, limit.limit + 1])
        action = choose.random()
        if action < 0.5:
            request = ChargeSet((Charge("key", limit, cost),), token=token)
            answers.append(engine.decide([request])[0].answer)
        elif action < 0.6:
            kind = choose.choice([ChargeKind.TAKE, ChargeKind.PEEK, ChargeKind.FORCE])
            charges = (Charge("key", limit, cost, kind=kind), Charge("key", limit, 1))
            answers.append([one.answer for one in engine.decide([ChargeSet(charges)])[0].rules])
        elif action < 0.75:
            answers.append(engine.renew("key", limit, token))
        elif action < 0.9:
            engine.release("key", limit, token)
        else:
            answers.append(engine.usage("key", limit))
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("versions", ["new", "old and new"])
def test_any_number_of_holders_are_counted_as_in_memory(
    redis_server: RedisServer, versions: str
) -> None:
    for seed in range(6):
        model_clock, clock = ManualClock(START), ManualClock(START)
        engine: Any = (
            RedisEngine(url_of(redis_server), clock=clock)
            if versions == "new"
            else old_and_new(url_of(redis_server), clock, seed)
        )
        redis_server.flush()
        expected = played(MemoryEngine(clock=model_clock), model_clock, seed)
        assert played(engine, clock, seed) == expected, f"seed {seed}"
        engine.close()


def calls_of(server: RedisServer) -> dict[str, int]:
    """How often each command has been carried out."""
    stats = server.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): int(str(text).partition("calls=")[2].partition(",")[0])
        for name, text in stats.items()
    }


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_two_thousand_holders_cost_no_more_than_ten(redis_server: RedisServer) -> None:
    """No step reads all of them, and none makes more calls."""
    engine = RedisEngine(url_of(redis_server))
    limit = Concurrency(2_000, 600 * SECOND_US)
    made: list[int] = []
    for first, last in ((0, 9), (9, 1_998)):
        for start in range(first, last, 100):
            names = range(start, min(start + 100, last))
            requests = [ChargeSet((Charge("key", limit),), token=f"h{name}") for name in names]
            assert all(engine.decide(requests))
        redis_server.call("CONFIG", "RESETSTAT")
        assert hold(engine, "one more", limit)
        assert engine.renew("key", limit, "one more")
        assert engine.usage("key", limit).used == last + 1
        engine.release("key", limit, "one more")
        calls = calls_of(redis_server)
        assert "hgetall" not in calls
        made.append(sum(calls.values()))
    assert made[0] == made[1]
    assert hold(engine, "1999", limit)
    assert hold(engine, "2000", limit)
    redis_server.call("CONFIG", "RESETSTAT")
    assert not hold(engine, "one too many", limit)
    assert sum(calls_of(redis_server).values()) < 20
    engine.close()
