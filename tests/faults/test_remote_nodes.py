"""Nodes that are killed, stopped or restarted under load: the others are asked, and no limit is exceeded by a unit.

Two nodes share one Redis. What was sent and not answered may have been charged, and is told; everything else that was
admitted is counted once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headgate import EngineError, TokenBucket
from headgate.engines.redis.sync import RedisEngine
from headgate.engines.remote.engine import AsyncRemoteEngine, RemoteEngine
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.redis import RedisServer
    from tests.service.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.heavy, on_flavours("redis_server", "redis-7.0")]

LIMIT = TokenBucket(1_000, 86_400_000_000)
"""So slow that nothing flows back while a test runs."""
TASKS = 32


class TwoNodes(NamedTuple):
    """Nodes on one Redis, by the ports of their Redis protocol, and what the store has counted."""

    nodes: dict[int, Service]
    url: str
    store: RedisEngine

    def used(self, key: str) -> int:
        return self.store.usage(key, LIMIT).used

    def of(self, engine: Any) -> Service:
        """The node that a client asks."""
        address = engine._topology.address(0)
        assert address is not None
        return self.nodes[address[1]]


@pytest.fixture
def two_nodes(redis_server: RedisServer) -> Iterator[TwoNodes]:
    ports = free_ports(2)
    with ExitStack() as stack:
        nodes = {
            port: stack.enter_context(
                service("--engine", redis_server.url, "--resp-port", str(port))
            )
            for port in ports
        }
        addresses = ",".join(f"{HOST}:{port}" for port in ports)
        store = RedisEngine(redis_server.url)
        yield TwoNodes(nodes, f"headgate://{addresses}", store)
        store.close()


class Outcomes(NamedTuple):
    """What callers were told."""

    outcomes: Counter[str]
    longest_s: float


async def hammer(
    engine: AsyncRemoteEngine, key: str, halfway: Callable[[], None], units: int = 1_300
) -> Outcomes:
    """Ask for more than there is from many tasks; when a third was asked for, something happens."""
    hit: Any = engine.bind(LIMIT)
    outcomes: Counter[str] = Counter()
    longest_s, left = 0.0, units
    happened = False

    async def caller() -> None:
        nonlocal left, happened, longest_s
        while left > 0:
            left -= 1
            if left < 2 * units // 3 and not happened:
                happened = True
                await asyncio.to_thread(halfway)
            began = time.monotonic()
            try:
                outcomes["yes" if await hit(key, 1) else "no"] += 1
            except EngineError as error:
                outcomes["unknown" if error.indefinite else "refused"] += 1
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(0.001)  # The load lasts for a while, as a real one does.

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(caller())
    return Outcomes(outcomes, longest_s)


def test_a_node_that_is_killed_costs_what_was_in_flight_and_nothing_else(
    two_nodes: TwoNodes,
) -> None:
    async def story() -> Outcomes:
        engine = AsyncRemoteEngine(f"{two_nodes.url}?deadline=5")
        await engine.usage("key", LIMIT)
        told = await hammer(engine, "key", lambda: two_nodes.of(engine).kill())
        await engine.aclose()
        return told

    outcomes, _ = asyncio.run(story())
    counted = two_nodes.used("key")
    assert counted <= 1_000
    assert outcomes["refused"] == 0
    assert outcomes["yes"] <= counted <= outcomes["yes"] + outcomes["unknown"]
    assert outcomes["yes"] + outcomes["unknown"] >= 1_000
    assert outcomes["unknown"] <= 2 * TASKS


def test_nodes_that_are_restarted_one_by_one_cost_nothing(two_nodes: TwoNodes) -> None:
    """SIGTERM: a node says that it is about to end before it ends, and nobody is told of an error."""

    async def story() -> Outcomes:
        engine = AsyncRemoteEngine(f"{two_nodes.url}?deadline=10")
        await engine.usage("key", LIMIT)
        told = await hammer(engine, "key", lambda: two_nodes.of(engine).interrupt())
        await engine.aclose()
        return told

    outcomes, _ = asyncio.run(story())
    assert outcomes == {"yes": 1_000, "no": 300}
    assert two_nodes.used("key") == 1_000


def test_a_node_that_falls_silent_is_left_for_another(two_nodes: TwoNodes) -> None:
    """SIGSTOP: its connections stay open. Who waits is told at its deadline; then the other node is asked."""

    async def story() -> tuple[Outcomes, Outcomes]:
        engine = AsyncRemoteEngine(f"{two_nodes.url}?deadline=1")
        await engine.usage("key", LIMIT)
        silent = two_nodes.of(engine)
        told = await hammer(engine, "key", silent.stop, units=600)
        after = await hammer(engine, "key", lambda: None, units=600)
        silent.resume()
        await engine.aclose()
        return told, after

    first, after = asyncio.run(story())
    assert first.outcomes["unknown"] <= 2 * TASKS
    assert after.outcomes["unknown"] + after.outcomes["refused"] == 0
    yes = first.outcomes["yes"] + after.outcomes["yes"]
    assert yes <= two_nodes.used("key") <= 1_000


def test_threads_of_blocking_limiters_continue_with_the_other_node(two_nodes: TwoNodes) -> None:
    engine = RemoteEngine(f"{two_nodes.url}?deadline=5")
    hit = engine.bind(LIMIT)
    hit("key", 1)
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    begun = threading.Event()

    def caller() -> None:
        for _ in range(160):
            try:
                said = "yes" if hit("key", 1) else "no"
            except EngineError as error:
                said = "unknown" if error.indefinite else "refused"
            with lock:
                outcomes[said] += 1
                if outcomes.total() == 300:
                    begun.set()

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    two_nodes.of(engine).kill()
    for thread in threads:
        thread.join(60)
    engine.close()
    counted = two_nodes.used("key")
    assert outcomes["refused"] == 0
    assert outcomes["unknown"] <= len(threads)
    assert outcomes["yes"] + 1 <= counted <= min(1_000, outcomes["yes"] + 1 + outcomes["unknown"])
    assert outcomes["yes"] + outcomes["unknown"] + 1 >= 1_000
