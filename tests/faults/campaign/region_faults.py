"""Faults between three regions that keep one limit together: what is broken, and one run of it from calm to verdict."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.faults.campaign.run import recovery_of
from tests.faults.campaign.terms import FaultFigures, FaultTerms
from tests.faults.judged_regions import NAMES, WITHIN_S, FleetNeeds, JudgedRegions
from tests.faults.namespace_fleet import namespace_fleet
from tests.faults.region_fleet import RegionFleet, region_fleet
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.faults.judged_regions import HistoryRun

EVEN = {"east": 0.03, "north": 0.03, "west": 0.03}
"""Seconds between two requests in each region."""
SKEWED = {"east": 0.01, "north": 0.1, "west": 0.5}
TERMS = FaultTerms(
    late_per_mille=None,
    why="callers are in the processes of the nodes, so nobody can measure how long a node takes",
)
WINDOWS = 3
"""One in which it happens, and those after it."""
ESCROW = FleetNeeds()
MERGE = FleetNeeds("merge")
SECURE = FleetNeeds(secure=True)
MERGE_SECURE = FleetNeeds("merge", secure=True)
CLOCKS = FleetNeeds(clocks_apart=True)
MERGE_CLOCKS = FleetNeeds("merge", clocks_apart=True)
SHIPPER = FleetNeeds("merge", first_node=True)
ON_ETCD = FleetNeeds(on_etcd=True)
MERGE_ON_ETCD = FleetNeeds("merge", on_etcd=True)
SPLIT = FleetNeeds("split")
SPLIT_ON_ETCD = FleetNeeds("split", on_etcd=True)
NAMESPACES = FleetNeeds("merge", namespaces=True)


@dataclass(frozen=True)
class RegionFault:
    """One fault between regions."""

    number: str
    words: str
    act: Callable[[Any, random.Random], None]
    kind: str | None = "other"
    needs: FleetNeeds = ESCROW


REGION_FAULTS: dict[str, RegionFault] = {}


def region_fault(
    number: str, words: str, kind: str | None = "other", needs: FleetNeeds = ESCROW
) -> Callable[[Any], Any]:
    """Put a fault into the catalogue."""

    def put(act: Any) -> Any:
        REGION_FAULTS[number] = RegionFault(number, words, act, kind, needs)
        return act

    return put


@region_fault(
    "F35f", "one region cut off by the kernel, in a network of its own", "partition", NAMESPACES
)
@region_fault(
    "F35d", "one region cut off from the others that merge, and healed", "partition", MERGE
)
@region_fault("F35c", "one region cut off, links over TLS with tokens", "partition", SECURE)
@region_fault("F35g", "one region cut off, rights and counts on etcd", "partition", ON_ETCD)
@region_fault(
    "F35h", "one region cut off from the others that merge, on etcd", "partition", MERGE_ON_ETCD
)
@region_fault("F35i", "one region cut off from the others that split", "partition", SPLIT)
@region_fault(
    "F35k", "one region cut off from the others that split, on etcd", "partition", SPLIT_ON_ETCD
)
@region_fault("F35", "one region cut off from the others, and healed", "partition")
def cut_off(fleet: JudgedRegions, rng: random.Random) -> None:
    time.sleep(
        rng.uniform(0.0, 0.3) * fleet.window_s
    )  # So that rights are on their way when it comes.
    fleet.cut_off(rng.choice(NAMES))
    time.sleep(rng.uniform(0.4, 1.2) * fleet.window_s)  # So long it lasts.
    fleet.mend()


@region_fault(
    "F35e", "links over TLS that come and go, of regions that merge", "partition", MERGE_SECURE
)
@region_fault("F35b", "links that come and go, every 300 ms", "partition")
def flapping(fleet: RegionFleet, rng: random.Random) -> None:
    for _ in range(4):
        for way in fleet.ways(rng.choice(NAMES)):
            way.reset()
        time.sleep(0.3)  # So that what comes after a reset is under way at the next.


@region_fault("F36", "answers between regions lost, so that asks are repeated")
def repeated(fleet: RegionFleet, rng: random.Random) -> None:
    for _ in range(6):
        for way in fleet.ways(rng.choice(NAMES)):
            way.lose_replies(1, of=b"HG.REGION")
        time.sleep(0.25)  # As above.


@region_fault("F36b", "the store of a region killed, back without its counts", "store_restart")
def emptied(fleet: RegionFleet, rng: random.Random) -> None:
    time.sleep(rng.uniform(0.2, 0.5) * fleet.window_s)  # So that it has admitted something.
    region = fleet.regions[rng.choice(NAMES)]
    region.store.kill()
    time.sleep(rng.uniform(0.0, 0.3))  # So long it is away.
    region.store.start()


@region_fault(
    "F36d", "totals of regions that merge doubled, late and out of order", "partition", MERGE
)
@region_fault("F36c", "asks for rights doubled, late and out of order", "partition")
def replayed(fleet: RegionFleet, rng: random.Random) -> None:
    """Some messages are taken off the line, and come after those that follow them; others come several times."""
    ends = time.monotonic() + 1.2 * fleet.window_s
    before = sum(one.repeated for one in fleet.replays)
    while time.monotonic() < ends:
        for way in fleet.ways(rng.choice(NAMES)):
            way.keep_requests(1, of=b"HG.REGION")
        time.sleep(rng.uniform(0.05, 0.2))  # So that others pass meanwhile.
        for replay in fleet.replays:
            replay.again(rng, 5)
    for replay in fleet.replays:
        replay.again(rng)
    assert sum(one.repeated for one in fleet.replays) > before, "nothing came twice"


@region_fault("F36e", "the shipper of a region that merges killed, and replaced", None, SHIPPER)
def shipper_killed(fleet: RegionFleet, rng: random.Random) -> None:
    east = fleet.regions["east"]
    assert east.first_node is not None
    assert {link.shipper for link in east.exchange.links()} == {"first"}
    time.sleep(rng.uniform(0.1, 0.5) * fleet.window_s)  # So that it has told something.
    units = rng.randint(1, 20)
    for _ in range(units):
        (_, _, answer) = east.first_node.ask("POST", "/decide", {"user_id": "of the first node"})
        assert answer["allowed"]
    fleet.elsewhere["east"] += units

    def in_store() -> bool:
        found = east.node.wait(east.exchange._store.counters_of("of the first node"))
        return sum(one.total for one in found) == units

    wait_until(in_store, "its region knows", within_s=WITHIN_S)
    east.first_node.kill()  # Whether it has told other regions is up to chance.
    wait_until(
        lambda: all(one.leads for one in east.exchange.shippers),
        "it is replaced",
        within_s=WITHIN_S,
    )


@region_fault(
    "F36k", "the etcd of a region that merges killed, and back", "store_restart", MERGE_ON_ETCD
)
@region_fault("F36j", "the etcd of a region killed, and back", "store_restart", ON_ETCD)
def etcd_killed(fleet: RegionFleet, rng: random.Random) -> None:
    """What it has confirmed is on its disk."""
    time.sleep(rng.uniform(0.2, 0.5) * fleet.window_s)  # So that it has admitted something.
    region = fleet.regions[rng.choice(NAMES)]
    region.store.kill()
    time.sleep(rng.uniform(0.0, 0.3))  # So long it is away.
    region.store.start()


@region_fault("F36g", "clocks of stores that merge a second ahead and behind", None, MERGE_CLOCKS)
@region_fault("F36f", "clocks of stores a second ahead and behind", None, CLOCKS)
def clocks_apart(_fleet: JudgedRegions, _rng: random.Random) -> None:
    """They are so from the start."""


@region_fault(
    "F36i",
    "clocks of stores that merge a second apart, one region cut off",
    "partition",
    MERGE_CLOCKS,
)
@region_fault("F36h", "clocks of stores a second apart, one region cut off", "partition", CLOCKS)
def clocks_apart_and_cut(fleet: JudgedRegions, rng: random.Random) -> None:
    cut_off(fleet, rng)


def regions_for(
    needs: FleetNeeds, folder: Path, **said: Any
) -> AbstractContextManager[JudgedRegions]:
    """Regions of the kind that a fault is about."""
    make = namespace_fleet if needs.namespaces else region_fleet
    return make(folder, needs, **said)


def run_region_fault(
    fault: RegionFault,
    fleet: JudgedRegions,
    seed: int,
    folder: Path,
    *,
    terms: FaultTerms = TERMS,
) -> FaultFigures:
    """Break something between regions once, while clients ask in all of them, and judge what they saw."""
    rng = random.Random(f"{fault.number} {seed}")
    fleet.folder = folder
    paces = rng.choice((EVEN, SKEWED))
    name = f"{fault.number}-{seed}"
    before = fleet.charged()
    verdict, run = fleet.run(
        name,
        lambda: fault.act(fleet, rng),
        paces_s=paces,
        windows=WINDOWS,
        kind=fault.kind,
        recovery_s=terms.recovery_s,
        settled_per_mille=terms.settled_per_mille,
    )
    findings = [f"{one.check}: {one.message}" for one in verdict.findings[:5]]
    if fleet.needs.mode == "merge":
        findings += not_met(fleet, before, run, f"{name} hot", rng)
    elif max(run.totals()) > fleet.limit.limit:
        findings.append(f"{max(run.totals())} admitted, of {fleet.limit.limit}")
    figures = verdict.figures
    return FaultFigures(
        fault.number, fault.words, seed, terms, verdict.holds and not findings, dict(verdict.counts), findings,
        figures["operations"], figures["sources"], figures["failed"], figures["unknown"], figures["strays"],
        figures["over_limit"], figures["bound"], figures["over_bound"], figures["operations"], 0,
        figures["slowest_us"] / 1000, **recovery_of(run.scene)._asdict(),
    )  # fmt: skip


def not_met(
    fleet: JudgedRegions,
    before: dict[tuple[str, str], int],
    run: HistoryRun,
    key: str,
    rng: random.Random,
) -> list[str]:
    """What regions that merge have not charged exactly once, or do not know of each other, when all is well again."""
    admitted = run.by_region() + fleet.elsewhere
    wanted = {pair: units + admitted[pair[1]] for pair, units in before.items()}

    def met() -> bool:
        first, *others = fleet.known(key)
        return fleet.charged() == wanted and all(one == first for one in others)

    try:
        wait_until(met, "counts meet", within_s=WITHIN_S)
    except TimeoutError:
        pass
    else:
        if isinstance(fleet, RegionFleet):  # Now that all is known, nothing may be charged again.
            for replay in fleet.replays:
                replay.again(rng)
    charged = fleet.charged()
    found = [
        f"{here} has charged {charged[here, there] - before[here, there]} for {admitted[there]} of {there}"
        for here, there in wanted
        if charged[here, there] != wanted[here, there]
    ]
    first, *others = fleet.known(key)
    return found if all(one == first for one in others) else [*found, "counters differ"]
