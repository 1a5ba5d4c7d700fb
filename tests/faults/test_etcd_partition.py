"""One machine of three is cut off, with the etcd server and the node on it. Real network namespaces; it takes root."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow
from tests.faults.campaign.etcd_fleet import DAY_US, etcd_fleet, wait_until_shared
from tests.faults.campaign.fleet import NODES
from tests.servers.etcd import etcd_program
from tests.servers.fixtures import installed, on_etcd_versions
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.campaign.fleet import FaultNode, Fleet

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

LIMIT = 60
SHARE = LIMIT // NODES
DAY_S = DAY_US // 1_000_000
WITHIN_S = 60.0


@pytest.fixture
def three_machines(etcd_version: str) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        with installed():
            program = etcd_program(etcd_version)
            made = stack.enter_context(etcd_fleet("machines", "fallback", program=program))
        yield made


def ask(node: FaultNode, key: str) -> dict[str, Any]:
    return node.running.check(key, limit=LIMIT, window=DAY_S, algorithm="fixed_window")


def use_up(node: FaultNode, key: str, source: str) -> int:
    """Ask one node until it denies; how many it admitted, all of them by this source."""
    for admitted in range(2 * LIMIT):
        answer = ask(node, key)
        assert answer["source"] == source
        assert answer.get("degraded", False) is (source == "fallback")
        if not answer["allowed"]:
            return admitted
    raise AssertionError(f"{node.name} admits more than twice the limit")


def answers_by(node: FaultNode, source: str) -> bool:
    """Whether a node answers so for all of twenty keys, each of which somebody else may own."""
    begun = time.monotonic_ns()
    return all(ask(node, f"{source} {begun} {at}")["source"] == source for at in range(20))


@on_etcd_versions()
def test_a_minority_gives_its_share_and_the_majority_stays_exact(three_machines: Fleet) -> None:
    """And it comes back by itself: what it gave is charged, and it decides with the others again."""
    fleet = three_machines
    away, *others = fleet.nodes
    assert fleet.machines is not None
    assert away.machine is not None
    assert all(ask(node, "both")["source"] == "engine" for node in fleet.nodes)
    fleet.machines.cut_off(away.machine)
    wait_until_shared(fleet, NODES - 1, but=away)
    wait_until(lambda: answers_by(away, "fallback"), "it gives its share", within_s=WITHIN_S)
    for node in others:
        wait_until(
            lambda node=node: answers_by(node, "engine"),  # type: ignore[misc]
            f"{node.name} goes on",
            within_s=WITHIN_S,
        )

    assert use_up(away, "there", "fallback") == SHARE
    assert use_up(others[0], "here", "engine") == LIMIT
    assert use_up(others[1], "here", "engine") == 0
    # The worst that can happen to one key: the limit on the one side, and a share on the other.
    given = use_up(others[1], "both", "engine")
    assert given == LIMIT - NODES
    assert use_up(away, "both", "fallback") <= SHARE

    fleet.machines.mend()
    wait_until(lambda: answers_by(away, "engine"), "it is back", within_s=WITHIN_S)
    store = fleet.open_store()
    limit = FixedWindow(LIMIT, DAY_US)
    # What it gave alone is charged: once, or twice where an answer was lost.
    wait_until(
        lambda: store.usage("there", limit).used >= SHARE, "it is charged", within_s=WITHIN_S
    )
    charged = store.usage("there", limit).used
    assert charged <= 2 * SHARE
    assert store.usage("here", limit).used == LIMIT
    store.close()
    for node in fleet.nodes:
        assert not ask(node, "here")["allowed"]
    assert sum(use_up(node, "there", "engine") for node in fleet.nodes) == LIMIT - charged
