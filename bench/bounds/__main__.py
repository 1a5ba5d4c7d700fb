"""Measure what one hostile caller can cost. The exit code tells whether all bounds hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..harness import facts, save
from .cost import Cost, costs
from .memory import SCENARIOS, Growth, growth


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.bounds", description=__doc__)
    parser.add_argument(
        "--count", type=int, default=1_000_000, help="how many new things of a kind"
    )
    parser.add_argument("--only", choices=("cpu", "memory"), help="half of it")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    machine = facts(["headgate"])
    print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
    found: list[Cost] = []
    if options.only != "memory":
        for cost in costs():
            found.append(cost)
            if not cost.holds:
                print(cost.as_text(), flush=True)
        most = max(cost.ms_per_64_kb for cost in found)
        print(f"{len(found)} bodies; the most costly takes {most:.1f} ms for 64 KB")
    grown: list[Growth] = []
    for name in SCENARIOS if options.only != "cpu" else ():
        grown.append(growth(name, options.count))
        print(grown[-1].as_text(), flush=True)
    save(
        options.out / "bounds.json",
        {
            "machine": machine,
            "cpu": [vars(one) for one in found],
            "memory": [vars(one) for one in grown],
        },
    )
    print(f"written: {options.out}/bounds.json")
    held = [one.holds for one in found] + [one.holds for one in grown]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
