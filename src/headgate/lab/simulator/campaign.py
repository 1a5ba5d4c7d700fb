"""Runs many seeds on all cores, counts the situations reached, and keeps every history that broke a promise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from ..seeds import SeedSummary, run_seeds
from .nemesis import FAULTS
from .run import simulate
from .sometimes import Sometimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from .run import SimulatedRun

CHUNK: Final = 16


@dataclass
class SimulationSummary(SeedSummary[Sometimes]):
    """The results of all seeds together."""

    again: ClassVar[str] = "--to h.jsonl"
    situations: ClassVar[type[Sometimes]] = Sometimes

    def add(self, run: SimulatedRun) -> None:
        """Add one run."""
        self.seeds += 1
        self.operations += run.verdict.figures["operations"]
        self.virtual_us += run.verdict.lasts_us
        self.faults += run.faults
        self.reached += run.reached
        if not run.holds:
            found = [one.message for one in run.verdict.findings] + run.problems
            self.broken[run.seed] = found[0]


def simulate_all(
    seeds: Iterable[int],
    kinds: Sequence[str] = FAULTS,
    *,
    jobs: int = 1,
    keep: Path | None = None,
    progress: Callable[[SimulationSummary], None] | None = None,
) -> SimulationSummary:
    """Run all these seeds; histories that broke a promise are written into the folder `keep`."""
    run_chunk = partial(_run_chunk, kinds=tuple(kinds), keep=None if keep is None else str(keep))
    total = SimulationSummary()
    return run_seeds(total, seeds, run_chunk, chunk=CHUNK, jobs=jobs, progress=progress)


def _run_chunk(seeds: list[int], kinds: tuple[str, ...], keep: str | None) -> SimulationSummary:
    part = SimulationSummary()
    for seed in seeds:
        run = simulate(seed, kinds)
        part.add(run)
        if keep is not None and not run.holds:
            write_history(run, f"{keep}/seed-{seed}.jsonl")
    return part


def write_history(run: SimulatedRun, path: str | Path) -> None:
    """Write a run's history where `headgate lab verify` can read it."""
    with open(path, "wb") as file:  # noqa: PTH123 - a str or a Path
        file.writelines(run.lines)
