"""Escrow when the store of a region fails over: what was not replicated can be used a second time, and nothing else.

Two regions. East counts on a master with two replicas and three Sentinels, west on a server of its own.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from headgate import Request
from tests.faults.judged_regions import RULES, WITHIN_S
from tests.faults.load import report
from tests.servers.fixtures import installed
from tests.servers.process import HOST, free_ports, wait_until
from tests.servers.redis import sentinel, standalone
from tests.service.resp_node import RespNode, resp_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.redis import RedisServer, SentinelGroup

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

LIMIT = 100
WINDOW_S = 10
TRIES = 3
"""On a busy machine it may take longer than a window until there is a new master."""
FLAVOUR = "redis-7.0"
T = TypeVar("T")


class FailingOver:
    """Two regions with one limit, and the group that one of them counts on."""

    def __init__(self, group: SentinelGroup, nodes: dict[str, RespNode]) -> None:
        self.group = group
        self.east, self.west = nodes["east"], nodes["west"]
        self._keys = 0

    def begin(self) -> str:
        """Wait for a new window; a key that nobody has used."""
        self._keys += 1
        time.sleep(WINDOW_S - time.time() % WINDOW_S + 0.05)  # Windows are those of the wall clock.
        return f"key {self._keys}"

    def replicate(self) -> RedisServer:
        """Wait until all replicas have everything; the master."""
        master = self.group.master
        wait_until(
            lambda: all(one.has_all_of(master) for one in self.group.replicas),
            "all is replicated",
            within_s=WITHIN_S,
        )
        return master

    def cut_replicas(self) -> RedisServer:
        """From now on the master is alone: what it confirms is nowhere else."""
        master = self.replicate()
        for replica in self.group.replicas:
            replica.stop()  # What had been sent is there when it goes on, and it cannot connect again.
        master.call("CLIENT", "KILL", "TYPE", "replica")
        return master

    def fail_over(self, master: RedisServer) -> None:
        """Kill the master, and wait until there is another one."""
        master.kill()
        for replica in self.group.nodes:
            if replica is not master:
                replica.resume()
        self.group.wait_for_master(other_than=master, within_s=WITHIN_S)

    def spend(self, key: str, ends: float) -> int | None:
        """Use what is left in both regions until then; none if it is too late for that."""
        if time.time() > ends - 2.0:
            return None
        admitted = 0
        while time.time() < ends:
            admitted += admit(self.east, key, 5) + admit(self.west, key, 5)
            time.sleep(0.05)  # So that rights can be on their way.
        return admitted


def admit(node: RespNode, key: str, units: int) -> int:
    """How many of so many requests pass."""

    async def ask() -> int:
        request = Request(path="/", user_id=key)
        decide = node.node.limiter.decide_request
        return sum([(await decide(request)).allowed for _ in range(units)])

    return node.wait(ask())


def given_by(node: RespNode) -> int:
    """The rights that a region has given away so far."""
    exchange = node.node.exchange
    assert exchange is not None
    assert exchange.rights is not None
    return sum(exchange.rights.figures.given.values())


def wait_for_gift(node: RespNode, given: int) -> None:
    """Until a region has given away more than that."""
    wait_until(lambda: given_by(node) > given, "rights are given", within_s=WITHIN_S)


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingOver]:
    rules = tmp_path_factory.mktemp("regions") / "rules.yaml"
    rules.write_text(RULES.format(limit=LIMIT, seconds=WINDOW_S, mode="escrow"))
    ports = dict(zip(("east", "west"), free_ports(2), strict=True))
    with contextlib.ExitStack() as stack:
        with installed():
            group = stack.enter_context(sentinel(FLAVOUR))
            west = stack.enter_context(standalone(FLAVOUR))
        nodes = {
            name: stack.enter_context(
                resp_node(
                    url=f"{url}?deadline=0.5",
                    resp_port=ports[name],
                    region=name,
                    node_id=name,
                    regions=f"{other}=headgate://{HOST}:{ports[other]}",
                    rules=str(rules),
                )
            )
            for name, url, other in (("east", group.url, "west"), ("west", west.url, "east"))
        }
        wait_until(
            lambda: all(admit(one, f"{time.monotonic_ns()}", 1) for one in nodes.values()),
            "both have rights",
            within_s=WITHIN_S,
        )
        yield FailingOver(group, nodes)


def test_nothing_is_over_when_all_was_replicated(regions: FailingOver) -> None:
    """Slow: windows of 10 s on the real clock, in which a master is replaced."""

    def admitted() -> tuple[int, int] | None:
        key = regions.begin()
        ends = time.time() + WINDOW_S - 0.5
        before = admit(regions.east, key, 45) + admit(regions.west, key, 30)
        time.sleep(0.3)  # Rights that were asked for arrive.
        regions.fail_over(regions.replicate())
        after = regions.spend(key, ends)
        regions.group.heal()
        return (before, after) if after else None

    before, after = first_of(admitted)
    report(f"{before} before the failover and {after} after it, of {LIMIT}")
    assert before > 60
    assert before + after <= LIMIT


def test_only_what_was_not_replicated_is_admitted_again(regions: FailingOver) -> None:
    """Slow: as above."""

    def admitted() -> tuple[int, int, int] | None:
        key = regions.begin()
        ends = time.time() + WINDOW_S - 0.5
        before = admit(regions.east, key, 20) + admit(regions.west, key, 20)
        master = regions.cut_replicas()
        given = given_by(regions.east)
        alone = admit(regions.east, key, 10)
        before += alone + admit(regions.west, key, 25)
        wait_for_gift(regions.east, given)  # West runs low, and gets some of east's rights.
        regions.fail_over(master)
        granted = given_by(regions.east) - given
        after = regions.spend(key, ends)
        regions.group.heal()
        return (before + after, alone, granted) if after else None

    total, alone, granted = first_of(admitted)
    report(f"{total} of {LIMIT}; {alone} admissions and {granted} granted units were lost")
    assert alone == 10
    assert granted > 0
    assert total <= LIMIT + alone + granted


def first_of(run: Callable[[], T | None]) -> T:
    """What came of the first run that was over before its window was."""
    for _ in range(TRIES):
        found = run()
        if found is not None:
            return found
    raise AssertionError("nobody was admitted after a failover")
