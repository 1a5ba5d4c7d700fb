"""Regions that merge: real counters and replicas, between stores that count as the engines do and may come back empty.

Every region admits by its own count, and repeatedly sends the others its totals. In the end, without traffic, each
store must have counted exactly what all regions have admitted in the current window. A log must have counted what is in
its window by then, and nothing that left it more than a slice ago. A sliding window must have counted the current
window, and may count some of what came before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from ...algorithms import FixedWindow, SlidingLog, SlidingWindow
from ...regions.counters import (
    Actor,
    CounterName,
    OwnCounts,
    Replica,
    charges,
    foreign,
    is_early,
    slice_length_us,
    slice_of,
)
from .escrow import CLOCK_OFF_US
from .result import RegionRun
from .sometimes import RegionSometimes
from .world import REGIONS, START_US, RegionWorld

if TYPE_CHECKING:
    from ...algorithms import State
    from ...regions.counters import CounterTotal

WINDOW_US: Final = 6_000_000
INTERVAL_US: Final = 400_000
FAULTS: Final = ("lossy", "doubling", "cut", "emptied")
HEALS_US: Final = START_US + WINDOW_US - START_US % WINDOW_US + WINDOW_US
"""The beginning of the last window, which has no faults."""
QUIET_US: Final = HEALS_US + 2_000_000
ENDS_US: Final = QUIET_US + 2_700_000
"""Clocks are up to two seconds apart: all have begun every slice that was sent, and none another window."""


MergedLimit: TypeAlias = FixedWindow | SlidingWindow | SlidingLog


@dataclass(eq=False)
class MergeRegion:
    """A region: its store, and one node."""

    world: RegionWorld
    name: str
    limit: MergedLimit
    off_us: int
    lives: int = 0
    state: State = None
    replica: Replica = field(default_factory=Replica)
    own: OwnCounts = field(default_factory=OwnCounts)
    known_epoch: str = ""
    """The epoch that the node knows."""
    others: list[MergeRegion] = field(default_factory=list)
    admitted: Counter[int] = field(default_factory=Counter)
    """Units admitted, by the start of the window."""
    taken_us: list[int] = field(default_factory=list)
    """When each unit was admitted, in true time."""
    twice: Counter[int] = field(default_factory=Counter)
    """Units admitted by a new store before the node knew: they are reported under the old epoch, and charged."""

    def __post_init__(self) -> None:
        self.known_epoch = self.epoch()

    def now_us(self) -> int:
        """The clock of the store."""
        return self.world.now_us + self.off_us

    def epoch(self) -> str:
        """The epoch of the store."""
        return f"{self.name} {self.lives}"

    def hit(self) -> None:
        """Handle a client's hit."""
        now_us = self.now_us()
        self.state, (allowed, *_) = self.limit.take(self.state, now_us, 1)
        if allowed:
            start_us = now_us - now_us % WINDOW_US
            self.admitted[start_us] += 1
            self.taken_us.append(self.world.now_us)
            self.twice[start_us] += self.known_epoch != self.epoch()
            self.own.add([(self._name(now_us), 1)])

    def restart_empty(self) -> None:
        """Restart the store without any data."""
        self.lives += 1
        self.state = None
        self.replica = Replica()

    def publish(self) -> None:
        """Store what was admitted, and send everything the store knows to the other regions."""
        if self.known_epoch != self.epoch():
            # Under the old name the store does not know these admissions, so they are sent to it and charged.
            self._merge(self.own.retire(self._actor()))
            self.known_epoch = self.epoch()
        self._merge(self.own.entries(self.own.names(), self._actor()))
        entries = list(self.replica.entries())
        for other in self.others:
            self.world.send(self.name, other.name, partial(other.receive, entries))

    def receive(self, entries: list[CounterTotal]) -> None:
        """Receive another region's counters."""
        now_us = self.now_us()
        due = [one for one in entries if not is_early(one.name, now_us)]
        if len(due) < len(entries):
            self.world.reached[RegionSometimes.EARLY] += 1
        self._merge(due)

    def used(self) -> int:
        """What the store has counted in the current window."""
        return self.limit.used(self.state, self.now_us())

    def _merge(self, entries: list[CounterTotal]) -> None:
        now_us = self.now_us()
        grown = foreign(self.replica.merge(entries, now_us), self.name, self.epoch())
        for charged, units in charges(grown, now_us).items():
            if charged.came_us and isinstance(self.limit, SlidingLog):
                took = self.limit.force_past(self.state, now_us, units, charged.came_us)
            else:
                took = self.limit.force(self.state, now_us, units)
            self.state = took[0]
        if any(one.actor.region == self.name for one in grown):
            self.world.reached[RegionSometimes.OWN_BACK] += 1

    def _name(self, now_us: int) -> CounterName:
        return CounterName("api", "hot", self.limit, slice_of(self.limit, now_us))

    def _actor(self) -> Actor:
        return Actor(self.name, self.known_epoch, "node")


