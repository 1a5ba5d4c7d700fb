"""A store, three nodes that share it, and a link between each node and the store where there is one server."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.engines.redis.sync import RedisEngine
from headgate.engines.remote.engine import RemoteEngine
from tests.faults.campaign.client import LEASED_LIMITS, LEASED_WINDOW_S, LIMITS, rules_of
from tests.faults.campaign.node import (
    LATE_MS,
    NAME,
    NAME_SERVER,
    ON_TIME_MS,
    PATIENT_ON_TIME_MS,
    NodeFigures,
    new_figures,
    read_figures,
    reset_worst,
)
from tests.servers.clock import MovableClock
from tests.servers.link import Link
from tests.servers.network import OTHER_SIDE, Network, own_network
from tests.servers.process import HOST, free_ports, wait_until
from tests.servers.redis.cluster import Cluster, cluster
from tests.servers.redis.sentinel import SentinelGroup, sentinel
from tests.servers.redis.server import RedisServer, standalone
from tests.service.running import Service, _answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headgate import Limit
    from tests.servers.etcd import Etcd
    from tests.servers.machines import Machine, Machines

NODES = 3
ROOT = Path(__file__).parents[3]


@dataclass
class FaultNode:
    """One `headgate serve`, and what it has measured."""

    name: str
    running: Service
    figures: Path
    link: Link | None = None
    clock: MovableClock | None = None
    machine: Machine | None = None
    resp_port: int = 0
    drifts: bool = False
    """Whether it measures time by a clock that is too fast or too slow."""

    def read(self) -> NodeFigures:
        return read_figures(self.figures)

    def mend(self) -> None:
        """Let it run, with the right time and a way to the store."""
        if self.clock is not None:
            self.clock.offset_s = 0.0
        self.running.resume()
        if not self.running.running:
            self.running.start()
        if self.link is not None:
            self.link.mend()


@dataclass(frozen=True)
class FleetTerms:
    """How histories of a fleet are judged."""

    engine: str = "redis"
    mode: str = "exact"
    limits: Mapping[str, Limit] = field(default_factory=lambda: LIMITS)
    epsilon_us: int = 5_000
    """Clients, nodes and the store read one clock, at different moments."""
    drain_us: int = 2_000_000
    unconfirmed: int = 0
    lease_us: int = 0


@dataclass
class Fleet:
    """Everything that can be broken."""

    nodes: list[FaultNode]
    server: RedisServer | None = None
    sentinels: SentinelGroup | None = None
    cluster: Cluster | None = None
    etcd: Etcd | None = None
    machines: Machines | None = None
    spare: FaultNode | None = None
    """A node more, which does not run."""
    wait_until_even: Callable[[], None] = lambda: None
    """Waits until each node has its part of the work, where they divide it."""
    token: str = ""
    """What may ask nodes everything, where they want to see a token."""
    terms: FleetTerms = field(default_factory=FleetTerms)
    network: Network | None = None
    """What they are connected by, where that can be cut."""
    policy: str = "fallback"
    engine: str = ""
    """Options in the URL of the store."""
    name_server: Path = Path("/dev/null")
    """What is wrong with looking up `NAME`: nothing, `fails` or `silent`; see `node.py`."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def ports(self) -> list[int]:
        return [node.running.port for node in self.nodes]

    @property
    def addresses(self) -> list[str]:
        """Where clients ask."""
        return [f"{node.running.host}:{node.running.port}" for node in self.nodes]

    @property
    def links(self) -> list[Link]:
        return [node.link for node in self.nodes if node.link is not None]

    @property
    def store(self) -> RedisServer:
        """The one server there is, or the master."""
        if self.server is not None:
            return self.server
        assert self.sentinels is not None
        return self.sentinels.master

    def open_store(self) -> RedisEngine:
        """An engine that tells what the store has counted."""
        if self.etcd is not None:
            addresses = [f"{one.running.host}:{one.resp_port}" for one in self.nodes]
            credentials = f":{self.token}@" if self.token else ""
            return RemoteEngine(f"headgate://{credentials}{','.join(addresses)}?deadline=5")
        group = self.server or self.sentinels or self.cluster
        assert group is not None
        return RedisEngine(group.url)

    def mend(self) -> None:
        """Put everything back as it was."""
        if self.machines is not None:
            self.machines.mend()
        if self.network is not None:
            self.network.mend()
        for group in (self.server, self.sentinels, self.cluster, self.etcd):
            if group is not None:
                group.heal()
        if self.name_server.name == "trouble":
            self.name_server.write_text("")
        if self.spare is not None:
            self.spare.running.terminate(within_s=20.0)
        for node in self.nodes:
            node.mend()

    def wait_until_decided_by_store(self, within_s: float = 30.0) -> None:
        """Wait until every node asks the store again."""
        self.wait_until_even()
        for number, node in enumerate(self.nodes):
            wait_until(
                lambda node=node, number=number: _source(node.running, number) == "engine",  # type: ignore[misc]
                f"{node.name} asks the store",
                within_s=within_s,
            )

    def before(self) -> list[NodeFigures]:
        """What the nodes have measured so far; from here on it is a new run."""
        for node in self.nodes:
            reset_worst(node.figures)
        return [node.read() for node in self.nodes]


