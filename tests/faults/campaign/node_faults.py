"""Faults of nodes, and of clocks: of the store's, and of nodes. Part of the catalogue in `faults.py`."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.campaign.client import LEASED_WINDOW_S
from tests.faults.campaign.faults import fault, hold
from tests.faults.campaign.terms import FaultTerms
from tests.servers.process import wait_until

if TYPE_CHECKING:
    import random

    from tests.faults.campaign.fleet import FaultNode, Fleet

FROZEN = FaultTerms(
    late_per_mille=None, why="the fault stops the caller itself, a node that should answer"
)
LEASED = (("leased", True),)
ROLLS = 3


@fault("F23", "a node killed, and started again", kind="node_kill", nodes=1)
def node_killed(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(fleet.nodes)
    node = chosen.running
    node.kill()
    hold(rng.uniform(0.2, 1.0))
    node.start()
    return {"node": chosen.name}


@fault("F24", "a node stopped for 1 to 3 s", kind="node_stop", nodes=1, terms=FROZEN)
def node_stopped(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(fleet.nodes)
    node = chosen.running
    node.stop()
    hold(rng.choice((1.0, 3.0)))
    node.resume()
    return {"node": chosen.name}


@fault(
    "F24b", "a node stopped while it holds units of leased limits, for longer than a lease, or than the window",
    kind="node_stop",
    nodes=1, terms=FROZEN, policy="closed", settings=LEASED,
)  # fmt: skip
def holder_stopped(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(fleet.nodes)
    wait_until(
        lambda: lease_figure(chosen, "lease_units") > 0, f"{chosen.name} holds units", within_s=20.0
    )
    chosen.running.stop()
    hold(rng.choice((1.0, LEASED_WINDOW_S + 0.2)))
    chosen.running.resume()
    return {"node": chosen.name}


def lease_figure(node: FaultNode, name: str) -> float:
    """What a node says about the units that it takes in chunks."""
    _, _, text = node.running.ask("GET", "/metrics")
    values = (
        line.split()[1] for line in str(text).splitlines() if line.startswith(f"headgate_{name} ")
    )
    return float(next(values, 0.0))


@fault(
    "F25",
    "a node's event loop blocked for half a second, three times",
    kind="node_stop",
    nodes=1,
    terms=FROZEN,
)
def stalled(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(fleet.nodes)
    node = chosen.running
    for _ in range(3):
        os.kill(node.pid, signal.SIGUSR1)
        hold(0.8)
    return {"node": chosen.name}


@fault(
    "F26",
    "rolling restarts, three in a row: every node ends on SIGTERM and starts again",
    kind="node_kill",
    terms=FaultTerms(all_answered=True, why="a restart that was asked for must not lose a request"),
)
def rolled(fleet: Fleet, rng: random.Random) -> None:
    for _ in range(ROLLS):
        for node in rng.sample(fleet.nodes, len(fleet.nodes)):
            end_politely(node)
            node.running.start()


def end_politely(node: FaultNode) -> None:
    """Tell a node to end, and wait until it has; nothing may go wrong with that."""
    node.running.interrupt()
    code = node.running.wait(30.0)
    if code:
        raise RuntimeError(f"{node.name} ended with {code}")


@fault("F27", "the store's clock set 1 s or 1 h forward, and back", kind="clock_step")
def clock_forward(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    assert fleet.store.clock is not None
    step_s = rng.choice((1.0, 3600.0))
    fleet.store.clock.step(step_s)
    hold(rng.uniform(0.5, 1.5))
    fleet.store.clock.step(-step_s)
    return {"step_us": round(step_s * 1e6)}


@fault("F27b", "the store's clock set 1 s or 1 h back, and forward again", kind="clock_step")
def clock_back(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    assert fleet.store.clock is not None
    step_s = rng.choice((1.0, 3600.0))
    fleet.store.clock.step(-step_s)
    hold(rng.uniform(0.5, 1.5))
    fleet.store.clock.step(step_s)
    return {"step_us": round(-step_s * 1e6)}


@fault(
    "F28", "the clock of a node that holds units of leased limits is too fast by a tenth", kind="other",
    policy="closed", settings=(*LEASED, ("drift_per_mille", 1_100)),
)  # fmt: skip
def fast_clock(fleet: Fleet, rng: random.Random) -> None:
    drift(fleet, rng)


@fault(
    "F28b", "the clock of a node that holds units of leased limits is too slow by a tenth", kind="other",
    policy="closed", settings=(*LEASED, ("drift_per_mille", 910)),
)  # fmt: skip
def slow_clock(fleet: Fleet, rng: random.Random) -> None:
    drift(fleet, rng)


def drift(fleet: Fleet, rng: random.Random) -> None:
    """It drifts all the time; what is waited for is that its node has taken units in chunks, and spent them."""
    holder = fleet.nodes[0]
    before = lease_figure(holder, "lease_units_taken_total")
    hold(rng.uniform(4.0, 6.0))
    if lease_figure(holder, "lease_units_taken_total") <= before:
        raise RuntimeError(f"{holder.name} has taken no units in chunks")


@fault("F40", "a node without file descriptors for new connections", kind="other", nodes=1)
def no_files(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(fleet.nodes)
    node = chosen.running
    soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    in_use = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (in_use, hard))
    try:
        hold(rng.uniform(1.0, 2.0))
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard))
    return {"node": chosen.name}
