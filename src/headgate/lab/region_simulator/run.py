"""One seed of regions, from start to verdict.

The seed draws the limit, the clocks, how uneven the traffic is, and the faults. First there is chaos, then everything
is healed. In the end no window of a key may have had more than its limit in all regions together, and after the chaos
hardly any requested unit may be left unused.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from ...regions.shares import shares
from .escrow import CLOCK_OFF_US, EscrowNode, EscrowStore
from .merge import simulate_merge
from .result import RegionRun
from .sometimes import RegionSometimes
from .split import simulate_split
from .world import REGIONS, START_US, RegionWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...regions.escrow import KeyWindow

CHAOS_US: Final = 5_000_000
FAULTS: Final = ("lossy", "doubling", "cut", "emptied", "kept", "died")
USED_PER_CENT: Final = 90
"""How much of a window of 4 s must be used without faults, with clocks 1 s apart, under more than enough demand."""
KEY: Final = "hot"


def simulate_escrow(seed: int, kinds: Sequence[str] = FAULTS) -> RegionRun:
    """Run one seed with those kinds of faults, or some of them, and judge its result."""
    rng = Random(seed)
    world = RegionWorld(rng, Counter())
    play = EscrowPlay(world, rng, kinds)
    play.run()
    findings = play.judged()
    return RegionRun(
        "escrow",
        seed,
        play.hits,
        world.now_us - START_US,
        world.reached,
        Counter(world.faults),
        findings,
    )


class EscrowPlay:
    """Three regions with traffic and faults."""

    def __init__(self, world: RegionWorld, rng: Random, kinds: Sequence[str]) -> None:
        self.world, self.rng = world, rng
        self.window_us = rng.choice((1_500_000, 4_000_000))
        self.limit = rng.choice((1, 2, 5, 12, 30))
        self.weights = {name: rng.choice((1, 1, 2, 5)) for name in REGIONS}
        self.demand = {name: rng.choice((0.0, 0.2, 1.0)) for name in REGIONS}
        if not any(self.demand.values()):
            self.demand[rng.choice(REGIONS)] = 1.0
        self.costs = rng.choice(((1,), (1,), (1, 1, 3)))
        self.heals_us = START_US + CHAOS_US
        self.ends_us = self.heals_us + 3 * self.window_us
        self.hits = 0
        self.admitted: Counter[tuple[str, int]] = Counter()
        nodes: dict[str, list[EscrowNode]] = {name: [] for name in REGIONS}
        self.stores = {
            name: EscrowStore(world, name, self.window_us, self._off_us()) for name in REGIONS
        }
        for name, store in self.stores.items():
            for number in range(2):
                nodes[name].append(
                    EscrowNode(
                        world, store, nodes, self._shares_of, self.admitted, f"{name} {number}"
                    )
                )
        self.nodes = nodes
        self.kinds = [kind for kind in kinds if rng.random() < 0.5]

    def run(self) -> None:
        """Chaos, then calm."""
        pace_us = self.window_us // (2 * max(self.limit, 4))
        for name, demand in self.demand.items():
            if demand:
                client = partial(self._client, name, round(pace_us / demand))
                self.world.later(0, pace_us, client)
        for kind in self.kinds:
            self.world.later(0, 1_000_000, getattr(self, f"_{kind}"))
        self.world.at(self.heals_us, self.world.heal)
        self.world.run(self.ends_us)

    def judged(self) -> list[str]:
        """All broken promises."""
        findings = []
        for (key, start_us), units in sorted(self.admitted.items()):
            window = (start_us - START_US) // self.window_us
            if units > self.limit:
                findings.append(
                    f"{key}, window {window}: {units} admitted, and the limit is {self.limit}"
                )
            if units == self.limit and sum(self.demand.values()) > 1:
                self.world.reached[RegionSometimes.AT_LIMIT] += 1
        return findings + self._unused()

    def _unused(self) -> list[str]:
        """Windows after the chaos in which units were left, despite constant demand."""
        if min(self.window_us, self.limit * 400_000) < 4_000_000 or self.costs != (1,):
            return []
        if max(self.demand.values()) < 1.0 or not self._is_trusted():
            return []
        first_us = self.heals_us + 1_000_000
        whole = [
            start_us
            for start_us in range(
                first_us - first_us % self.window_us, self.ends_us, self.window_us
            )
            if first_us <= start_us and start_us + self.window_us + 1_000_000 < self.ends_us
        ]
        return [
            f"window from {start_us - START_US}: only {self.admitted[KEY, start_us]} of {self.limit} were used"
            for start_us in whole
            if self.admitted[KEY, start_us] * 100 < self.limit * USED_PER_CENT - 100
        ]

    def _is_trusted(self) -> bool:
        """Whether all stores have had their share since before the calm."""
        return all(store.lives == 0 for store in self.stores.values())

    def _shares_of(self, window: KeyWindow) -> dict[str, int]:
        return shares(window.limit, self.weights)

    def _off_us(self) -> int:
        return self.rng.randint(-CLOCK_OFF_US, CLOCK_OFF_US)

    def _client(self, region: str, pace_us: int) -> None:
        if self.world.now_us >= self.ends_us:
            return
        node = self.rng.choice(self.nodes[region])
        self.hits += 1
        node.read_records(KEY, self.limit)
        node.hit(KEY, self.limit, self.rng.choice(self.costs))
        self.world.later(0, 2 * pace_us, lambda: self._client(region, pace_us))

    # Faults.

    def _is_over(self) -> bool:
        return self.world.now_us >= self.heals_us

    def _lossy(self) -> None:
        self.world.faults.append("lossy")
        self.world.lost = self.rng.choice((0.1, 0.5))

    def _doubling(self) -> None:
        self.world.faults.append("doubling")
        self.world.doubled = self.rng.choice((0.2, 0.8))

    def _cut(self) -> None:
        if self._is_over():
            return
        pair = frozenset(self.rng.sample(REGIONS, 2))
        self.world.faults.append("cut")
        self.world.reached[RegionSometimes.CUT] += 1
        self.world.cut.add(pair)
        self.world.later(200_000, 2_500_000, lambda: self.world.cut.discard(pair))
        self.world.later(500_000, 2_000_000, self._cut)

    def _emptied(self) -> None:
        if self._is_over():
            return
        self.world.faults.append("emptied")
        self.world.reached[RegionSometimes.EMPTIED] += 1
        self.rng.choice(list(self.stores.values())).restart_empty(self._off_us())
        self.world.later(300_000, 4_000_000, self._emptied)

    def _kept(self) -> None:
        """A store restarts with all of its data: only the connections to it are new."""
        if self._is_over():
            return
        self.world.faults.append("kept")
        self.world.reached[RegionSometimes.KEPT] += 1
        region = self.rng.choice(REGIONS)
        for node in self.nodes[region]:
            node.start()
        self.world.later(500_000, 2_000_000, self._kept)

    def _died(self) -> None:
        if self._is_over():
            return
        self.world.faults.append("died")
        self.world.deadly = 0.1
        self.rng.choice([node for nodes in self.nodes.values() for node in nodes]).start()
        self.world.later(20_000, 300_000, self._died)


MODES: Final[dict[str, Callable[[int], RegionRun]]] = {
    "escrow": simulate_escrow,
    "merge": simulate_merge,
    "split": simulate_split,
}
