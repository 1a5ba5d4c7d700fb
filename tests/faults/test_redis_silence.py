"""Servers that fall silent (SIGSTOP: connections stay open, nothing answers) are left for those that took over.

A host that is gone without a reset looks the same. Nobody is told, so only a time-out can make a caller look elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.keys import slot_of
from headgate.engines.redis.sync import RedisEngine
from tests.faults.load import AsyncLoad, ThreadLoad, report, window_of
from tests.servers.fixtures import on_flavours
from tests.servers.link import Link
from tests.servers.process import HOST, wait_until
from tests.servers.redis import standalone
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import Cluster, RedisServer, SentinelGroup

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

PLENTY = window_of(1_000_000)
DEADLINE = 0.5
RESUME_S = 1.5
"""So long after a new master is known, callers are answered again: a deadline, and what a busy machine adds."""
START_S = 0.5
"""Within this time a limiter begins although the first server that it knows of is silent."""


def slot_of_key(engine: Any, key: str) -> int:
    return slot_of(engine._operations.codec.state_name(key, PLENTY, None))


def promoted(cluster: Cluster, slot: int, old: RedisServer) -> None:
    """Wait until a node that is not stopped names another owner of the slot."""
    witness = next(one for one in cluster.nodes if one is not old)

    def is_known() -> bool:
        return any(
            any(slot in part for part in seen.slots) and seen.port != old.port
            for seen in cluster._seen(witness)
        )

    wait_until(is_known, "a replica was promoted", within_s=15.0)


def master_known(group: SentinelGroup, old: RedisServer) -> None:
    def is_known() -> bool:
        ports = {
            int(one.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", group.name)[1])
            for one in group.sentinels
        }
        return len(ports) == 1 and old.port not in ports

    wait_until(is_known, "the Sentinels name another master", within_s=15.0)


def resumed_after_silence(
    engine: Any, key: str, stop: Callable[[], None], taken_over: Callable[[], None]
) -> float:
    """Hit a key all the while, silence its server; seconds from the new master to the next admission."""
    known = 0.0

    def while_loaded() -> None:
        nonlocal known
        time.sleep(0.3)  # Of load.
        stop()
        taken_over()
        known = time.monotonic()
        time.sleep(RESUME_S + 0.5)  # Of load, for callers to resume in.

    async def main() -> Any:
        async with AsyncLoad(engine.bind(PLENTY), key, 4, 0.02) as record:
            await asyncio.to_thread(while_loaded)
        await engine.aclose()
        return record

    if isinstance(engine, AsyncRedisEngine):
        record = asyncio.run(main())
    else:
        with ThreadLoad(engine.bind(PLENTY), key, 4) as record:
            while_loaded()
        engine.close()
    assert record.slowest_s < DEADLINE + 0.5
    resumed: float = record.first_allowed_after(known)
    report(f"resumed {resumed:.3f} s after the new master was known; told {dict(record.outcomes)}")
    return resumed


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
@on_flavours("redis_cluster", "redis-7.0")
def test_a_cluster_master_that_falls_silent_is_left_for_its_replica(
    redis_cluster: Cluster, kind: Any
) -> None:
    engine = kind(f"{redis_cluster.url}?deadline={DEADLINE}")
    slot = slot_of_key(engine, "key")
    owner = redis_cluster.owner(slot)
    took = resumed_after_silence(
        engine, "key", owner.stop, lambda: promoted(redis_cluster, slot, owner)
    )
    assert took <= RESUME_S


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
@on_flavours("redis_sentinel", "redis-7.0")
def test_a_master_under_sentinel_that_falls_silent_is_left_for_the_new_one(
    redis_sentinel: SentinelGroup, kind: Any
) -> None:
    engine = kind(f"{redis_sentinel.url}?deadline={DEADLINE}")
    master = redis_sentinel.master
    took = resumed_after_silence(
        engine, "key", master.stop, lambda: master_known(redis_sentinel, master)
    )
    assert took <= RESUME_S


@on_flavours("redis_cluster", "redis-7.0")
def test_a_service_leaves_a_cluster_master_that_falls_silent(redis_cluster: Cluster) -> None:
    probe = RedisEngine(redis_cluster.url)
    with service("--engine", f"{redis_cluster.url}?deadline={DEADLINE}") as one:

        def status() -> int:
            return one.ask("POST", "/check", {"key": "key", "limit": 1_000_000})[0]

        assert status() == 200
        slot = slot_of_key(probe, "key")
        probe.close()
        owner = redis_cluster.owner(slot)
        owner.stop()
        with ThreadPoolExecutor() as pool:  # Asked all the while, as a service is.
            waiting = pool.submit(promoted, redis_cluster, slot, owner)
            while not waiting.done():
                status()
            waiting.result()
        took = wait_until(lambda: status() == 200, "checks are answered", within_s=10.0)
        report(f"the service answered again {took:.3f} s after the promotion")
        assert took <= RESUME_S


def first_answer_s(engine: Any) -> float:
    """Seconds until a new engine has answered."""

    async def main() -> float:
        began = time.monotonic()
        hit: Any = engine.bind(PLENTY)
        assert await hit("key", 1)
        took = time.monotonic() - began
        await engine.aclose()
        return took

    if isinstance(engine, AsyncRedisEngine):
        return asyncio.run(main())
    began = time.monotonic()
    assert engine.bind(PLENTY)("key", 1)
    took = time.monotonic() - began
    engine.close()
    return took


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
@on_flavours("redis_cluster", "redis-7.0")
def test_a_limiter_begins_when_the_first_nodes_of_a_cluster_are_silent(
    redis_cluster: Cluster, kind: Any
) -> None:
    """Two replicas, so that everything else goes on as usual."""
    silent = [redis_cluster.replica_of(one) for one in redis_cluster.masters[:2]]
    others = [one for one in redis_cluster.nodes if one not in silent]
    hosts = ",".join(f"{HOST}:{one.port}" for one in [*silent, *others])
    for node in silent:
        node.stop()
    took = first_answer_s(kind(f"redis+cluster://{hosts}?deadline=1&connect_timeout=1"))
    report(f"answered after {took:.3f} s")
    assert took < START_S


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
@on_flavours("redis_sentinel", "redis-7.0")
def test_a_limiter_begins_when_the_first_sentinels_are_silent(
    redis_sentinel: SentinelGroup, kind: Any
) -> None:
    for sentinel in redis_sentinel.sentinels[:2]:
        sentinel.stop()
    took = first_answer_s(kind(f"{redis_sentinel.url}?deadline=1&connect_timeout=1"))
    report(f"answered after {took:.3f} s")
    assert took < START_S


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
def test_a_silent_server_that_is_replaced_behind_its_name_costs_one_deadline(kind: Any) -> None:
    """As after a change of a DNS name or of a service's address: old connections lead nowhere, new ones to another."""
    with standalone("redis-7.0") as old, standalone("redis-7.0") as new, Link(old.port) as link:
        engine = kind(f"{link.url}?deadline={DEADLINE}")

        def silence() -> None:
            old.stop()
            link.server_port = new.port

        took = resumed_after_silence(engine, "key", silence, lambda: None)
        assert took <= 2 * DEADLINE + 0.3
        old.resume()


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
def test_a_list_does_not_stay_with_a_silent_server(kind: Any) -> None:
    """Whatever is asked, the connection on which nobody answered is not used again."""
    with standalone("redis-7.0") as old, standalone("redis-7.0") as new, Link(old.port) as link:
        engine = kind(f"{link.url}?deadline={DEADLINE}")
        calls: list[Any] = []

        async def listed() -> Any:
            found = engine.list_keys()
            return found if kind is RedisEngine else await found

        async def main() -> None:
            calls.append(await listed())
            old.stop()
            link.server_port = new.port
            with pytest.raises(Exception, match="answer"):
                await listed()
            calls.append(await listed())
            await engine.aclose() if kind is AsyncRedisEngine else engine.close()

        asyncio.run(main())
        assert len(calls) == 2
        old.resume()
