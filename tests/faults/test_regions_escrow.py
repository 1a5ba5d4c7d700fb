"""Limits that regions keep by escrow, on real servers: all together never admit more, and hardly less.

Three regions, each with a Redis or an etcd of its own, and links with round trips of 80 and 150 ms.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import ConfigError
from headgate.regions.escrow import RightsAsk, RightsGrant
from headgate.regions.escrow_exchange import SOON_US, _ask_message
from headgate.regions.escrow_guard import window_of
from headgate.service.node import Node
from headgate.service.settings import Settings
from tests.faults.campaign.region_faults import REGION_FAULTS, run_region_fault
from tests.faults.judged_regions import RULES, WITHIN_S, FleetNeeds
from tests.faults.region_fleet import RegionFleet, region_fleet
from tests.servers.fixtures import installed
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.heavy

LIMIT = 90
SHORT = ("F35", "F36", "F36b", "F36c")
"""`make faults` has all of them."""
TRIES = 3


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionFleet]:
    with installed(), region_fleet(tmp_path_factory.mktemp("regions"), limit=LIMIT) as made:
        yield made


@pytest.fixture(params=["Redis", "etcd"])
def regions_on(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegionFleet]:
    """Regions that count in Redis, or in etcd."""
    if request.param == "Redis":
        yield request.getfixturevalue("regions")
        return
    with installed(), region_fleet(tmp_path, FleetNeeds(on_etcd=True), limit=LIMIT) as made:
        yield made


@pytest.mark.slow
def test_hardly_a_unit_is_left_where_it_is_not_wanted(regions_on: RegionFleet) -> None:
    """All requests come in one region, which has a third of the limit. Slow: windows of 3 s on the real clock.

    Other tests run beside it, and a store that waits for its turn denies: so it may take several tries.
    """
    used: list[float] = []
    for number in range(TRIES):
        name = f"skewed {number}"
        verdict, run = regions_on.run(name, lambda: None, paces_s={"east": 0.01}, windows=2)
        assert verdict.holds, verdict.findings
        assert max(run.totals()) <= LIMIT
        used.append(sum(run.totals()) / (LIMIT * len(run.totals())))
        if used[-1] >= 0.97:
            break
    assert max(used) >= 0.97, used


@pytest.mark.slow
@pytest.mark.parametrize("number", SHORT)
def test_a_fault_between_regions_admits_nothing_over(
    number: str, regions: RegionFleet, tmp_path: Path
) -> None:
    """Slow: as above."""
    figures = run_region_fault(REGION_FAULTS[number], regions, 1, tmp_path)
    assert figures.holds, figures.findings
    assert figures.sources["engine"] > 0


@pytest.mark.slow
def test_the_rights_of_a_dead_region_go_to_the_others_once_taken_back(
    regions: RegionFleet,
) -> None:
    """Slow: it counts for windows that begin five seconds later."""
    dead = regions.regions["west"]
    regions.cut_off("west")
    dead.store.kill()
    exchange = regions.regions["east"].node.node.exchange
    assert exchange is not None
    assert exchange.rights is not None
    try:
        paces = {"east": 0.01, "north": 0.01}
        _, before = regions.run("idle", lambda: regions.cut_off("west"), paces_s=paces, windows=1)
        assert max(before.totals()) <= 2 * LIMIT // 3
        regions.cut_off("west")
        assert regions.regions["east"].node.wait(exchange.rights.take_back("west")) == ["west"]
        time.sleep(SOON_US / 1_000_000)  # From then on it counts, for windows that begin.
        verdict, after = regions.run(
            "taken back", lambda: regions.cut_off("west"), paces_s=paces, windows=1
        )
        assert verdict.holds, verdict.findings
        assert 2 * LIMIT // 3 < max(after.totals()) <= LIMIT
        regions.cut_off("west")
        untold = regions.regions["east"].node.wait(exchange.rights.take_back("west", undo=True))
        assert untold == ["west"]
    finally:
        dead.store.start()
        regions.mend()


def test_rights_are_counted_once_when_an_ask_is_repeated_and_as_lost_when_the_store_is_another(
    regions: RegionFleet,
) -> None:
    limit: Any = regions.limit.across_regions("escrow")
    node = regions.regions["east"].node
    rights = node.node.exchange.rights if node.node.exchange else None
    assert rights is not None

    def ask(giver: str, asker: str, epoch: str) -> RightsAsk:
        window = window_of(limit, "api", "counted once", rights._store.now_us())
        return RightsAsk("an id", asker, epoch, giver, window, 0)

    def given() -> bool:
        """Rights of the window that runs; if it ends meanwhile, of the next one."""
        before = rights.figures.given["west"]
        message = _ask_message(ask("east", "west", "any"), limit)
        first = node.wait(rights.answer(message))
        assert node.wait(rights.answer(message)) == first
        assert rights.figures.given["west"] == before + first[1]
        return bool(first[1])

    wait_until(given, "rights are given", within_s=WITHIN_S)
    before = rights.figures.lost
    node.wait(rights._take_in(RightsGrant(ask("west", "east", "another"), 7, 0), limit))
    assert rights.figures.lost == before + 7
    assert rights.figures.lost_at_us is not None


def test_a_store_that_cannot_keep_rights_is_refused_when_rules_are_loaded(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(limit=LIMIT, seconds=3, mode="escrow"))
    settings = Settings(
        engine="memory://",
        resp_port=1,
        region="east",
        regions="west=headgate://127.0.0.1:1",
        rules=str(rules),
    )
    with pytest.raises(ConfigError, match="escrow takes counts in one store"):
        Node(settings)
