"""Three nodes on three etcd servers, as an operator starts them: they die, join and leave while clients hammer them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import pytest

from headgate import Decision, EngineError, FixedWindow, TokenBucket
from headgate.engines.remote.engine import AsyncRemoteEngine
from tests.servers.clock import MovableClock
from tests.servers.fixtures import on_etcd_versions
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.servers.etcd import Etcd

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

CLUSTERS = itertools.count(1)
DAY_US = 86_400_000_000
KEYS = [f"key{number}" for number in range(20)]
LIMIT = FixedWindow(400, DAY_US)
Recorded: TypeAlias = "Callable[[str, object], None]"
PAUSE_S = 0.02
"""Between two calls of a caller, so that no key is used up before the end."""


class Nodes:
    """Nodes of one cluster."""

    def __init__(self, servers: Etcd, options: str = "") -> None:
        self.engine = (
            f"etcd://{servers.hosts}/n{next(CLUSTERS)}?shards=16&ttl=5&deadline=3{options}"
        )
        self.stack = contextlib.ExitStack()
        self.running: list[tuple[Service, int]] = []

    def start(self, environment: Mapping[str, str] | None = None) -> Service:
        """One more node."""
        (port,) = free_ports(1)
        # Callers are told when nothing was decided, and try again: what a fallback gives is no count.
        options = ("--engine", self.engine, "--resp-port", str(port), "--set", "on_error=raise")
        node = self.stack.enter_context(service(*options, environment=environment))
        self.running.append((node, port))
        return node

    @property
    def url(self) -> str:
        """All of them, for the library."""
        return f"headgate://{','.join(f'{HOST}:{port}' for _, port in self.running)}?deadline=5"

    def shards(self) -> list[int]:
        """How many shards each node has that runs."""
        return [_gauge(node, "headgate_etcd_shards") for node, _ in self.running if node.running]

    def wait_until_shared(self, count: int) -> None:
        """Wait until so many nodes have all shards among them."""
        wait_until(
            lambda: sum(self.shards()) == 16 and sum(map(bool, self.shards())) == count,
            f"{count} nodes have 16 shards: {self.shards()}",
            within_s=40.0,
        )


@pytest.fixture
def nodes(etcd_cluster: Etcd) -> Iterator[Nodes]:
    started = Nodes(etcd_cluster)
    with started.stack:
        yield started


def _gauge(node: Service, name: str) -> int:
    with contextlib.suppress(OSError):
        _, _, text = node.ask("GET", "/metrics")
        for line in text.splitlines():
            if line.startswith(name + " "):
                return int(float(line.split()[1]))
    return 0


class Load:
    """Callers that hit keys in turn, and what they were told."""

    def __init__(self, url: str) -> None:
        self.engines = [AsyncRemoteEngine(url) for _ in range(3)]
        self.admitted: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.longest_s = 0.0
        self._stop = False

    async def call(self, place: int) -> None:
        hit = self.engines[place % len(self.engines)].bind(LIMIT)
        number = place
        last = time.monotonic()
        while not self._stop:
            number += 1
            key = KEYS[number % len(KEYS)]
            try:
                answer = hit(key, 1)
                decision = answer if isinstance(answer, Decision) else await answer
            except EngineError as error:
                self.unknown[key] += error.indefinite
                await asyncio.sleep(0.01)  # A node is down: callers try again.
                continue
            self.admitted[key] += decision.allowed
            self.longest_s = max(self.longest_s, time.monotonic() - last)
            await asyncio.sleep(PAUSE_S)  # Callers think for a moment.
            last = time.monotonic()

    async def run(self, while_doing: object, callers: int = 12) -> None:
        """Call until something is done in a thread, and then until every key is used up."""
        tasks = [asyncio.ensure_future(self.call(place)) for place in range(callers)]
        await asyncio.to_thread(while_doing)  # type: ignore[arg-type] # It takes nothing.
        self._stop = True
        await asyncio.gather(*tasks)
        await asyncio.gather(*(self.use_up(key) for key in KEYS))
        for engine in self.engines:
            await engine.aclose()

    async def use_up(self, key: str) -> None:
        """Hit a key until it is denied."""
        hit = self.engines[0].bind(LIMIT)
        begun, before, failed = time.monotonic(), self.admitted[key], Counter[str]()
        while time.monotonic() < begun + 60:
            try:
                answer = hit(key, 1)
                decision = answer if isinstance(answer, Decision) else await answer
            except EngineError as error:
                self.unknown[key] += error.indefinite
                failed[f"{time.monotonic() - begun:.0f} s: {error}"] += 1
                await asyncio.sleep(0.05)  # A node is down: callers try again.
                continue
            if not decision:
                return
            self.admitted[key] += 1
        admitted = self.admitted[key] - before
        raise AssertionError(
            f"{key} was never denied: {admitted} admitted after {before}, {failed}"
        )

    def check(self) -> None:
        """Each key was given exactly what it has, but for calls of which nobody knows."""
        for key in KEYS:
            assert self.admitted[key] <= LIMIT.limit, f"{key}: {self.admitted[key]} admitted"
            assert self.admitted[key] + self.unknown[key] >= LIMIT.limit, f"{key} lost some"


@on_etcd_versions()
def test_a_killed_node_is_replaced_and_nothing_is_lost_or_doubled(
    nodes: Nodes, record_property: Recorded
) -> None:
    for _ in range(3):
        nodes.start()
    nodes.wait_until_shared(3)
    load = Load(nodes.url)
    killed: list[float] = []

    def kill() -> None:
        time.sleep(0.5)  # While calls are made.
        nodes.running[0][0].kill()
        begun = time.monotonic()
        nodes.wait_until_shared(2)
        killed.append(time.monotonic() - begun)

    asyncio.run(load.run(kill))
    load.check()
    record_property("taken_over_s", round(killed[0], 2))
    record_property("longest_wait_s", round(load.longest_s, 2))
    # The port refuses, so nobody waits for the end of the lease.
    assert killed[0] < 4.0


@on_etcd_versions(always=True)
def test_nodes_join_and_leave_under_load_and_no_call_is_unsure(
    nodes: Nodes, record_property: Recorded
) -> None:
    nodes.start()
    nodes.start()
    nodes.wait_until_shared(2)
    load = Load(nodes.url)

    def change() -> None:
        time.sleep(0.3)  # While calls are made.
        nodes.start()
        nodes.wait_until_shared(3)
        leaving = nodes.running[0][0]
        leaving.interrupt()
        assert leaving.wait(30) == 0
        nodes.wait_until_shared(2)

    asyncio.run(load.run(change))
    load.check()
    record_property("longest_wait_s", round(load.longest_s, 2))
    assert not sum(load.unknown.values())


@on_etcd_versions()
def test_a_stopped_node_answers_nothing_that_another_has_given(nodes: Nodes) -> None:
    """It hangs past its lease with its connections open, and goes on later."""
    for _ in range(3):
        nodes.start()
    nodes.wait_until_shared(3)
    load = Load(nodes.url)

    def stop() -> None:
        stopped = nodes.running[0][0]
        time.sleep(0.3)  # While calls are made.
        stopped.stop()
        wait_until(
            lambda: (
                sum(_gauge(node, "headgate_etcd_shards") for node, _ in nodes.running[1:]) == 16
            ),
            "the others have all shards",
            within_s=40.0,
        )
        stopped.resume()

    asyncio.run(load.run(stop))
    load.check()


@on_etcd_versions()
def test_a_node_whose_clock_is_ahead_hands_out_no_time(nodes: Nodes, tmp_path: Path) -> None:
    """A bucket of one an hour, emptied at one owner, is empty at the next, whose wall clock is an hour ahead."""
    ahead = MovableClock(tmp_path)
    ahead.offset_s = 3_600.0
    nodes.start()
    nodes.wait_until_shared(1)
    bucket = TokenBucket(1, 3_600_000_000)

    async def admitted() -> int:
        engine = AsyncRemoteEngine(nodes.url)
        hit = engine.bind(bucket)
        given = 0
        for key in KEYS:
            answer = hit(key, 1)
            given += bool(answer if isinstance(answer, Decision) else await answer)
        await engine.aclose()
        return given

    assert asyncio.run(admitted()) == len(KEYS)
    nodes.start(ahead.environment)
    nodes.wait_until_shared(2)
    assert asyncio.run(admitted()) == 0
    nodes.running[0][0].kill()
    del nodes.running[0]
    nodes.wait_until_shared(1)
    assert asyncio.run(admitted()) == 0


@on_etcd_versions()
def test_clocks_of_nodes_that_step_by_seconds_give_nothing_away(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Each node's wall clock steps while it decides, and shards move from one to the other."""
    clocks: list[MovableClock] = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        clocks.append(MovableClock(folder))
        nodes.start(clocks[-1].environment)
    nodes.wait_until_shared(2)
    load = Load(nodes.url)

    def step() -> None:
        time.sleep(0.3)  # While calls are made.
        for clock, step_s in zip(clocks, (5.0, -5.0), strict=True):
            clock.step(step_s)
        time.sleep(0.3)  # While calls are made.
        nodes.running[0][0].kill()
        nodes.wait_until_shared(1)

    asyncio.run(load.run(step))
    load.check()
