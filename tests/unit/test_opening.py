"""From a URL, a ready client or the environment to a limiter that works, on real servers."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from headgate import AsyncLimiter, ConfigError, Limiter, MemoryEngine, UsageError
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.guards.shell import AsyncGuardedEngine, GuardedEngine
from headgate.opening import url_from_env
from tests.servers.redis import standalone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import Cluster, RedisServer, SentinelGroup


def shares_a_budget(opened: Any, url: str) -> bool:
    """Whether a limiter made of `opened` and one made of the URL draw on the same units."""
    with Limiter(opened) as one, Limiter(url) as other:
        return [bool(each.hit("shared", "2/hour")) for each in (one, other, one)] == [
            True,
            True,
            False,
        ]


def test_a_url_is_all_it_takes(redis_server: RedisServer) -> None:
    """In threads and in an event loop, with the deny cache on unless told otherwise."""
    with Limiter(redis_server.url) as limiter:
        assert isinstance(limiter.engine, GuardedEngine)
        assert [bool(limiter.hit("key", "2/hour")) for _ in range(3)] == [True, True, False]
        assert limiter.hit("key", "2/hour").source == "cache"

    async def main() -> None:
        async with AsyncLimiter(redis_server.url) as limiter:
            assert isinstance(limiter.engine, AsyncGuardedEngine)
            assert not await limiter.hit("key", "2/hour")
            assert (await limiter.hit("key", "2/hour")).source == "cache"

    asyncio.run(main())
    with Limiter(f"{redis_server.url}?deny_cache=no") as limiter:
        assert [limiter.hit("key", "2/hour").source for _ in range(3)] == ["engine"] * 3
        assert limiter.hit("key", "2/hour", cost=3).source == "cache"  # Sure without asking.


def test_the_environment_names_the_engine(redis_servers: Callable[[str], RedisServer]) -> None:
    """`HEADGATE_ENGINE` first, then `REDIS_URL`, then a Redis on this machine."""
    url = redis_servers("redis-7.0").url
    assert url_from_env({}) == "redis://localhost:6379/0"
    assert url_from_env({"REDIS_URL": url}) == url
    assert url_from_env({"REDIS_URL": url, "HEADGATE_ENGINE": "memory://"}) == "memory://"
    assert isinstance(
        Limiter.from_env({"HEADGATE_ENGINE": "memory://"}).engine.unguarded, MemoryEngine
    )
    with Limiter.from_env({"REDIS_URL": url}, namespace="env") as limiter:
        assert limiter.hit("key", "5/hour").remaining == 4


def test_a_ready_client_lends_its_settings(redis_servers: Callable[[str], RedisServer]) -> None:
    """Sync and async clients alike; their connections stay theirs."""
    url = redis_servers("redis-7.0").url
    client = redis.Redis.from_url(url)
    assert shares_a_budget(client, url)
    assert client.ping()
    client.close()

    async def main() -> bool:
        client = redis.asyncio.Redis.from_url(url)
        async with AsyncLimiter(client) as limiter:
            answer = bool(await limiter.hit("shared", "2/hour"))
        await client.aclose()
        return answer

    assert asyncio.run(main()) is False


def test_a_client_with_password_tls_and_socket_is_understood() -> None:
    """Whatever the client was told about the way to the server."""
    with standalone("redis-7.0", tls=True, unix_socket=True, requirepass="hunter2") as server:
        assert server.certificates is not None
        secure = redis.Redis(
            host="127.0.0.1",
            port=server.tls_port or 0,
            password="hunter2",  # noqa: S106 - of a server that lives for this test
            ssl=True,
            ssl_ca_certs=str(server.certificates.authority),
        )
        local = redis.Redis(unix_socket_path=str(server.socket), password="hunter2")  # noqa: S106
        for client in (secure, local):
            with Limiter(client) as limiter:
                assert limiter.hit("key", "100/hour")
            client.close()


def test_clients_of_sentinel_and_cluster_are_understood(
    redis_sentinel: SentinelGroup, redis_cluster: Cluster
) -> None:
    """The Sentinels, the master's name and the nodes are read off the client."""
    addresses = [("127.0.0.1", one.port) for one in redis_sentinel.sentinels]
    master = redis.Sentinel(addresses).master_for(redis_sentinel.name)  # type: ignore[no-untyped-call]
    assert shares_a_budget(master, redis_sentinel.url)
    master.close()
    node = redis_cluster.nodes[0]
    cluster = redis.RedisCluster("127.0.0.1", node.port)
    assert shares_a_budget(cluster, redis_cluster.url)
    cluster.close()


def test_a_blocking_engine_in_a_loop_goes_to_a_thread(
    redis_servers: Callable[[str], RedisServer],
) -> None:
    """The loop goes on while it waits for the server."""
    url = redis_servers("redis-7.0").url

    async def main() -> tuple[bool, int]:
        engine = RedisEngine(url)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        allowed = bool(await AsyncLimiter(engine).hit("key", "5/hour"))
        ticking.cancel()
        engine.close()
        return allowed, ticks

    allowed, ticks = asyncio.run(main())
    assert allowed
    assert ticks > 1


def test_a_key_that_is_no_text_is_refused_before_anything_is_sent() -> None:
    """On Redis as in memory, hashable or not; there is no server here."""
    for key in (["a"], 5, b"a", None, ""):
        with Limiter("redis://127.0.0.1:1") as limiter, pytest.raises(UsageError, match="key"):
            limiter.hit(key, "5/hour")  # type: ignore[arg-type]

        async def main(key: Any) -> None:
            async with AsyncLimiter("redis://127.0.0.1:1") as limiter:
                with pytest.raises(UsageError, match="key"):
                    await limiter.hit(key, "5/hour")

        asyncio.run(main(key))


def test_event_loops_that_ended_are_let_go() -> None:
    """Also when nobody closed the engine in them."""
    engine = AsyncRedisEngine("redis://127.0.0.1:1")

    async def use() -> None:
        engine._state()

    for _ in range(3):
        asyncio.run(use())
    assert len(engine._loops) == 1


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
def test_an_invalid_logger_is_refused(make: Any) -> None:
    for wrong in ("app.limits", 0, print):
        with pytest.raises(UsageError, match=r"a logger must be a logging\.Logger, not"):
            make(logger=wrong)
    make(logger=logging.LoggerAdapter(logging.getLogger("app.limits"), {}))


@pytest.mark.parametrize("engine", [None, 42, object(), ["redis://localhost"]])
def test_an_invalid_engine_is_refused(engine: Any) -> None:
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises(UsageError, match="an engine must be a URL"):
            kind(engine)


def test_redis_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("headgate.engines.redis.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(ConfigError, match=r"pip install 'headgate\[redis\]'"):
        Limiter("redis://localhost")
