"""A Cluster that has lost one of its servers: the keys of the others are decided as before, and nobody waits long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, EngineError, Limiter, opening
from headgate.engines.redis.keys import slot_of
from headgate.guards.stack import fallback_of
from tests.faults.load import window_of
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from tests.servers.redis import Cluster
    from tests.servers.redis.server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

LIMIT = window_of(1_000)
KEYS = [f"user {number}" for number in range(90)]
TOO_LATE_S = 0.95
"""A busy machine adds a lot to 25 ms; who waits by the connection's deadline waits a second."""


class Kept:
    """A limiter for threads, and which key belongs to whom."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.cluster = cluster
        self.limiter: Any = Limiter(cluster.url, on_error="fallback", nodes=1, **options)

    def hit(self, key: str) -> Any:
        return self.limiter.hit(key, LIMIT)

    @property
    def engine(self) -> Any:
        return self.limiter.engine.unguarded

    def owner(self, key: str) -> RedisServer:
        keys = self.engine._operations.codec.keys
        return self.cluster.owner(slot_of(keys.state(keys.state_prefix(LIMIT, None), key)))

    def close(self) -> None:
        self.limiter.close()


class Awaited(Kept):
    """The same for asyncio, in a loop that runs all the time."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.cluster = cluster
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.limiter = AsyncLimiter(cluster.url, on_error="fallback", nodes=1, **options)

    def hit(self, key: str) -> Any:
        return self._run(self._hit(key))

    async def _hit(self, key: str) -> Any:
        return await self.limiter.hit(key, LIMIT)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self._run(self.limiter.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@on_flavours("redis_cluster", "redis-7.0")
@pytest.mark.parametrize("kind, how", [(Kept, "kill"), (Awaited, "stop")])
def test_the_keys_of_other_servers_are_decided_as_before(
    redis_cluster: Cluster, kind: type[Kept], how: str
) -> None:
    """A master and its replica are gone, so that nobody takes over. Every third key is one that was never asked for."""
    limits = kind(redis_cluster)
    known = KEYS[::3] + KEYS[1::3]
    for key in known:
        wait_until(lambda key=key: limits.hit(key).source == "engine", f"{key} is known")  # type: ignore[misc]
    owners = {key: limits.owner(key) for key in KEYS}
    lost = owners[KEYS[0]]
    for server in (redis_cluster.replica_of(lost), lost):
        getattr(server, how)()
    told: Counter[tuple[bool, str]] = Counter()
    slowest_s, ends = 0.0, time.monotonic() + 1.5
    rounds = 0
    while time.monotonic() < ends or rounds < 2:
        rounds += 1
        for key, owner in owners.items():
            began = time.monotonic()
            told[owner is lost, limits.hit(key).source] += 1
            slowest_s = max(slowest_s, time.monotonic() - began)
    assert slowest_s < TOO_LATE_S
    assert told[True, "engine"] == 0
    assert told[True, "fallback"] > 0
    # A machine this busy misses 25 ms now and then; if one breaker opened for all it would be nearly every answer.
    assert told[False, "engine"] > 2 * told[False, "fallback"], told
    guard = fallback_of(limits.limiter.engine)
    assert guard is not None
    assert guard.local.has_debts
    redis_cluster.heal()
    for key in KEYS:
        wait_until(lambda key=key: limits.hit(key).source == "engine", f"{key} is as before")  # type: ignore[misc]
    wait_until(
        lambda: bool(limits.hit("other")) and not guard.local.has_debts, "the store was told"
    )
    given = told[True, "fallback"] + told[False, "fallback"]
    used = sum(limits.engine.usage(key, LIMIT).used for key in KEYS) if kind is Kept else given
    assert used >= given
    limits.close()


@on_flavours("redis_cluster", "redis-7.0")
def test_who_wants_an_error_gets_it_for_the_keys_of_the_lost_server_alone(
    redis_cluster: Cluster,
) -> None:
    """With `on_error: raise`, one server less must not take the others down."""
    with Limiter(redis_cluster.url) as limiter:
        engine: Any = limiter.engine.unguarded
        keys = engine._operations.codec.keys
        for key in KEYS:
            limiter.hit(key, LIMIT)
        prefix = keys.state_prefix(LIMIT, None)
        owners = {key: redis_cluster.owner(slot_of(keys.state(prefix, key))) for key in KEYS}
        lost = owners[KEYS[0]]
        redis_cluster.replica_of(lost).kill()
        lost.kill()
        raised: Counter[bool] = Counter()
        began = time.monotonic()
        for _ in range(2):
            for key, owner in owners.items():
                try:
                    limiter.hit(key, LIMIT)
                except EngineError:
                    raised[owner is lost] += 1
        took_s = time.monotonic() - began
        gone = sum(owner is lost for owner in owners.values())
        assert raised == {True: 2 * gone}
        assert took_s < gone  # Most of them did not wait for their second.


@on_flavours("redis_cluster", "redis-7.0")
def test_a_server_that_is_back_without_its_functions_is_repaired_by_the_first_who_tries_it(
    redis_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer to that caller is an error that can be mended, and shows that it is there."""
    monkeypatch.setattr(opening, "DECISION_DEADLINE", 1.0)  # To load functions may take a while.
    with contextlib.closing(Kept(redis_cluster)) as limits:
        engine: Any = limits.engine
        hit = engine.bind(LIMIT)
        assert hit(KEYS[0], 1)
        owner = limits.owner(KEYS[0])
        owner.call("FUNCTION", "FLUSH")
        unresponsive, address = engine._topology.unresponsive, ("127.0.0.1", owner.port)
        # It was skipped, and may be tried now.
        unresponsive._since[address] = unresponsive._skipped_until[address] = 0.0
        assert hit(KEYS[0], 1)
        assert not unresponsive.is_unresponsive(address)
