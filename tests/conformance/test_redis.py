"""The Redis engine passes the suite on real servers: every flavour, alone, under Sentinel, as Cluster.

`HEADGATE_PROGRAMS` says how many random programs of forty steps each engine is compared by; a nightly
run asks for more than the usual share.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from headgate.algorithms.base import MAX_EXACT
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.guards import deny_cache, never
from headgate.guards.deny_cache import DenyCache
from headgate.guards.shell import AsyncGuardedEngine, GuardedEngine
from headgate.testing import Blocking
from headgate.testing.conformance import EngineConformance
from tests.conformance.settled_by_token import SettledByToken
from tests.servers.fixtures import on_flavours
from tests.servers.redis.older_nodes import old_and_new

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from headgate.testing import ManualClock
    from tests.servers.redis import Cluster, RedisServer, SentinelGroup

PROGRAMS = int(os.environ.get("HEADGATE_PROGRAMS", "250"))
SHARE = max(1, PROGRAMS // 5)

# A server is asked for every step of a program, and there are forty in each.
pytestmark = pytest.mark.slow


def patient(server: RedisServer | SentinelGroup | Cluster) -> str:
    """A URL with a deadline that only a server that is gone would miss: nothing here is about time."""
    return f"{server.url}?deadline=10"


class TestRedisEngine(EngineConformance):
    programs = PROGRAMS

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = RedisEngine(patient(redis_server), clock=clock)
        yield engine
        engine.close()


class TestOldAndNewNodes(EngineConformance):
    """A fleet that is upgraded one by one: each call is made by a node of either version."""

    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = old_and_new(patient(redis_server), clock)
        yield engine
        engine.close()


class TestAsyncRedisEngine(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(AsyncRedisEngine(patient(redis_server), clock=clock))
        yield engine
        engine.close()


@pytest.fixture
def _all_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have also that asked which can never fit: without the engine nobody knows what is left, and a story tells it."""
    monkeypatch.setattr(deny_cache, "capacity", lambda _: MAX_EXACT)
    monkeypatch.setattr(deny_cache, "certain_denial", lambda _: None)
    monkeypatch.setattr(never, "capacity", lambda _: MAX_EXACT)


@pytest.mark.usefixtures("_all_asked")
class TestDenyCachedRedisEngine(EngineConformance):
    """The clock that the cache counts by moves with the test's, so nothing may differ at all."""

    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = GuardedEngine(RedisEngine(patient(redis_server), clock=clock), DenyCache(clock))
        yield engine
        engine.close()


@pytest.mark.usefixtures("_all_asked")
class TestDenyCachedAsyncRedisEngine(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        redis = AsyncRedisEngine(patient(redis_server), clock=clock)
        engine = Blocking(AsyncGuardedEngine(redis, DenyCache(clock)))
        yield engine
        engine.close()


@on_flavours("redis_sentinel", "redis-7.0")
class TestSentinel(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_sentinel: SentinelGroup, clock: ManualClock) -> Iterator[Engine]:
        engine = RedisEngine(patient(redis_sentinel), clock=clock)
        yield engine
        engine.close()


@on_flavours("redis_sentinel", "redis-7.0")
class TestAsyncSentinel(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_sentinel: SentinelGroup, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(AsyncRedisEngine(patient(redis_sentinel), clock=clock))
        yield engine
        engine.close()


@on_flavours("redis_cluster", "redis-7.0")
class TestCluster(EngineConformance):
    """Charges of one request lie in different slots, and are answered as if they did not."""

    programs = SHARE

    @pytest.fixture
    def engine(self, redis_cluster: Cluster, clock: ManualClock) -> Iterator[Any]:
        engine = RedisEngine(patient(redis_cluster), clock=clock)
        yield SettledByToken(engine)
        engine.close()


@on_flavours("redis_cluster", "redis-7.0")
class TestAsyncCluster(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_cluster: Cluster, clock: ManualClock) -> Iterator[Any]:
        engine = Blocking(AsyncRedisEngine(patient(redis_cluster), clock=clock))
        yield SettledByToken(engine)
        engine.close()


@on_flavours("redis_cluster", "redis-7.0")
class TestColocatedCluster(EngineConformance):
    """All keys in one slot, so that every request is one script call."""

    programs = SHARE

    @pytest.fixture
    def engine(self, redis_cluster: Cluster, clock: ManualClock) -> Iterator[Any]:
        engine = RedisEngine(patient(redis_cluster), clock=clock, colocate=lambda _: "one")
        yield SettledByToken(engine)
        engine.close()
