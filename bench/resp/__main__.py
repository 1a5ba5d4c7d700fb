"""Run the comparison: a table and targets here, raw numbers in the output folder."""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ..compiled import is_current
from ..harness import facts, save, table
from .contenders import (
    COMPILED_NODE,
    NODE,
    OWN_SCRIPT,
    SHORT_SCRIPT,
    Asked,
    load_command,
    node,
    redis_server,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PIPELINES = (1, 16)
KEYS = 10_000
TARGETS = ((16, NODE, OWN_SCRIPT, 2.0),)
"""(commands at once, ours, than, times as many a second)."""


class Settings(NamedTuple):
    """How much is measured."""

    rounds: int
    commands: int
    """For each slice with 16 at once; a fifth of it with one."""


FULL = Settings(rounds=7, commands=200_000)
QUICK = Settings(rounds=3, commands=40_000)


@dataclass(frozen=True)
class Load:
    """What one run of `redis-benchmark` has measured."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the server for each command."""


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.resp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute instead of some")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL
    machine = facts(("uvloop", "hiredis"))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    outcome = measure(settings)
    for pipeline, loads in outcome.items():
        print(loads_as_text(pipeline, loads))
    print(targets_as_text(outcome))
    save(
        options.out / "resp.json",
        {
            "machine": machine,
            "settings": settings._asdict(),
            "loads": {
                str(pipeline): {who: [asdict(one) for one in found] for who, found in loads.items()}
                for pipeline, loads in outcome.items()
            },
        },
    )
    print(f"written: {options.out}/resp.json")


def measure(settings: Settings) -> dict[int, dict[str, list[Load]]]:
    """Give everybody slices of load, in turn."""
    outcome: dict[int, dict[str, list[Load]]] = {}
    shuffle = random.Random(1).shuffle
    names = [NODE, *([COMPILED_NODE] if is_current() else [])]
    if len(names) == 1:
        print(f"without {COMPILED_NODE!r}: make compiled")
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, ExitStack() as stack:
        present = [
            *(stack.enter_context(node(name, Path(folder))) for name in names),
            *stack.enter_context(redis_server()),
        ]
        for one in present:
            verify(one)
        for pipeline in PIPELINES:
            loads = outcome.setdefault(pipeline, {one.name: [] for one in present})
            for number in range(settings.rounds + 1):
                shuffle(present)
                for one in present:
                    found = loaded(one, pipeline, settings.commands // (5 if pipeline == 1 else 1))
                    if number:  # The first round warms up.
                        loads[one.name].append(found)
    return outcome


def loaded(asked: Asked, pipeline: int, commands: int) -> Load:
    """One run of `redis-benchmark` with 50 connections."""
    before = asked.cpu_seconds()
    told = subprocess.run(  # noqa: S603 - our own words
        [
            *(*load_command(), "--csv", "-p", str(asked.port), "-n", str(commands)),
            *("-P", str(pipeline), "-r", str(KEYS), *asked.words),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return parse(told, (asked.cpu_seconds() - before) / commands * 1e6)


def parse(told: str, cpu_us: float) -> Load:
    """Read what `redis-benchmark --csv` prints."""
    head, row = list(csv.reader(told.strip().splitlines()))[-2:]
    found = dict(zip(head, row, strict=True))
    return Load(
        float(found["rps"]),
        float(found["p50_latency_ms"]),
        float(found["p99_latency_ms"]),
        cpu_us,
    )


def times(loads: Mapping[str, Sequence[Load]], ours: str, than: str) -> tuple[float, float]:
    """How many times as many commands a second, and in the same CPU time: medians over the rounds."""
    pairs = list(zip(loads[ours], loads[than], strict=True))
    return (
        median(mine.per_second / other.per_second for mine, other in pairs),
        median(other.cpu_us / max(mine.cpu_us, 0.001) for mine, other in pairs),
    )


def loads_as_text(pipeline: int, loads: Mapping[str, Sequence[Load]]) -> str:
    """One table, the fastest first."""
    rows = [
        [
            who,
            f"{median(one.per_second for one in found):,.0f}",
            f"{median(one.p50_ms for one in found):.2f}",
            f"{median(one.p99_ms for one in found):.2f}",
            f"{median(one.cpu_us for one in found):.1f}",
        ]
        for who, found in sorted(
            loads.items(), key=lambda item: -median(one.per_second for one in item[1])
        )
    ]
    head = ["", "commands/s", "p50 ms", "p99 ms", "CPU us"]
    return table(f"{pipeline} at once on each of 50 connections, {KEYS:,} keys", head, rows)


def targets_as_text(outcome: Mapping[int, Mapping[str, Sequence[Load]]]) -> str:
    """The target, and the other script for comparison."""
    rows = []
    for pipeline, ours, than, wanted in TARGETS:
        rate, cpu = times(outcome[pipeline], ours, than)
        verdict = "met" if rate >= wanted else "MISSED"
        rows.append([f"{pipeline}", than, f"{wanted:.1f}x", f"{rate:.1f}x", f"{cpu:.1f}x", verdict])
    for pipeline in PIPELINES:
        for than in (OWN_SCRIPT, SHORT_SCRIPT):
            if (pipeline, NODE, than) not in {target[:3] for target in TARGETS}:
                rate, cpu = times(outcome[pipeline], NODE, than)
                rows.append([f"{pipeline}", than, "-", f"{rate:.1f}x", f"{cpu:.1f}x", ""])
    head = ["at once", f"{NODE} and", "target", "by rate", "by CPU", ""]
    return table("Ratios", head, rows)


if __name__ == "__main__":
    main()
