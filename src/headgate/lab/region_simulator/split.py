"""Regions that split a limit: each has its share, and a store that counts as the engines do and may come back empty.

They exchange nothing, so nothing between them can go wrong. What can: shares that do not add up, a region that admits
more than its share, or less although it has units left. Clocks of stores differ, and the algorithm is drawn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from ...algorithms import FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from ...regions.model import Regions
from ...regions.shares import share_of
from .escrow import CLOCK_OFF_US
from .result import RegionRun
from .sometimes import RegionSometimes
from .world import REGIONS, START_US, RegionWorld

if TYPE_CHECKING:
    from ...algorithms import Limit, State

WINDOW_US: Final = 4_000_000
ENDS_US: Final = START_US + 3 * WINDOW_US
FAULTS: Final = ("emptied",)


@dataclass(eq=False)
class SplitRegion:
    """A region: its share, and its store."""

    world: RegionWorld
    share: Limit
    off_us: int
    lives: int = 0
    state: State = None
    asked: Counter[int] = field(default_factory=Counter)
    """Units asked for, by the start of the window on the clock of the store."""
    admitted: Counter[int] = field(default_factory=Counter)
    taken_us: list[int] = field(default_factory=list)
    """When each unit was admitted, in true time."""

    @property
    def most(self) -> int:
        """What it may admit in one window, unless its store comes back empty."""
        return self.share.limit + getattr(self.share, "burst", 0)

    def hit(self) -> None:
        """Handle a client's hit."""
        now_us = self.world.now_us + self.off_us
        start_us = now_us - now_us % WINDOW_US
        self.state, (allowed, *_) = self.share.take(self.state, now_us, 1)
        self.asked[start_us] += 1
        if allowed:
            self.admitted[start_us] += 1
            self.taken_us.append(self.world.now_us)

    def restart_empty(self) -> None:
        """Restart the store without any data."""
        self.lives += 1
        self.state = None


class SplitPlay:
    """Three regions with traffic."""

    def __init__(self, world: RegionWorld, rng: Random) -> None:
        self.world, self.rng = world, rng
        units = rng.choice((1, 2, 5, 10, 31))
        bucket = TokenBucket(units, WINDOW_US, rng.choice((1, 3, units)))
        windows = [kind(units, WINDOW_US) for kind in (FixedWindow, SlidingWindow, SlidingLog)]
        self.limit: Limit = rng.choice((*windows, bucket))
        self.weights = {name: rng.choice((1, 1, 2, 5)) for name in REGIONS}
        self.regions = [
            SplitRegion(
                world,
                share_of(self.limit, Regions(name, self.weights)),
                rng.randint(-CLOCK_OFF_US, CLOCK_OFF_US),
            )
            for name in REGIONS
        ]
        self.hits = 0
        self.kinds = [kind for kind in FAULTS if rng.random() < 0.5]

    def run(self) -> None:
        """Let clients ask until the end."""
        pace_us = WINDOW_US // (2 * self.limit.limit)
        for region in self.regions:
            pace = self.rng.choice((pace_us, pace_us // 2, 5 * pace_us))
            self.world.later(0, pace_us, partial(self._client, region, pace))
        for kind in self.kinds:
            self.world.later(0, WINDOW_US, getattr(self, f"_{kind}"))
        self.world.run(ENDS_US)

    def judged(self) -> list[str]:
        """All broken promises."""
        whole = self.limit.limit + getattr(self.limit, "burst", 0)
        again = sum(one.lives * one.most for one in self.regions)
        findings = []
        if isinstance(self.limit, SlidingLog | TokenBucket):  # Any span of a window counts.
            taken = sorted(at_us for one in self.regions for at_us in one.taken_us)
            totals = [
                place + 1 - bisect_left(taken, at_us - WINDOW_US + 1)
                for place, at_us in enumerate(taken)
            ]
        else:
            totals = list(sum((one.admitted for one in self.regions), Counter[int]()).values())
        if max(totals, default=0) > whole + again:
            findings.append(f"{max(totals)} admitted, and the limit is {whole}")
        return findings + [words for one in self.regions for words in self._wrong_in(one)]

    def _wrong_in(self, region: SplitRegion) -> list[str]:
        """What a region of fixed windows has admitted beside its share, or not admitted."""
        if not region.share.limit:
            self.world.reached[RegionSometimes.NO_SHARE] += 1
        if not isinstance(self.limit, FixedWindow) or region.lives:
            return []
        share = region.share.limit
        if any(asked > share for asked in region.asked.values()):
            self.world.reached[RegionSometimes.SHARE_USED] += 1
        return [
            f"a share of {share}: {region.admitted[start_us]} of {asked} admitted"
            for start_us, asked in region.asked.items()
            if region.admitted[start_us] != min(asked, share)
        ]

    def _client(self, region: SplitRegion, pace_us: int) -> None:
        self.hits += 1
        region.hit()
        self.world.later(0, 2 * pace_us, partial(self._client, region, pace_us))

    def _emptied(self) -> None:
        self.world.faults.append("emptied")
        self.world.reached[RegionSometimes.EMPTIED] += 1
        self.rng.choice(self.regions).restart_empty()
        self.world.later(1_000_000, 8_000_000, self._emptied)


def simulate_split(seed: int) -> RegionRun:
    """Run one seed and judge its result."""
    rng = Random(seed)
    world = RegionWorld(rng, Counter())
    play = SplitPlay(world, rng)
    play.run()
    findings = play.judged()
    lasts_us = world.now_us - START_US
    return RegionRun(
        "split", seed, play.hits, lasts_us, world.reached, Counter(world.faults), findings
    )
