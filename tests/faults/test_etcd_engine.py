"""The etcd engine on three real servers: owners and leaders are killed and stopped at 950 of 1,000."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headgate import Decision, EngineError, FixedWindow
from headgate.engines.etcd.aio import AsyncEtcdEngine
from tests.faults.etcd_caller import DAY_US
from tests.servers.etcd import Etcd, etcd
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

CLUSTERS = itertools.count(1)
TIMES = int(os.environ.get("HEADGATE_KILLS", "2"))
"""How often each fault is tried; a campaign asks for more."""
LIMIT, REACHED = 1_000, 950
UNCONFIRMED = 50
LEASED = f"&consistency=leased&unconfirmed={UNCONFIRMED}&flush_ms=100&flush_events=1000"
"""Answers at once, and writes late, so that a fault meets as much as may be unconfirmed."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Etcd]:
    with installed(), etcd(3) as started:
        yield started


@pytest.fixture
def url(servers: Etcd) -> str:
    servers.heal()
    return f"etcd://{servers.hosts}/f{next(CLUSTERS)}?ttl=2&shards=8"


class Caller:
    """A node in a process of its own, and what it has said."""

    def __init__(self, url: str, callers: int, stop_at: int) -> None:
        words = [url, str(LIMIT), str(callers), str(stop_at)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.etcd_caller", *words], stdout=subprocess.PIPE
        )
        self.said: Counter[str] = Counter()

    def listen(self, *, until: str, times: int = 1) -> None:
        """Read on until something was said so often."""
        assert self.process.stdout is not None
        while self.said[until] < times:
            letters = os.read(self.process.stdout.fileno(), 4_096).decode()
            assert letters, f"the node has ended: {self.said}"
            self.said.update(letters)

    def kill(self) -> None:
        """Kill it, and hear what it had said before."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.said.update(self.process.stdout.read().decode())
        self.process.stdout.close()

    @property
    def unknown(self) -> int:
        """Hits that were started, and of which nobody knows whether they count."""
        return self.said["s"] - self.said["y"] - self.said["n"] - self.said["e"]


@contextlib.contextmanager
def caller(url: str, callers: int, stop_at: int) -> Iterator[Caller]:
    started = Caller(url, callers, stop_at)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGCONT)
            started.kill()


def what_is_left(url: str) -> int:
    """How many more the next owner admits."""

    async def count() -> int:
        engine = AsyncEtcdEngine(f"{url}&deadline=20")
        hit = engine.bind(FixedWindow(LIMIT, DAY_US))
        admitted = 0
        try:
            while True:
                answer = hit("key", 1)
                if not (answer if isinstance(answer, Decision) else await answer):
                    return admitted
                admitted += 1
        finally:
            await engine.aclose()

    return asyncio.run(count())


@pytest.mark.parametrize("_", range(TIMES))
def test_a_killed_owner_leaves_exactly_what_it_had_not_given(url: str, _: int) -> None:
    with caller(url, 8, REACHED) as node:
        node.listen(until=".")
        node.kill()
        assert node.said["y"] == REACHED
        assert what_is_left(url) == LIMIT - REACHED


@pytest.mark.parametrize("_", range(TIMES))
def test_an_owner_killed_amid_calls_loses_none_and_doubles_none(url: str, _: int) -> None:
    with caller(url, 64, LIMIT) as node:
        node.listen(until="y", times=REACHED - 200)
        node.kill()
        total = node.said["y"] + what_is_left(url)
        assert LIMIT - node.unknown <= total <= LIMIT


@pytest.mark.parametrize("_", range(TIMES))
def test_a_killed_leased_owner_loses_no_more_than_was_unconfirmed(url: str, _: int) -> None:
    with caller(url + LEASED, 8, REACHED) as node:
        node.listen(until=".")
        node.kill()
        left = what_is_left(url)
        assert LIMIT - REACHED <= left <= LIMIT - REACHED + UNCONFIRMED


@pytest.mark.parametrize("_", range(TIMES))
def test_a_killed_leader_of_etcd_costs_nothing(servers: Etcd, url: str, _: int) -> None:
    with caller(f"{url}&deadline=20", 8, LIMIT + 1) as node:
        node.listen(until="y", times=REACHED)
        servers.kill_leader()
        node.listen(until=".")
        assert node.said["y"] + node.said["?"] >= LIMIT >= node.said["y"]
        servers.heal()
        node.kill()
        assert what_is_left(url) == 0


@pytest.mark.parametrize("_", range(TIMES))
def test_a_killed_leader_of_etcd_costs_a_leased_owner_no_more_than_was_unconfirmed(
    servers: Etcd, url: str, _: int
) -> None:
    """Its owner dies before the next leader is elected: nobody can write what was not confirmed."""
    with caller(url + LEASED, 8, REACHED) as node:
        node.listen(until="y", times=REACHED)
        servers.kill_leader()
        node.kill()
        assert node.said["y"] == REACHED
        left = what_is_left(url)
        servers.heal()
        assert LIMIT - REACHED <= left <= LIMIT - REACHED + UNCONFIRMED


@pytest.mark.parametrize("_", range(TIMES))
def test_a_leased_owner_that_outlives_a_leader_of_etcd_gives_no_more_than_was_unconfirmed(
    servers: Etcd, url: str, _: int
) -> None:
    """It answers until too much is unconfirmed, waits for the next leader, and goes on."""
    with caller(f"{url}{LEASED}&deadline=20", 8, LIMIT + 1) as node:
        node.listen(until="y", times=REACHED)
        servers.kill_leader()
        node.listen(until=".")
        servers.heal()
        node.kill()
        given = node.said["y"] + what_is_left(url)
        assert LIMIT - node.said["?"] <= given <= LIMIT + UNCONFIRMED


def test_an_owner_that_was_stopped_past_its_lease_answers_nothing_more(url: str) -> None:
    """It is stopped in the middle of its calls, and woken when another owner has given the rest."""
    with caller(url, 8, LIMIT) as node:
        node.listen(until="y", times=REACHED - 300)
        node.process.send_signal(signal.SIGSTOP)
        left = what_is_left(url)
        node.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(AssertionError):
            node.listen(until="n", times=8)
        node.kill()
        total = node.said["y"] + left
        assert LIMIT - node.unknown - node.said["?"] <= total <= LIMIT


def test_without_a_quorum_nothing_is_decided_and_it_comes_back_by_itself(
    servers: Etcd, url: str
) -> None:
    async def run() -> None:
        engine = AsyncEtcdEngine(f"{url}&deadline=1")
        hit = engine.bind(FixedWindow(LIMIT, DAY_US))

        async def asked() -> bool:
            answer = hit("key", 1)
            return bool(answer if isinstance(answer, Decision) else await answer)

        assert await asked()
        for node in servers.nodes[:2]:
            node.stop()
        with pytest.raises(EngineError):
            await asked()
        with pytest.raises(EngineError) as refused:
            await asked()
        assert not refused.value.indefinite
        for node in servers.nodes[:2]:
            node.resume()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(EngineError):
                    if await asked():
                        break
        await engine.aclose()

    asyncio.run(run())
