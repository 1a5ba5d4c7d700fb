"""How soon counts meet: three regions that merge, one of them cut off and healed, again and again.

During each cut all regions admit units of a key that nobody has used before, so that their counts differ. From the
moment the links work again, the time is taken until all of them have counted every unit, and know the same counters.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from headgate import Request
from headgate.lab.svg import FAINT, FONT, GRID, INK, text
from tests.faults.campaign.terms import FaultFigures, FaultTerms
from tests.faults.judged_regions import NAMES, FleetNeeds
from tests.faults.region_fleet import DELAY_S, region_fleet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.faults.region_fleet import FaultRegion, RegionFleet

NUMBER = "F35j"
CUTS = 100
WORDS = "cuts between regions that merge, one after the other: when counts meet"
INTERVAL_S = 0.2
"""Between two messages to another region: the setting's own default."""
BOUND_S = 2 * INTERVAL_S + 2 * max(DELAY_S.values())
"""Two intervals and the longest round trip."""
LIMIT = 100_000
DAY_S = 86_400
"""No window ends meanwhile."""
DEADLINE_S = 1.0
"""A node that answers in the store's place would count what the store may have counted, too."""
MEETS_WITHIN_S = 20.0
POLL_S = 0.005
TERMS = FaultTerms(
    recovery_s=MEETS_WITHIN_S,
    why="an answer is a cut, and late if counts met after more than two intervals and a round trip",
)
LONG = 10
"""One cut in so many is long enough to be noticed (4 s); the others are short."""


@dataclass(frozen=True)
class RegionHeal:
    """One cut, from when it was healed."""

    region: str
    cut_s: float
    admitted: int
    """In all regions, during the cut."""
    apart: int
    """The largest difference between the counts of two regions, just before it was healed."""
    met_after_s: float | None
    """When all had counted the same; none if that did not happen in time."""
    difference: int
    """Between what was admitted and what a region has counted after all cuts: the largest of all regions."""

    @property
    def met(self) -> bool:
        """Whether nothing was left between them."""
        return self.met_after_s is not None and self.difference == 0


def heal_regions(folder: Path, cuts: int, seed: int = 1, *, long: int = LONG) -> list[RegionHeal]:
    """Start three regions, and cut one of them off so many times."""
    rng = random.Random(f"heals {seed}")
    needs = FleetNeeds("merge")
    with region_fleet(folder, needs, limit=LIMIT, seconds=DAY_S, deadline_s=DEADLINE_S) as fleet:
        heals = []
        for number in range(cuts):
            is_long = long and number % long == long - 1
            cut_s = rng.uniform(4.2, 5.0) if is_long else rng.uniform(0.3, 0.8)
            heals.append(heal_once(fleet, _key(number), rng, cut_s))
        time.sleep(2 * BOUND_S)  # Whatever is still on its way must not be charged a second time.
        return [
            replace(one, difference=difference(fleet, _key(number), one.admitted))
            for number, one in enumerate(heals)
        ]


def _key(number: int) -> str:
    return f"cut {number}"


def heal_once(fleet: RegionFleet, key: str, rng: random.Random, cut_s: float) -> RegionHeal:
    """Cut one region off, admit units everywhere, heal it, and wait until all counts are the same."""
    region = rng.choice(NAMES)
    fleet.cut_off(region)
    ends = time.monotonic() + cut_s
    admitted = sum(admit(one, key, rng.randint(1, 9)) for one in fleet.regions.values())
    time.sleep(max(0.0, ends - time.monotonic()))  # So long it lasts.
    used = counts(fleet, key)
    fleet.mend()
    healed = time.monotonic()
    met_after_s = None
    while met_after_s is None and time.monotonic() < healed + MEETS_WITHIN_S:
        if meet(fleet, key, admitted):
            met_after_s = time.monotonic() - healed
        else:
            time.sleep(POLL_S)  # The precision of what is measured.
    apart, left = max(used) - min(used), difference(fleet, key, admitted)
    return RegionHeal(region, cut_s, admitted, apart, met_after_s, left)


def admit(region: FaultRegion, key: str, units: int) -> int:
    """How many of so many requests a region admits."""

    async def ask() -> int:
        request = Request(path="/", user_id=key)
        limiter = region.node.node.limiter
        answers = await asyncio.gather(*[limiter.decide_request(request) for _ in range(units)])
        return sum(one.allowed for one in answers)

    return region.node.wait(ask())


