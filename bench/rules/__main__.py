"""Measure what rules cost: tables here, raw numbers in the output folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..harness import facts, save
from .scenarios import FULL, QUICK, Result, everything


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL

    machine = facts(["headgate"])
    print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
    results: list[Result] = []
    for result in everything(settings):
        print(result.as_text(), flush=True)
        results.append(result)
    judged = [row.met for result in results for row in result.rows if row.met is not None]
    print(f"\n{sum(judged)} of {len(judged)} targets met")
    save(
        options.out / "rules.json",
        {
            "machine": machine,
            "settings": vars(settings),
            "scenarios": {result.name: result.as_json() for result in results},
        },
    )
    print(f"written: {options.out}/rules.json")


if __name__ == "__main__":
    main()
