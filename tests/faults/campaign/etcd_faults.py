"""Faults of nodes on etcd, and of etcd itself. Part of the catalogue in `faults.py`.

Where nodes deny what they cannot decide (`closed`), nothing at all may be over a limit, whatever is broken. Where etcd
is away for as long as it likes, nodes give their shares, as the service does by default.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.lab.recorder import monotonic_us
from tests.faults.campaign.etcd_fleet import TTL_S, wait_until_shared
from tests.faults.campaign.faults import fault, hold
from tests.faults.campaign.fleet import NODES
from tests.faults.campaign.node_faults import FROZEN, end_politely
from tests.faults.campaign.terms import FaultTerms

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.faults.campaign.fleet import FaultNode, Fleet
    from tests.servers.etcd import Etcd

QUOTA = 8 * 1024 * 1024
UNCONFIRMED = 20
CLOCK_S = 5.0
AWAY = FaultTerms(
    late_per_mille=5,
    why="callers that wait when etcd goes away all wait for 1 s, and are all answered in one moment, which takes "
    "longer than 5 ms; so few answers come while it is away that these are more than one in a thousand",
)
ELECTION = replace(
    AWAY,
    recovery_s=2.0,
    why=f"etcd first has to elect a leader, which takes up to a second; and {AWAY.why}",
)


def etcd_of(fleet: Fleet) -> Etcd:
    assert fleet.etcd is not None
    return fleet.etcd


def on_etcd(number: str, words: str, **more: Any) -> Callable[[Any], Any]:
    """Put a fault of a fleet on etcd into the catalogue."""
    return fault(number, words, **{"topology": "etcd", "policy": "closed", **more})


# Nodes, which own the keys.


def kill_owner(fleet: Fleet, rng: random.Random) -> None:
    """Kill a node, wait until the others have its shards, and start it again."""
    chosen = rng.choice(fleet.nodes)
    chosen.running.kill()
    wait_until_shared(fleet, NODES - 1, but=chosen)
    hold(rng.uniform(0.0, 1.0))
    chosen.running.start()


@on_etcd("E1", "an owner killed, and started again", kind="node_kill")
def owner_killed(fleet: Fleet, rng: random.Random) -> None:
    kill_owner(fleet, rng)


@on_etcd(
    "E1b", "an owner that answers before etcd has the commit is killed (leased, 20 unconfirmed)", kind="node_kill",
    settings=(("unconfirmed", UNCONFIRMED),),
)  # fmt: skip
def leased_owner_killed(fleet: Fleet, rng: random.Random) -> None:
    kill_owner(fleet, rng)


@on_etcd("E2", "an owner stopped past its lease, and woken", kind="node_stop", terms=FROZEN)
def owner_stopped(fleet: Fleet, rng: random.Random) -> None:
    chosen = rng.choice(fleet.nodes)
    chosen.running.stop()
    wait_until_shared(fleet, NODES - 1, but=chosen)
    hold(rng.uniform(0.0, 1.0))
    chosen.running.resume()


@on_etcd(
    "E3", "clocks of nodes 5 s ahead and behind, and stepping, while shards move", kind="other"
)
def clocks(fleet: Fleet, rng: random.Random) -> None:
    for node in fleet.nodes:
        _step(node, rng.choice((CLOCK_S, -CLOCK_S)))
    hold(rng.uniform(0.5, 1.0))
    assert fleet.spare is not None
    _step(fleet.spare, rng.choice((CLOCK_S, -CLOCK_S)))
    fleet.spare.running.start()  # Its clock is wrong from the beginning, and it takes shards.
    wait_until_shared(fleet, NODES + 1)
    for _ in range(6):
        _step(rng.choice(fleet.nodes), rng.choice((CLOCK_S, -CLOCK_S)))
        hold(0.2)
    end_politely(fleet.spare)
    for node in (*fleet.nodes, fleet.spare):
        _step(node, 0.0)


def _step(node: FaultNode, offset_s: float) -> None:
    assert node.clock is not None
    node.clock.offset_s = offset_s


@on_etcd("E4", "a node joins, and another one leaves and comes back", kind="other")
def joined_and_left(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.spare is not None
    fleet.spare.running.start()
    wait_until_shared(fleet, NODES + 1)
    leaving = rng.choice(fleet.nodes)
    end_politely(leaving)
    wait_until_shared(fleet, NODES, but=leaving)
    leaving.running.start()
    end_politely(fleet.spare)
    wait_until_shared(fleet, NODES)


# etcd.


@on_etcd("E5", "etcd's leader killed, and started again", kind="store_kept")
def leader_killed(fleet: Fleet, rng: random.Random) -> None:
    etcd = etcd_of(fleet)
    etcd.kill_leader()
    hold(rng.uniform(2.0, 4.0))
    etcd.heal()


@on_etcd("E6", "etcd's leader slow: it runs a fifth of the time", kind="store_slow")
def leader_slow(fleet: Fleet, rng: random.Random) -> None:
    """In turns shorter than an election takes."""
    leader = etcd_of(fleet).leader
    ends = time.monotonic() + rng.uniform(2.0, 4.0)
    while time.monotonic() < ends:
        leader.stop()
        hold(0.2)
        leader.resume()
        hold(0.05)


@on_etcd("E7", "etcd compacted, ten times a second, while a node joins", kind="other")
def compacted(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.spare is not None
    server = rng.choice(etcd_of(fleet).nodes)
    for turn in range(30):
        if turn == 10:
            fleet.spare.running.start()
        server.compact()
        hold(0.1)
    wait_until_shared(fleet, NODES + 1)
    server.compact()
    end_politely(fleet.spare)
    wait_until_shared(fleet, NODES)


@on_etcd(
    "E8",
    "etcd's servers killed and started again, one by one, and all at once",
    kind="store_kept",
    terms=AWAY,
)
def restarted(fleet: Fleet, rng: random.Random) -> None:
    etcd = etcd_of(fleet)
    for server in rng.sample(etcd.nodes, len(etcd.nodes)):
        server.kill()
        hold(rng.uniform(0.1, 0.5))
        server.start()
        etcd.wait_until_whole()
    for server in etcd.nodes:
        server.kill()
    hold(rng.uniform(0.1, 0.5))
    etcd.heal()


@on_etcd(
    "E9", "etcd out of space, and room made", kind="store_down", policy="fallback",
    settings=(("quota_bytes", QUOTA),), terms=AWAY,
)  # fmt: skip
def out_of_space(fleet: Fleet, rng: random.Random) -> None:
    etcd = etcd_of(fleet)
    etcd.fill()
    hold(rng.uniform(1.0, 3.0))
    etcd.make_room()


@on_etcd("E10", "etcd without a majority", kind="store_down", policy="fallback", terms=ELECTION)
def no_majority(fleet: Fleet, rng: random.Random) -> None:
    away = rng.sample(etcd_of(fleet).nodes, 2)
    for server in away:
        server.stop()
    hold(rng.uniform(1.0, 4.0))
    for server in away:
        server.resume()


@on_etcd(
    "E11", "one machine of three, with an etcd server and a node, cut off from the others", kind="partition",
    topology="machines", policy="fallback", terms=ELECTION,
)  # fmt: skip
def machine_cut_off(fleet: Fleet, rng: random.Random) -> list[dict[str, Any]]:
    """Until its lease has ended, its keys are answered by the shares of all; then by its own alone, and only there."""
    assert fleet.machines is not None
    chosen = rng.choice(fleet.nodes)
    assert chosen.machine is not None
    fleet.machines.cut_off(chosen.machine)
    wait_until_shared(fleet, NODES - 1, but=chosen)
    taken_over = monotonic_us()
    hold(rng.uniform(1.0, TTL_S))
    fleet.machines.mend()
    return [
        {"t1": taken_over, "heal": taken_over},
        {"t0": taken_over, "node": chosen.name, "nodes": 1},
    ]