def counts(fleet: RegionFleet, key: str) -> list[int]:
    """What each region has counted of a key."""
    request = Request(path="/", user_id=key)
    return [
        LIMIT - one.node.wait(one.node.node.limiter.explain_request(request)).answers[0].remaining
        for one in fleet.regions.values()
    ]


def difference(fleet: RegionFleet, key: str, admitted: int) -> int:
    """The largest one between what was admitted and what a region has counted."""
    return max(abs(one - admitted) for one in counts(fleet, key))


def meet(fleet: RegionFleet, key: str, admitted: int) -> bool:
    """Whether all regions have counted every unit, and know the same counters."""
    if set(counts(fleet, key)) != {admitted}:
        return False
    first, *others = fleet.known(key)
    return all(one == first for one in others)


def run_heals(folder: Path, cuts: int = CUTS, seed: int = 1) -> FaultFigures:
    """All cuts as one row of the campaign; each of them is a line of a file, and a bar of a picture."""
    heals = heal_regions(folder, cuts, seed)
    name = f"{NUMBER}-{seed}"
    lines = "".join(json.dumps(asdict(one)) + "\n" for one in heals)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / f"{name}.svg").write_text(picture_of(heals), encoding="utf-8")
    return figures_of(heals, seed)


def figures_of(heals: Sequence[RegionHeal], seed: int = 1) -> FaultFigures:
    """What the report says: `answers` are cuts, `late` those that took longer than two intervals and a round trip."""
    took = [one.met_after_s for one in heals if one.met_after_s is not None]
    met = sum(one.met for one in heals)
    late = sum(not one.met or (one.met_after_s or 0.0) > BOUND_S for one in heals)
    findings = [
        f"cut {number}: counts differ by {one.difference} of {one.admitted} after {MEETS_WITHIN_S:.0f} s"
        for number, one in enumerate(heals)
        if not one.met
    ]
    words = f"{met} of {len(heals)} {WORDS}"
    if took:
        words += f" (median {median(took):.2f} s, worst {max(took):.2f} s; at most {BOUND_S:.2f} s)"
    admitted = sum(one.admitted for one in heals)
    worst_ms = 1_000 * max(took, default=MEETS_WITHIN_S)
    return FaultFigures(
        fault=NUMBER, words=words, seed=seed, terms=TERMS, holds=not findings,
        violations={"difference": len(findings)} if findings else {}, findings=findings[:5],
        operations=admitted, sources={"engine": admitted}, failed=0, unknown=0, strays=0,
        over_limit=0, bound=0, over_bound=0, answers=len(heals), late=late, worst_ms=worst_ms,
        left_after_ms=None, back_after_ms=worst_ms, settled=len(heals), unanswered=len(heals) - met,
    )  # fmt: skip


def picture_of(heals: Sequence[RegionHeal]) -> str:
    """A bar for each cut: how long it took until counts met."""
    width, height, left, top = 720, 240, 60, 30
    highest = max([BOUND_S, *(one.met_after_s or MEETS_WITHIN_S for one in heals)]) * 1.1
    step = (width - left - 10) / max(1, len(heals))

    def y(seconds: float) -> float:
        return height - 30 - seconds / highest * (height - 30 - top)

    bars = [
        f"<rect x='{left + place * step:.1f}' y='{y(took):.1f}' width='{step * 0.7:.1f}' "
        f"height='{y(0) - y(took):.1f}' fill='{'#2a7fb8' if one.met else '#d55e00'}'/>"
        for place, one in enumerate(heals)
        for took in [one.met_after_s or MEETS_WITHIN_S]
    ]
    lines = [
        f"<line x1='{left}' x2='{width - 10}' y1='{y(at):.1f}' y2='{y(at):.1f}' stroke='{colour}'/>"
        for at, colour in ((0.0, GRID), (BOUND_S, FAINT))
    ]
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {FONT} "
            f"font-size='12' fill='{INK}'>"
        ),
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        text(left, 18, f"{len(heals)} cuts: seconds from the heal until all counts are the same"),
        *lines,
        *bars,
        text(left - 6, y(BOUND_S) + 4, f"{BOUND_S:.2f} s", anchor="end"),
        text(left - 6, y(0) + 4, "0", anchor="end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
