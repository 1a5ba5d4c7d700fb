"""Never more than the limit on a server's clock, whatever threads do around the ends of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate.engines.redis.sync import RedisEngine
from tests.servers.fixtures import on_flavours
from tests.unit.engines.threads import LIMITS, hammered, most

if TYPE_CHECKING:
    from headgate import Limit
    from tests.servers.redis import RedisServer


def server_us(server: RedisServer) -> int:
    seconds, us = server.call("TIME")
    return int(seconds) * 1_000_000 + int(us)


@on_flavours("redis_server", "redis-7.0", "valkey-9")
@pytest.mark.parametrize(
    "limit", LIMITS, ids=lambda one: f"{one.name} {getattr(one, 'chosen', '')}".strip()
)
def test_threads_get_no_more_than_the_limit(redis_server: RedisServer, limit: Limit) -> None:
    engine = RedisEngine(f"{redis_server.url}?deadline=10")
    hit = engine.bind(limit)
    from_us = server_us(redis_server)
    given = hammered(lambda: hit("key", 1), 0.4)
    allowed = most(limit, from_us, server_us(redis_server))
    engine.close()
    assert 0 < given <= allowed
