"""The benchmark of guards runs and says what it promises to say; how fast anything is, no test can know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.guards.__main__ import added, in_memory, on_redis, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import RedisServer


def test_a_tiny_run_has_everybody(redis_servers: Callable[[str], RedisServer]) -> None:
    memory, redis = in_memory(1), on_redis(redis_servers("redis-7.0").url, 1)
    assert list(memory.rounds) == ["bare", "kill switch", "kill switch, bans"]
    assert list(redis.rounds) == ["bare", "raise", "fallback"]
    assert added(memory, "bare") == 0
    assert "added" in shown("memory", memory)
