"""`headgate lab simulate`: run nodes, a store, a network and clocks in virtual time, with faults, and verify them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import UsageError
from .._formatting import count, number
from .._service import add_json, print_json
from .._terminal import GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ...lab.region_simulator.campaign import RegionSummary
    from ...lab.simulator.campaign import SimulationSummary
    from ...lab.simulator.run import SimulatedRun

NAME: Final = "simulate"
HELP: Final = "run nodes and a store with faults in virtual time, and verify them"
EPILOG: Final = """\
A seed draws everything: nodes, clocks, limits, what clients ask, which faults
come, and when. The same seed gives the same history, byte by byte, as long as
the code is the same. One seed can be written to a file, verified and drawn.

examples:
  headgate lab simulate --seeds 2000
  headgate lab simulate --seeds 5000-5999 --keep broken
  headgate lab simulate --seed 617 --to h.jsonl
  headgate lab simulate --seeds 500 --only failed_over,paused
  headgate lab simulate --regions --seeds 2000

exit codes: 0 all promises hold, 1 one was broken or a rare situation was never
reached, 2 nothing was run
"""
MANY: Final = 1_000
"""From this many seeds on, every rare situation must have been reached."""
BAR: Final = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", metavar="N", type=int, help="run this seed")
    which.add_argument("--seeds", metavar="N|A-B", default="200",
                       help="run this many seeds, or a range (200)")  # fmt: skip
    parser.add_argument("--regions", action="store_true",
                        help="simulate three regions that share a limit instead")  # fmt: skip
    parser.add_argument("--only", metavar="KIND,..", help="only these kinds of faults")
    parser.add_argument("--without", metavar="KIND,..", help="without these kinds of faults")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count() or 1,
                        help="the number of processes (the number of cores)")  # fmt: skip
    parser.add_argument("--to", metavar="FILE", help="write the history of the one seed")
    parser.add_argument("--keep", metavar="FOLDER", help="write histories that break a promise")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, and print the results."""
    if args.regions:
        return _regions(args)
    kinds = _kinds(args.only, args.without)
    if args.seed is not None:
        return _one(args, kinds)
    if args.to is not None:
        raise UsageError("--to needs one --seed; for several seeds use --keep")
    from ...lab.simulator.campaign import simulate_all  # noqa: PLC0415

    seeds = _seeds(args.seeds)
    if args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {args.jobs}")
    if args.keep is not None:
        Path(args.keep).mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    summary = simulate_all(
        seeds, kinds, jobs=min(args.jobs, len(seeds)), keep=args.keep and Path(args.keep),
        progress=_progress(len(seeds)),
    )  # fmt: skip
    whole = args.only is None and args.without is None and summary.seeds >= MANY
    if args.json:
        print_json(summary.as_json())
    else:
        _print_summary(summary, time.monotonic() - begun, args.keep)
    return 0 if summary.holds and not (whole and summary.missed()) else 1


