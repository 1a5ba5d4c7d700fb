"""Three regions, each with a real store and a node, and links that a test can slow down, cut and repeat."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import FixedWindow, Request
from headgate.regions.shares import shares
from headgate.service.security.tokens import new_token
from tests.faults.judged_regions import (
    NAMES,
    RULES,
    WITHIN_S,
    FleetNeeds,
    HistoryRun,
    JudgedRegions,
    Load,
    ask_until,
    counters_of,
)
from tests.faults.region_replay import RegionReplay
from tests.servers.etcd import etcd
from tests.servers.link import Link
from tests.servers.process import HOST, Server, free_ports, wait_until
from tests.servers.redis.server import standalone
from tests.servers.tls import make_certificates
from tests.service.resp_node import RespNode, resp_node
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from headgate.lab.recorder import HistoryRecorder
    from headgate.regions.exchange import RegionExchange

DELAY_S = {"east north": 0.04, "east west": 0.075, "north west": 0.075}
"""One way between two regions: round trips of 80 and 150 ms."""
WEIGHTS = {"east": 1, "north": 2, "west": 4}
"""Of regions that split a limit; others have equal shares."""
CLOCKS_S = {"east": 0.0, "north": 1.0, "west": -1.0}


@dataclass
class FaultRegion:
    """One region."""

    name: str
    store: Server
    node: RespNode
    ways: dict[str, Link]
    """From it to each of the others."""
    clock_s: float = 0.0
    """How far the clock of its store is ahead."""
    first_node: Service | None = None

    @property
    def exchange(self) -> RegionExchange:
        """What its node tells the others."""
        exchange = self.node.node.exchange
        assert exchange is not None
        return exchange


@dataclass
class RegionFleet(JudgedRegions):
    """Three regions with one limit, in this process."""

    regions: dict[str, FaultRegion] = field(default_factory=dict)
    replays: list[RegionReplay] = field(default_factory=list)
    """Of every link whose messages can be read."""

    def ways(self, region: str) -> list[Link]:
        """All links from and to a region."""
        there = list(self.regions[region].ways.values())
        return there + [one.ways[region] for one in self.regions.values() if one.name != region]

    def cut_off(self, region: str) -> None:
        for way in self.ways(region):
            way.blackhole()

    def mend(self) -> None:
        for one in self.regions.values():
            for name, way in one.ways.items():
                way.mend()
                way.delay_s = DELAY_S[" ".join(sorted((one.name, name)))]

    def charged(self) -> dict[tuple[str, str], int]:
        return {
            (here.name, there): here.exchange.charged_units[there]
            for here in self.regions.values()
            for there in here.ways
        }

    def known(self, key: str) -> list[Any]:
        return [one.node.wait(counters_of(one.exchange, key)) for one in self.regions.values()]

    def _ask(
        self, load: Load, paces_s: Mapping[str, float], recorder: HistoryRecorder, run: HistoryRun
    ) -> list[Future[Any]]:
        begun = []
        for one in self.regions.values():
            pace_s = paces_s.get(one.name, 0.0)
            if pace_s:
                limiter = one.node.node.limiter
                client = ask_until(
                    load, one.name, limiter, recorder, run, pace_s=pace_s, clock_s=one.clock_s
                )
                begun.append(one.node.begin(client))
        return begun


@contextlib.contextmanager
def region_fleet(
    folder: Path,
    needs: FleetNeeds | None = None,
    *,
    limit: int = 90,
    seconds: int = 3,
    deadline_s: float | None = None,
    **settings: Any,
) -> Iterator[RegionFleet]:
    """Three regions that have rights in the window that runs; `settings` are those of the stores.

    `deadline_s` is how long a node waits for its store, if not as long as usual.
    """
    needs = needs or FleetNeeds()
    rules = folder / f"rules-{needs.mode}.yaml"
    rules.write_text(RULES.format(limit=limit, seconds=seconds, mode=needs.mode))
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    with contextlib.ExitStack() as stack:
        door, secrets = _door(stack, needs)
        made = RegionFleet(needs, FixedWindow(limit, seconds * 1_000_000), folder)
        if needs.mode == "split":
            made.shares = shares(limit, WEIGHTS)
            secrets["region_weights"] = tuple(f"{name}={n}" for name, n in WEIGHTS.items())
        for name in NAMES:
            store, url = _store(stack, needs, name, settings)
            if deadline_s is not None:
                url += f"?deadline={deadline_s:g}"
            ways = {
                other: stack.enter_context(Link(ports[other])) for other in NAMES if other != name
            }
            others = " ".join(
                f"{other}={door.format(port=way.port)}" for other, way in ways.items()
            )
            first_node = None
            if needs.first_node and name == "east":
                first_node = stack.enter_context(first_node_of(url, others, rules))
            node = resp_node(
                url=url, resp_port=ports[name], region=name, regions=others, rules=str(rules),
                node_id=name, **secrets,
            )  # fmt: skip
            clock_s = CLOCKS_S[name] if needs.clocks_apart else 0.0
            region = FaultRegion(name, store, stack.enter_context(node), ways, clock_s, first_node)
            made.regions[name] = region
            made.replays += [] if needs.secure else map(RegionReplay, ways.values())
        made.mend()
        ready = has_rights if needs.mode == "escrow" else hears_others
        wait_until(
            lambda: all(map(ready, made.regions.values())), "all are ready", within_s=WITHIN_S
        )
        yield made


def _store(
    stack: contextlib.ExitStack, needs: FleetNeeds, region: str, settings: dict[str, Any]
) -> tuple[Server, str]:
    """The server of a region, and its URL."""
    if needs.on_etcd:
        servers = stack.enter_context(etcd(1))
        return servers.nodes[0], f"etcd://{servers.hosts}"
    store = stack.enter_context(
        standalone("redis-7.0", movable_clock=needs.clocks_apart, **settings)
    )
    if store.clock is not None:
        store.clock.offset_s = CLOCKS_S[region]
    return store, store.url


def _door(stack: contextlib.ExitStack, needs: FleetNeeds) -> tuple[str, dict[str, Any]]:
    """How nodes are reached, and their settings for that."""
    if not needs.secure:
        return f"headgate://{HOST}:{{port}}", {}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-regions-")))
    files = make_certificates(folder)
    shown, kept = new_token("regions", "operator", now=datetime.now(UTC))
    settings = {
        "tls_cert": str(files.server),
        "tls_key": str(files.server_key),
        "tokens": f"sha256:{kept.role}:{kept.name}:{kept.sha256}",
        "check_needs_token": True,
    }
    return f"headgates://:{shown}@{HOST}:{{port}}?ca_file={files.authority}", settings


def first_node_of(url: str, others: str, rules: Path) -> Any:
    """One more node of east, as an operator starts it."""
    (port,) = free_ports(1)
    options = ["--engine", url, "--resp-port", str(port), "--rules", str(rules)]
    said = ("region=east", f"regions={others}", "node_id=first")
    return service(*options, *(word for one in said for word in ("--set", one)))


def has_rights(region: FaultRegion) -> bool:
    """Whether a region admits anything."""
    request = Request(path="/", user_id=f"ready {time.monotonic_ns()}")
    decision = region.node.wait(region.node.node.limiter.decide_request(request))
    return bool(decision) and decision.source == "engine"


def hears_others(region: FaultRegion) -> bool:
    """Whether a region and all others have heard of each other; nothing is admitted for that."""
    return all(link.up for link in region.exchange.links())
