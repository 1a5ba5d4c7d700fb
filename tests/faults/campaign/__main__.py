"""Run the campaign: `python -m tests.faults.campaign [F1 E3 …] --seeds 3 --out build/faults`; `make faults` does so.

Histories and pictures of all runs are in the folder, with a report as HTML and as JSON. The exit code is 1 if a promise was
broken or a node crashed; its history is then also in build/faults/broken, to become a test.
"""

from __future__ import annotations

import argparse
import contextlib
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
from tests.faults.campaign.report import write_report
from tests.faults.campaign.run import FaultFigures, run_fault
from tests.servers.machines import NotRootError
from tests.servers.process import NotInstalledError

if TYPE_CHECKING:
    from tests.faults.campaign.faults import RealFault
    from tests.faults.campaign.fleet import Fleet
    from tests.faults.campaign.region_faults import RegionFault

ALL = [*FAULTS, *REGION_FAULTS]
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
        """Runs that were not carried out."""

    def break_stores(self, faults: list[RealFault]) -> None:
        """Faults that need the same fleet; one that cannot be mended is replaced."""
        runs = deque((fault, seed) for fault in faults for seed in self._seeds)
        try:
            while runs:
                with fleet_for(runs[0][0]) as made, contextlib.suppress(TimeoutError):
                    while runs:
                        self._break_store(made, *runs.popleft())
        except NotInstalledError as missing:
            self._leave_out([fault.number for fault, _ in runs], missing)

    def _break_store(self, made: Fleet, fault: RealFault, seed: int) -> None:
        try:
            self._note(run_fault(fault, made, seed, self._out, commit=self.commit))
        except (OSError, RuntimeError, TimeoutError, RedisError) as error:
            words = f"{fault.number} seed {seed} was not carried out: {error!r}"
            print(words, file=sys.stderr)  # noqa: T201
            self.failed += 1
        made.mend()
        made.wait_until_decided_by_store()

    def break_regions(self, faults: list[RegionFault]) -> None:
        """Faults between regions that need the same ones; those that kill a node get new regions each time."""
        needs = faults[0].needs
        runs = [(fault, seed) for fault in faults for seed in self._seeds]
        try:
            for together in [[one] for one in runs] if needs.first_node else [runs]:
                with regions_for(needs, self._out) as regions:
                    for fault, seed in together:
                        self._note(run_region_fault(fault, regions, seed, self._out))
        except NotInstalledError as missing:
            self._leave_out([fault.number for fault, _ in runs], missing)

    def _leave_out(self, numbers: list[str], missing: NotInstalledError) -> None:
        """Say which runs cannot be done here; in CI that is a failure, unless they take root."""
        named = ", ".join(dict.fromkeys(numbers))
        print(f"{named} left out: {missing}", file=sys.stderr)  # noqa: T201
        if os.environ.get("CI") == "true" and not isinstance(missing, NotRootError):
            self.failed += len(numbers)

    def _note(self, figures: FaultFigures) -> None:
        self.results.append(figures)
        _keep(figures, self._out)
        _tell(figures, len(self.results), len(self._options.faults) * len(self._seeds))


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
        (FAULTS[name] for name in options.faults if name in FAULTS),
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
    results, failed = campaign.results, campaign.failed
    write_report(results, options.out, commit=campaign.commit, seconds=time.monotonic() - begun)
    if failed:
        print(f"{failed} runs were not carried out", file=sys.stderr)  # noqa: T201
    broken = [one for one in results if not one.holds or one.crashes]
    print(f"{len(results)} runs, {len(broken)} broken; the report is {options.out}/index.html")  # noqa: T201
    return 1 if broken or failed else 0


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _keep(figures: FaultFigures, folder: Path) -> None:
    """A history that broke a promise is put aside: it becomes a test."""
    if not figures.holds:
        (folder / "broken").mkdir(exist_ok=True)
        name = f"{figures.fault}-{figures.seed}.jsonl"
        shutil.copy(folder / name, folder / "broken" / name)


def _tell(figures: FaultFigures, done: int, total: int) -> None:
    verdict = "holds " if figures.holds else "BROKEN"
    line = (
        f"{figures.fault:>5} seed {figures.seed}  {verdict} {figures.operations:>5} operations  "
        f"late {figures.late}/{figures.answers} worst {figures.worst_ms:.0f} ms  back after {figures.back_after_ms:.0f} ms  "
        f"{figures.violations or ''} {figures.crashes or ''}"
    )
    full = done * BAR // total
    bar = f"[{'#' * full}{'-' * (BAR - full)}] {done}/{total}"
    if sys.stderr.isatty():
        print(f"\r{line}\n{bar}", end="", file=sys.stderr, flush=True)  # noqa: T201
    else:
        print(f"{bar} {line}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
