"""Run the campaign: `python -m tests.faults.campaign [F1 E3 …] --seeds 3 --out build/faults`; `make faults` does so.

Histories and pictures of all runs are in the folder, with a report as HTML and as JSON. The exit code is 1 if a run was
BROKEN (a promise, a crash, a recovery that took too long) or LATE (too many answers after their deadline), or was not
carried out. The history of a run that was broken is then also in build/faults/broken, to become a test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from tests.faults.campaign.catalogue import FAULTS, fleet_for
from tests.faults.campaign.region_faults import REGION_FAULTS, regions_for, run_region_fault
from tests.faults.campaign.region_heals import NUMBER as HEALS, run_heals
from tests.faults.campaign.report import write_report
from tests.faults.campaign.run import run_fault
from tests.faults.campaign.terms import exit_code, late_faults
from tests.servers.machines import NotRootError
from tests.servers.process import NotInstalledError

if TYPE_CHECKING:
    from tests.faults.campaign.faults import RealFault
    from tests.faults.campaign.fleet import Fleet
    from tests.faults.campaign.region_faults import RegionFault
    from tests.faults.campaign.terms import FaultFigures
    from tests.faults.judged_regions import JudgedRegions

ALL = [*FAULTS, *REGION_FAULTS, HEALS]
BAR = 30


class Campaign:
    """All runs, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._seeds = range(options.first_seed, options.first_seed + options.seeds)
        self._out: Path = options.out
        self.commit = _commit()
        self.results: list[FaultFigures] = []
        self.failed = 0
        """Runs that were not carried out, or after which the fleet had to be replaced."""

    def break_stores(self, faults: list[RealFault]) -> None:
        """Faults that need the same fleet; one that does not work again after it was mended is replaced."""
        runs = deque((fault, seed) for fault in faults for seed in self._seeds)
        try:
            while runs:
                with fleet_for(runs[0][0]) as made:
                    works = True
                    while runs and works:
                        works = self._break_store(made, *runs.popleft())
        except NotInstalledError as missing:
            self._leave_out([fault.number for fault, _ in runs], missing)
        except (OSError, RuntimeError, TimeoutError) as error:
            for fault, seed in runs:
                self._fail(f"{fault.number} seed {seed} was not carried out: {error!r}")

    def _break_store(self, made: Fleet, fault: RealFault, seed: int) -> bool:
        """One run; whether the fleet works afterwards."""
        try:
            self._note(run_fault(fault, made, seed, self._out, commit=self.commit))
        except (OSError, RuntimeError, TimeoutError, RedisError) as error:
            self._fail(f"{fault.number} seed {seed} was not carried out: {error!r}")
        try:
            made.mend()
            made.wait_until_decided_by_store()
        except (OSError, RuntimeError, TimeoutError, RedisError) as error:
            self._fail(f"after {fault.number} seed {seed} the fleet did not come back: {error!r}")
            return False
        return True

    def _fail(self, words: str) -> None:
        print(words, file=sys.stderr)  # noqa: T201
        self.failed += 1

    def break_regions(self, faults: list[RegionFault]) -> None:
        """Faults between regions that need the same ones; those that kill a node get new regions each time."""
        needs = faults[0].needs
        runs = deque((fault, seed) for fault in faults for seed in self._seeds)
        try:
            while runs:
                with regions_for(needs, self._out) as regions:
                    works = True
                    while runs and works:
                        works = (
                            self._break_region(regions, *runs.popleft()) and not needs.first_node
                        )
        except NotInstalledError as missing:
            self._leave_out([fault.number for fault, _ in runs], missing)
        except (OSError, RuntimeError, TimeoutError) as error:
            for fault, seed in runs:
                self._fail(f"{fault.number} seed {seed} was not carried out: {error!r}")

    def _break_region(self, regions: JudgedRegions, fault: RegionFault, seed: int) -> bool:
        """One run; whether the regions can be used again."""
        try:
            self._note(run_region_fault(fault, regions, seed, self._out))
        except (OSError, RuntimeError, TimeoutError, AssertionError, RedisError) as error:
            self._fail(f"{fault.number} seed {seed} was not carried out: {error!r}")
            return False
        return True

    def heal_regions(self) -> None:
        """A hundred cuts in a row, whatever the number of seeds."""
        try:
            figures = run_heals(self._out)
        except NotInstalledError as missing:
            self._leave_out([HEALS], missing)
        else:
            self._note(figures)
            print(figures.words, file=sys.stderr)  # noqa: T201

    def _leave_out(self, numbers: list[str], missing: NotInstalledError) -> None:
        """Say which runs cannot be done here; in CI that is a failure, unless they take root."""
        named = ", ".join(dict.fromkeys(numbers))
        print(f"{named} left out: {missing}", file=sys.stderr)  # noqa: T201
        if os.environ.get("CI") == "true" and not isinstance(missing, NotRootError):
            self.failed += len(numbers)

    def _note(self, figures: FaultFigures) -> None:
        self.results.append(figures)
        _keep(figures, self._out)
        faults = [one for one in self._options.faults if one != HEALS]
        total = len(faults) * len(self._seeds) + (HEALS in self._options.faults)
        _tell(figures, len(self.results), total)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("faults", nargs="*", default=ALL, help=f"of {', '.join(ALL)}")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each fault")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/faults"))
    options = parser.parse_args()
    unknown = set(options.faults) - {*ALL}
    if unknown:
        parser.error(f"there is no fault {min(unknown)}; there are {', '.join(ALL)}")
    options.out.mkdir(parents=True, exist_ok=True)
    campaign, begun = Campaign(options), time.monotonic()
    wanted = sorted(
        (one for name, one in FAULTS.items() if name in options.faults),
        key=lambda one: one.needs,
    )
    for _, group in groupby(wanted, key=lambda one: one.needs):
        campaign.break_stores(list(group))
    between = sorted(
        (REGION_FAULTS[name] for name in options.faults if name in REGION_FAULTS),
        key=lambda one: one.needs,
    )
    for _, between_group in groupby(between, key=lambda one: one.needs):
        campaign.break_regions(list(between_group))
    if HEALS in options.faults:
        campaign.heal_regions()
    results, failed = campaign.results, campaign.failed
    write_report(results, options.out, commit=campaign.commit, seconds=time.monotonic() - begun)
    for one in results:
        for words in one.missed:
            print(f"{one.verdict} {one.fault} seed {one.seed}: {words}", file=sys.stderr)  # noqa: T201
    for number, words in late_faults(results).items():
        print(f"LATE {number}, all seeds: {words}", file=sys.stderr)  # noqa: T201
    if failed:
        words = (
            f"{failed} runs were not carried out, or left a fleet behind that had to be replaced"
        )
        print(words, file=sys.stderr)  # noqa: T201
    broken = sum(one.verdict == "BROKEN" for one in results)
    late = {*late_faults(results), *(one.fault for one in results if one.too_late)}
    print(  # noqa: T201
        f"{len(results)} runs, {broken} broken; {len(late)} faults with too many late answers; "
        f"the report is {options.out}/index.html"
    )
    return exit_code(results, failed)


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _keep(figures: FaultFigures, folder: Path) -> None:
    """The history of a run that was broken is put aside: it becomes a test."""
    if figures.broken:
        (folder / "broken").mkdir(exist_ok=True)
        name = f"{figures.fault}-{figures.seed}.jsonl"
        shutil.copy(folder / name, folder / "broken" / name)


def _tell(figures: FaultFigures, done: int, total: int) -> None:
    line = (
        f"{figures.fault:>5} seed {figures.seed}  {figures.verdict:<6} {figures.operations:>5} operations  "
        f"late {figures.late}/{figures.answers} worst {figures.worst_ms:.0f} ms  "
        f"back after {figures.back_after_ms:.0f} ms  "
        f"{'; '.join(figures.missed)}"
    )
    full = done * BAR // total
    bar = f"[{'#' * full}{'-' * (BAR - full)}] {done}/{total}"
    if sys.stderr.isatty():
        print(f"\r{line}\n{bar}", end="", file=sys.stderr, flush=True)  # noqa: T201
    else:
        print(f"{bar} {line}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
