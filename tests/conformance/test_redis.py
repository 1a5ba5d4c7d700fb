"""The Redis engine passes the suite on real servers: every flavour, alone, under Sentinel, as Cluster.

`HEADGATE_PROGRAMS` says how many random programs of forty steps each engine is compared by; a nightly
run asks for more than the usual share.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.guards.deny_cache import AsyncDenyCache, DenyCache
from headgate.testing import Blocking
from headgate.testing.conformance import EngineConformance
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from headgate import Engine
    from headgate.charge import Request
    from headgate.decision import Decision
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


class TestAsyncRedisEngine(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(AsyncRedisEngine(patient(redis_server), clock=clock))
        yield engine
        engine.close()


class TestDenyCachedRedisEngine(EngineConformance):
    """The clock that the cache counts by moves with the test's, so nothing may differ at all."""

    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = DenyCache(RedisEngine(patient(redis_server), clock=clock))
        yield engine
        engine.close()


class TestDenyCachedAsyncRedisEngine(EngineConformance):
    programs = SHARE

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(AsyncDenyCache(AsyncRedisEngine(patient(redis_server), clock=clock)))
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


class SettledByToken:
    """An engine on Cluster, for stories that settle by the name they reserved under.

    There a reservation lies in the slot of its key, and the token that the decision carries says where;
    everybody but a story settles by that one.
    """

    def __init__(self, engine: Engine, tokens: dict[str, str] | None = None) -> None:
        self._engine = engine
        self._tokens = {} if tokens is None else tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scoped(self, namespace: str) -> Self:
        return type(self)(self._engine.scoped(namespace), self._tokens)

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        decisions = self._engine.decide(requests)
        for request, decision in zip(requests, decisions, strict=True):
            if request.token is not None and decision.token is not None:
                self._tokens[request.token] = decision.token
        return decisions

    def settle(self, token: str, actual: int) -> bool:
        return self._engine.settle(self._tokens.get(token, token), actual)


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