class MergePlay:
    """Three regions with traffic and faults."""

    def __init__(self, world: RegionWorld, rng: Random) -> None:
        self.world, self.rng = world, rng
        units = rng.choice((3, 10, 30))
        limit = rng.choice((FixedWindow, SlidingWindow, SlidingLog))(units, WINDOW_US)
        self.regions = [
            MergeRegion(world, name, limit, rng.randint(-CLOCK_OFF_US, CLOCK_OFF_US))
            for name in REGIONS
        ]
        for region in self.regions:
            region.others = [one for one in self.regions if one is not region]
        self.limit = limit
        self.hits = 0
        self.kinds = [kind for kind in FAULTS if rng.random() < 0.5]

    def run(self) -> None:
        """Chaos, then calm, then silence."""
        pace_us = WINDOW_US // (3 * self.limit.limit)
        for region in self.regions:
            if self.rng.random() < 0.8:
                pace = self.rng.choice((pace_us, 4 * pace_us))
                self.world.later(0, pace_us, partial(self._client, region, pace))
            self.world.later(0, INTERVAL_US, partial(self._publish, region))
        for kind in self.kinds:
            self.world.later(0, 2_000_000, getattr(self, f"_{kind}"))
        self.world.at(HEALS_US - 1_000_000, self.world.heal)
        self.world.run(ENDS_US)

    def judged(self) -> list[str]:
        """All broken promises."""
        whole, many = self.limit.limit, len(self.regions)
        admitted = sum((region.admitted for region in self.regions), Counter[int]())
        lives = sum(region.lives for region in self.regions)
        findings = [
            f"{units} admitted, and {many} regions have a limit of {whole}"
            for units in admitted.values()
            if units > (many + lives) * whole
        ]
        if isinstance(self.limit, SlidingLog):
            return findings + [one for region in self.regions for one in self._log_of(region)]
        last, before = admitted[HEALS_US], 0
        if isinstance(self.limit, SlidingWindow):  # It counts some of what came before.
            twice = sum(region.twice.total() for region in self.regions)
            before = admitted.total() - last + twice
        return findings + [
            f"{region.name} has counted {region.used()} of the last window, and {last} were admitted"
            for region in self.regions
            if not last <= region.used() <= last + region.twice[HEALS_US] + before
        ]

    def _log_of(self, here: MergeRegion) -> list[str]:
        """What a region's log has counted wrongly in the end, allowing for differences between clocks."""
        least = most = 0
        for there in self.regions:
            ahead_us = there.off_us - here.off_us
            began_us = self.world.now_us - WINDOW_US
            least += sum(at_us > began_us + max(0, -ahead_us) for at_us in there.taken_us)
            began_us -= slice_length_us(self.limit) + max(0, ahead_us)
            most += sum(at_us > began_us for at_us in there.taken_us)
        most += here.twice.total()
        if least <= here.used() <= most:
            return []
        return [f"{here.name} has {here.used()} in its log, and {least} to {most} were admitted"]

    def _client(self, region: MergeRegion, pace_us: int) -> None:
        if self.world.now_us >= QUIET_US:
            return
        self.hits += 1
        region.hit()
        self.world.later(0, 2 * pace_us, partial(self._client, region, pace_us))

    def _publish(self, region: MergeRegion) -> None:
        region.publish()
        self.world.later(INTERVAL_US, INTERVAL_US, partial(self._publish, region))

    # Faults. All but the emptied store have ended when the last window begins.

    def _lossy(self) -> None:
        self.world.faults.append("lossy")
        self.world.lost = self.rng.choice((0.2, 0.7))

    def _doubling(self) -> None:
        self.world.faults.append("doubling")
        self.world.doubled = self.rng.choice((0.2, 0.8))

    def _cut(self) -> None:
        if self.world.now_us >= HEALS_US - 1_000_000:
            return
        pair = frozenset(self.rng.sample(REGIONS, 2))
        self.world.faults.append("cut")
        self.world.reached[RegionSometimes.CUT] += 1
        self.world.cut.add(pair)
        self.world.later(500_000, 4_000_000, lambda: self.world.cut.discard(pair))
        self.world.later(1_000_000, 3_000_000, self._cut)

    def _emptied(self) -> None:
        if self.world.now_us >= QUIET_US - 500_000:
            return
        self.world.faults.append("emptied")
        self.world.reached[RegionSometimes.EMPTIED] += 1
        self.rng.choice(self.regions).restart_empty()
        self.world.later(1_000_000, 4_000_000, self._emptied)


def simulate_merge(seed: int) -> RegionRun:
    """Run one seed and judge its result."""
    rng = Random(seed)
    world = RegionWorld(rng, Counter())
    play = MergePlay(world, rng)
    play.run()
    lasts_us = world.now_us - START_US
    faults = Counter(world.faults)
    return RegionRun("merge", seed, play.hits, lasts_us, world.reached, faults, play.judged())
