"""Runs many seeds of regions on all cores, and counts the situations reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from ..seeds import SeedSummary, run_seeds
from .run import MODES
from .sometimes import RegionSometimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .result import RegionRun

CHUNK: Final = 64


@dataclass
class RegionSummary(SeedSummary[RegionSometimes]):
    """The results of all seeds, each in every mode."""

    again: ClassVar[str] = "--regions"
    situations: ClassVar[type[RegionSometimes]] = RegionSometimes

    def add(self, run: RegionRun) -> None:
        """Add one run."""
        self.operations += run.hits
        self.virtual_us += run.virtual_us
        self.faults += run.faults
        self.reached += run.reached
        if not run.holds:
            self.broken[run.seed] = f"{run.mode}: {run.findings[0]}"


def simulate_regions(
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    progress: Callable[[RegionSummary], None] | None = None,
) -> RegionSummary:
    """Run all these seeds in every mode."""
    return run_seeds(RegionSummary(), seeds, _run_chunk, chunk=CHUNK, jobs=jobs, progress=progress)


def _run_chunk(seeds: list[int]) -> RegionSummary:
    part = RegionSummary()
    for seed in seeds:
        part.seeds += 1
        for simulate in MODES.values():
            part.add(simulate(seed))
    return part
