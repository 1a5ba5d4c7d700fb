"""Faults that come together. Part of the catalogue in `faults.py`."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from headgate.lab.recorder import monotonic_us
from tests.faults.campaign.faults import FAULTS, fault, hold, killed_empty

if TYPE_CHECKING:
    from tests.faults.campaign.fleet import Fleet

HANDS = ThreadPoolExecutor(2)
"""They stay: a server ends with the thread that has started it."""
OF_THE_STORE = ("F1", "F3", "F6", "F7", "F8", "F27")
OF_NODES = ("F21", "F22", "F23", "F26")
"""Nodes, and their ways to the store: none of them says anything to the store, so each can come with any above."""


@fault(
    "F44", "two at once: one node cut off, and Redis killed without its state", kind="store_restart"
)
def two_at_once(fleet: Fleet, rng: random.Random) -> None:
    link = rng.choice(fleet.links)
    link.blackhole()
    hold(rng.uniform(0.2, 0.6))
    killed_empty(fleet, rng)
    hold(rng.uniform(0.0, 0.3))
    link.mend()


@fault(
    "F44b", "two at once, which the seed chooses: one of the store, one of nodes or of their ways to it", kind="other",
)  # fmt: skip
def two_of_them(fleet: Fleet, rng: random.Random) -> list[dict[str, Any]]:
    chosen = rng.choice(OF_THE_STORE), rng.choice(OF_NODES)
    begun = [
        HANDS.submit(_begin, number, fleet, rng.randrange(2**32), rng.uniform(0.0, 0.5))
        for number in chosen
    ]
    return [one.result() for one in begun]


def _begin(number: str, fleet: Fleet, seed: int, after_s: float) -> dict[str, Any]:
    """One of two faults; what a history says of it."""
    part = FAULTS[number]
    hold(after_s)
    t0 = monotonic_us()
    told = part.act(fleet, random.Random(seed)) or {}
    assert isinstance(told, dict)
    t1 = monotonic_us()
    return {
        "kind": part.kind,
        "name": number,
        "t0": t0,
        "t1": t1,
        "heal": t1,
        "nodes": part.nodes,
        **told,
    }
