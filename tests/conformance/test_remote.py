"""The remote engine passes the suite through a node, blocking and awaited: the node's own engine is the memory engine.

A request goes over a socket, through the node's guards, and back; nothing may differ from asking the memory engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import MemoryEngine
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.remote.engine import AsyncRemoteEngine, RemoteEngine
from headgate.testing import Blocking
from headgate.testing.conformance import EngineConformance
from tests.servers.fixtures import on_flavours
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from headgate.testing import ManualClock
    from tests.servers.redis import RedisServer
    from tests.service.resp_node import RespNode


class ThroughANode(EngineConformance):
    programs = 60

    @pytest.fixture
    def node(self, clock: ManualClock) -> Iterator[RespNode]:
        with resp_node(MemoryEngine(clock=clock)) as node:
            yield node


class TestRemoteEngine(ThroughANode):
    @pytest.fixture
    def engine(self, node: RespNode, clock: ManualClock) -> Iterator[Engine]:
        engine = RemoteEngine(f"{node.url}?deadline=20", clock=clock)
        yield engine
        engine.close()


class TestAsyncRemoteEngine(ThroughANode):
    @pytest.fixture
    def engine(self, node: RespNode, clock: ManualClock) -> Iterator[Engine]:
        engine = Blocking(AsyncRemoteEngine(f"{node.url}?deadline=20", clock=clock))
        yield engine
        engine.close()


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
class TestRemoteEngineOfRedis(EngineConformance):
    """The node's own engine is Redis: every answer has to wait, and replies still leave in order."""

    programs = 20

    @pytest.fixture
    def engine(self, redis_server: RedisServer, clock: ManualClock) -> Iterator[Engine]:
        behind = AsyncRedisEngine(f"{redis_server.url}?deadline=20", clock=clock)
        with resp_node(behind) as node:
            engine = RemoteEngine(f"{node.url}?deadline=20", clock=clock)
            yield engine
            engine.close()