def _source(node: Service, number: int) -> str:
    with contextlib.suppress(OSError, AssertionError, ValueError):
        return str(node.check(f"ready {number} {time.monotonic_ns()}", limit=5, window=1)["source"])
    return "nobody"


@contextlib.contextmanager
def fleet(
    topology: str,
    policy: str = "fallback",
    engine: str = "",
    *,
    by_name: bool = False,
    leased: bool = False,
    drift_per_mille: int = 0,
    **settings: Any,
) -> Iterator[Fleet]:
    """A store of this topology with three nodes; `settings` are those of the store.

    With `leased`, nodes take units in chunks. The clock of the first node can count so many milliseconds in a second.
    """
    with contextlib.ExitStack() as stack:
        made = Fleet([], policy=policy, engine=engine)
        if leased:
            made.terms = FleetTerms(
                mode="leased", limits=LEASED_LIMITS, lease_us=LEASED_WINDOW_S * 1_000_000 // 20
            )
        if by_name:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-faults-"))
            made.name_server = Path(folder) / "trouble"
            made.name_server.write_text("")
        if topology == "standalone":
            made.server = stack.enter_context(
                standalone(
                    "redis-7.0", movable_clock=True, enable_debug_command="local", **settings
                )
            )
        elif topology == "split sentinel":
            made.network = stack.enter_context(own_network())
            made.sentinels = stack.enter_context(
                sentinel("redis-7.0", source=OTHER_SIDE, **settings)
            )
        elif topology == "sentinel":
            made.sentinels = stack.enter_context(sentinel("redis-7.0", **settings))
        else:
            made.cluster = stack.enter_context(cluster("redis-7.0", **settings))
        for number in range(NODES):
            drifts = drift_per_mille if number == 0 else 0
            made.nodes.append(_node(stack, made, number, drifts))
        made.wait_until_decided_by_store()
        yield made


def _node(stack: contextlib.ExitStack, made: Fleet, number: int, drift_per_mille: int) -> FaultNode:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-faults-")))
    link = None
    if made.server is not None:
        link = stack.enter_context(Link(made.server.port))
        by_name = made.name_server.name == "trouble"
        url = link.url.replace(HOST, NAME) if by_name else link.url
    else:
        group = made.sentinels or made.cluster
        assert group is not None
        url = group.url
    url += f"?{made.engine}" if made.engine else ""
    (port,) = free_ports(1)
    figures = folder / "figures"
    new_figures(figures)
    rules = folder / "rules.json"
    rules.write_text(json.dumps(rules_of(made.terms.limits)))
    command = [
        sys.executable, "-m", "tests.faults.campaign.node", str(figures), "serve", "--port", str(port),
        "--engine", url, "--rules", str(rules), "--set", f"nodes={NODES}", "--set", f"on_error={made.policy}",
    ]  # fmt: skip
    environment = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HEADGATE_STATE_DIR": str(folder), "HOME": str(folder),
        "PATH": os.environ.get("PATH", ""), NAME_SERVER: str(made.name_server),
        LATE_MS: str(ON_TIME_MS if made.policy == "fallback" else PATIENT_ON_TIME_MS),
    }  # fmt: skip
    if drift_per_mille:
        environment |= MovableClock(folder).drifting(drift_per_mille)
    running = Service(
        command, folder=folder, ready=lambda: _answers(port, tls=False), environment=environment,
        start_within_s=60.0,
    )  # fmt: skip
    running.port = port
    stack.enter_context(running)
    return FaultNode(f"node {number}", running, figures, link, drifts=bool(drift_per_mille))
