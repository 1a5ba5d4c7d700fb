"""Run the comparison: tables here, raw numbers and a picture in the output folder."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tests.servers.redis import standalone

from ..harness import facts, save, table
from .contenders import LOAD_CORE, Running, build_go, compiled_build, running, slug
from .load import Slice, run_wrk, write_scripts
from .plot import draw
from .ramp import Ramp, ramps
from .targets import ORIGINAL, TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGES = ("fastapi", "uvicorn", "uvloop", "httptools", "msgspec", "pydantic", "redis")
SCENARIOS = {
    "check, memory": ("headgate", "headgate, compiled", "FastAPI", "Go net/http"),
    "check, Redis": ("headgate on Redis", "FastAPI on Redis"),
    "batch of 100, memory": ("headgate", "headgate, compiled", "FastAPI", "Go net/http"),
    "adaptive check, memory": (
        *("headgate", "headgate, adaptive"),
        *("headgate, compiled", "headgate, adaptive, compiled"),
    ),
    "adaptive check, Redis": ("headgate on Redis", "headgate on Redis, adaptive"),
}
RAMPED = ("headgate on Redis", "FastAPI on Redis")


class Settings(NamedTuple):
    """How much is measured."""

    rounds: int
    slice_seconds: float
    ramp_seconds: float


FULL = Settings(rounds=7, slice_seconds=4.0, ramp_seconds=60.0)
QUICK = Settings(rounds=3, slice_seconds=2.0, ramp_seconds=9.0)


@dataclass(slots=True)
class Outcome:
    """Slices by scenario and contender, round by round."""

    slices: dict[str, dict[str, list[Slice]]] = field(default_factory=dict)

    def times(self, scenario: str, ours: str, than: str) -> float | None:
        """How many times as many requests a second: the median over the rounds."""
        return self._median(scenario, ours, than, lambda a, b: a.per_second / b.per_second)

    def thrift(self, scenario: str, ours: str, than: str) -> float | None:
        """How many of our requests fit into the CPU time of one of theirs: steadier on a machine that others use."""
        return self._median(scenario, ours, than, lambda a, b: b.cpu_us / a.cpu_us)

    def _median(
        self, scenario: str, ours: str, than: str, ratio: Callable[[Slice, Slice], float]
    ) -> float | None:
        mine, others = (self.slices[scenario].get(name) for name in (ours, than))
        if not mine or not others:
            return None
        return median(ratio(a, b) for a, b in zip(mine, others, strict=True))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument(
        "--only",
        dest="scenarios",
        action="append",
        choices=SCENARIOS,
        metavar="SCENARIO",
        help=f"one of: {'; '.join(SCENARIOS)}. May be given again; the original load is left out then",
    )
    options = parser.parse_args()
    scenarios = options.scenarios or list(SCENARIOS)
    if shutil.which("wrk") is None:
        print("skipped: there is no wrk to make load with; apt-get install wrk")
        return
    settings = QUICK if options.quick else FULL
    machine = facts(PACKAGES)
    print("\n".join(f"{name:16} {value}" for name, value in machine.items()))

    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        folder = Path(name)
        with standalone("redis-7.0") as redis:
            if {0, LOAD_CORE} <= os.sched_getaffinity(0):
                os.sched_setaffinity(redis.pid, {LOAD_CORE})
            outcome = measure(folder, redis.url, settings, scenarios)
            for scenario, slices in outcome.slices.items():
                print(slices_as_text(scenario, slices), flush=True)
            print(targets_as_text(outcome))
            found: list[tuple[str, Ramp]] = []
            if not options.scenarios:
                found = [one for who in RAMPED for one in ramped(who, folder, redis.url, settings)]
                print(ramps_as_text(found))

    medians = {
        scenario: {who: median(one.per_second for one in found) for who, found in slices.items()}
        for scenario, slices in outcome.slices.items()
    }
    save(
        options.out / "service.json",
        {
            "machine": machine,
            "settings": settings._asdict(),
            "slices": {
                scenario: {who: [asdict(one) for one in found] for who, found in slices.items()}
                for scenario, slices in outcome.slices.items()
            },
            "ramps": [{"who": who, **asdict(one)} for who, one in found],
        },
    )
    draw(medians, options.out / "service.png")
    print(f"written: {options.out}/service.json, {options.out}/service.png")


def measure(folder: Path, redis_url: str, settings: Settings, scenarios: Sequence[str]) -> Outcome:
    """Give everybody slices of load, in turn."""
    write_scripts(folder)
    missing = [one for one in (build_go(folder), compiled_build()) if one is not None]
    for absent in missing:
        print(f"without {absent.name}: {absent.reason}")
    names = {name for scenario in scenarios for name in SCENARIOS[scenario]}
    absent_names = {absent.name for absent in missing}
    if "headgate, compiled" in absent_names:
        absent_names.add("headgate, adaptive, compiled")
    names -= absent_names
    outcome = Outcome()
    shuffle = random.Random(1).shuffle
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running(name, folder, redis_url)) for name in sorted(names)
        }
        print(
            f"\n{len(servers)} servers verified: each admits its limit, denies the next, sends every header"
        )
        for scenario in scenarios:
            present = [servers[name] for name in SCENARIOS[scenario] if name in servers]
            slices = outcome.slices.setdefault(scenario, {one.name: [] for one in present})
            for number in range(settings.rounds + 1):
                shuffle(present)
                for one in present:
                    found = _slice(one, folder, scenario, settings.slice_seconds)
                    if number:  # The first round warms up.
                        slices[one.name].append(found)
    return outcome


def _slice(one: Running, folder: Path, scenario: str, seconds: float) -> Slice:
    return run_wrk(one, folder, batch=scenario.startswith("batch"), seconds=seconds)


def ramped(who: str, folder: Path, redis_url: str, settings: Settings) -> list[tuple[str, Ramp]]:
    """The original load on one contender."""
    own = folder / f"ramp-{slug(who)}"
    own.mkdir()
    return [(who, one) for one in ramps(who, own, redis_url, settings.ramp_seconds)]


def slices_as_text(scenario: str, slices: Mapping[str, Sequence[Slice]]) -> str:
    """One scenario, the fastest first."""

    def of(found: Sequence[Slice], name: str) -> float:
        values: list[float] = [getattr(one, name) for one in found]
        return median(values)

    rows = [
        [
            who,
            f"{of(found, 'per_second'):,.0f}",
            f"{of(found, 'p50_ms'):.2f}",
            f"{of(found, 'p99_ms'):.2f}",
            f"{of(found, 'cpu_us'):.1f}",
            str(sum(one.failed for one in found)),
        ]
        for who, found in sorted(
            slices.items(), key=lambda item: -median(one.per_second for one in item[1])
        )
    ]
    head = ["", "requests/s", "p50 ms", "p99 ms", "CPU us", "failed"]
    return table(scenario, head, rows)


def targets_as_text(outcome: Outcome) -> str:
    """Every target, and what became of it."""
    rows = []
    for scenario, ours, than, times in TARGETS:
        if scenario not in outcome.slices:
            continue
        reached = outcome.times(scenario, ours, than)
        verdict = "not measured" if reached is None else "met" if reached >= times else "MISSED"
        by_cpu = outcome.thrift(scenario, ours, than)
        shown = ["-" if found is None else f"{found:.2f}x" for found in (reached, by_cpu)]
        rows.append([scenario, f"{ours} beside {than}", *shown, f"{times:g}x", verdict])
    return table("Targets", ["scenario", "", "requests/s", "by CPU", "target", ""], rows)


def ramps_as_text(found: Sequence[tuple[str, Ramp]]) -> str:
    """The original load, with the original figures."""
    rows = [
        [name, "as published", f"{rate:,.0f}", "-", f"{p95:.1f}", "-", "-", "-"]
        for name, (rate, p95) in ORIGINAL.items()
    ] + [
        [
            one.name,
            who,
            f"{one.per_second:,.0f}",
            f"{one.p50_ms:.1f}",
            f"{one.p95_ms:.1f}",
            f"{one.p99_ms:.1f}",
            f"{one.requests:,}",
            str(one.failed),
        ]
        for who, one in found
    ]
    head = ["", "", "requests/s at 300 users", "p50 ms", "p95 ms", "p99 ms", "requests", "failed"]
    return table("The original load: 0 to 50 to 300 users", head, sorted(rows))


if __name__ == "__main__":
    main()