def _regions(args: argparse.Namespace) -> int:
    from ...lab.region_simulator.campaign import simulate_regions  # noqa: PLC0415

    for name in ("only", "without", "to", "keep"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} does not work with --regions; rerun a seed to see it again")
    seeds = _seeds(args.seeds) if args.seed is None else range(args.seed, args.seed + 1)
    begun = time.monotonic()
    summary = simulate_regions(
        seeds, jobs=max(1, min(args.jobs, len(seeds) // MANY)), progress=_progress(len(seeds))
    )
    if args.json:
        print_json(summary.as_json())
    else:
        _print_summary(summary, time.monotonic() - begun, None)
    return 0 if summary.holds and not (summary.seeds >= MANY and summary.missed()) else 1


def _one(args: argparse.Namespace, kinds: Sequence[str]) -> int:
    from ...lab.simulator.campaign import write_history  # noqa: PLC0415
    from ...lab.simulator.run import simulate  # noqa: PLC0415

    result = simulate(args.seed, kinds)
    if args.to is not None:
        try:
            write_history(result, args.to)
        except OSError as error:
            raise UsageError(f"{args.to} cannot be written: {error.strerror}") from error
    if args.json:
        print_json({"seed": result.seed, "digest": result.digest(), "problems": result.problems,
                    "faults": dict(result.faults), **result.verdict.as_json()})  # fmt: skip
    else:
        _print_run(result)
    return 0 if result.holds else 1


def _print_run(result: SimulatedRun) -> None:
    screen, figures = Screen(), result.verdict.figures
    faults = ", ".join(f"{many} {kind}" for kind, many in sorted(result.faults.items()))
    screen.write(
        f"seed {result.seed}: {number(figures['operations'])} operations, {faults or 'no fault'}"
    )
    screen.write(f"history {result.digest()[:16]}")
    for one in result.verdict.findings[:5]:
        screen.write(escaped(f"  line {one.line}: {one.check}: {one.message}"))
    for words in result.problems[:5]:
        screen.write(escaped(f"  {words}"))
    _print_outcome(screen, holds=result.holds)


def _print_summary(
    summary: SimulationSummary | RegionSummary, seconds: float, keep: str | None
) -> None:
    screen = Screen()
    screen.write(
        f"{count(summary.seeds, 'seed')}, {number(summary.operations)} operations, "
        f"{summary.virtual_us / 3.6e9:.1f} hours of virtual time in {seconds:.0f} s"
    )
    faults = ", ".join(f"{number(many)} {kind}" for kind, many in summary.faults.most_common())
    screen.write(f"faults: {faults or 'none'}")
    screen.write()
    for one, many in sorted(summary.reached.items(), key=lambda pair: -pair[1]):
        screen.write(f"  {number(many):>9}  {one.value}")
    for one in summary.missed():
        screen.write(screen.paint(f"      never  {one.value}", RED))
    screen.write()
    for seed, words in sorted(summary.broken.items())[:10]:
        screen.write(escaped(f"seed {seed}: {words}"))
    if summary.broken:
        where = f"; their histories are in {keep}" if keep else ""
        screen.write(f"{count(len(summary.broken), 'seed')} broke a promise{where}")
        again = f"--seed {min(summary.broken)} {summary.again}"
        screen.write(f"see one again: headgate lab simulate {again}")
    _print_outcome(screen, holds=summary.holds)


def _print_outcome(screen: Screen, *, holds: bool) -> None:
    if holds:
        screen.write(screen.paint("all promises hold", GREEN))
    else:
        screen.write(screen.paint("a promise is broken", RED))


def _progress(seeds: int) -> Callable[[SimulationSummary | RegionSummary], None] | None:
    """A progress bar, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(summary: SimulationSummary | RegionSummary) -> None:
        done = summary.seeds * BAR // seeds
        broken = f", {len(summary.broken)} broken" if summary.broken else ""
        end = "\n" if summary.seeds == seeds else ""
        bar = f"[{'#' * done}{'-' * (BAR - done)}] {summary.seeds}/{seeds} seeds{broken}"
        print(f"\r{bar}", end=end, file=sys.stderr, flush=True)

    return show


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        found = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        found = range(0)
    if not found or found[0] < 0:
        raise UsageError(f"--seeds must be a number or a range such as 100-199, not {text!r:.40}")
    return found


def _kinds(only: str | None, without: str | None) -> list[str]:
    from ...lab.simulator.nemesis import FAULTS  # noqa: PLC0415

    wanted = FAULTS if only is None else tuple(only.split(","))
    unwanted = () if without is None else tuple(without.split(","))
    for kind in (*wanted, *unwanted):
        if kind not in FAULTS:
            raise UsageError(f"there is no fault {kind!r:.40}; the faults are {', '.join(FAULTS)}")
    return [kind for kind in FAULTS if kind in wanted and kind not in unwanted]
