"""Evictions: what is logged and counted when a server may forget limits, or does."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter
from headgate.engines.redis import loops
from headgate.engines.redis.evictions import Evictions
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

SERVER = ("10.0.0.1", 6379)


def info(
    policy: str = "allkeys-lru",
    *,
    maxmemory: int = 100,
    evicted: int = 0,
    run: str = "1",
    up_s: int = 0,
) -> bytes:
    server = ("# Server", f"run_id:{run}", f"uptime_in_seconds:{up_s}")
    lines = (f"maxmemory:{maxmemory}", f"maxmemory_policy:{policy}", f"evicted_keys:{evicted}")
    return "\r\n".join((*server, "# Memory", *lines, "")).encode()


@pytest.fixture
def evictions() -> Evictions:
    return Evictions(logging.getLogger("headgate"))


def test_a_policy_is_warned_about_when_it_changes(
    evictions: Evictions, caplog: pytest.LogCaptureFixture
) -> None:
    for policy in ("noeviction", "allkeys-lru", "allkeys-lru", "noeviction", "volatile-lru"):
        evictions.note(SERVER, info(policy=policy))
    lru, volatile = caplog.messages
    assert lru.startswith("redis at 10.0.0.1:6379 may evict keys (maxmemory-policy is allkeys-lru)")
    assert "volatile-lru" in volatile


def test_servers_without_a_bound_and_those_that_refuse_info_are_not_warned_about(
    evictions: Evictions, caplog: pytest.LogCaptureFixture
) -> None:
    evictions.note(SERVER, info(maxmemory=0))
    evictions.note(SERVER, PermissionError("NOPERM"))
    assert caplog.messages == []


def test_evicted_keys_are_counted_from_the_first_look_on_and_logged_when_it_begins(
    evictions: Evictions, caplog: pytest.LogCaptureFixture
) -> None:
    looks = [
        (0, 1_000),
        (10, 1_000),
        (20, 1_007),
        (30, 1_009),
        (40, 1_009),
        (49, 1_011),
        (69, 1_012),
    ]
    for up_s, evicted in looks:
        evictions.note(SERVER, info("noeviction", evicted=evicted, up_s=up_s))
    assert evictions.keys == 12
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("ERROR", "ERROR")
    assert "redis at 10.0.0.1:6379 evicts keys, 7 of them lately" in first.message
    assert "evicts keys, 1 of them lately" in second.message


def test_several_loops_that_look_at_one_server_count_each_key_once_and_log_once(
    evictions: Evictions, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if a reply is handled after one that was sent later."""
    for evicted in (0, 5, 5, 15, 10, 15):
        evictions.note(SERVER, info("noeviction", evicted=evicted))
    assert evictions.keys == 15
    assert len(caplog.records) == 1


def test_a_path_that_is_not_text_is_no_problem(
    evictions: Evictions, caplog: pytest.LogCaptureFixture
) -> None:
    """INFO has the path of the server's configuration as the file system has it."""
    evictions.note(SERVER, b"# Server\r\nconfig_file:/srv/caf\xe9/redis.conf\r\n" + info())
    assert "may evict keys" in caplog.text


def test_a_server_that_restarts_counts_anew(evictions: Evictions) -> None:
    for run, evicted in (("1", 1_000), ("1", 1_005), ("2", 3), ("2", 3)):
        evictions.note(SERVER, info(run=run, evicted=evicted))
    assert evictions.keys == 5 + 3


@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_a_running_service_notices_that_its_server_evicts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is changed after it was looked at, and then filled."""
    monkeypatch.setattr(loops, "LOOK_EVERY_S", 0.01)

    async def main() -> None:
        async with AsyncLimiter(redis_server.url) as limiter:
            await limiter.hit("key", "1/minute")
            await asyncio.sleep(0.05)  # For looks that find nothing.
            assert caplog.messages == []
            used = int(redis_server.info("memory")["used_memory"])
            redis_server.config_set(maxmemory=used + 4_000_000, maxmemory_policy="allkeys-lru")
            for number in range(8):
                redis_server.call("SET", f"filler {number}", "x" * 1_000_000)
            meter: Any = limiter.engine.describe().meter
            for _ in range(1_000):
                if not meter.gauges()["store_evicted_keys"]:
                    await asyncio.sleep(0.01)  # Until it is looked at again.
            assert meter.gauges()["store_evicted_keys"]

    try:
        asyncio.run(main())
    finally:
        redis_server.config_set(maxmemory=0, maxmemory_policy="noeviction")
        redis_server.call("FLUSHALL")
    assert "may evict keys (maxmemory-policy is allkeys-lru)" in caplog.messages[0]
    assert "evicts keys, " in caplog.messages[1]
