"""Measure leased hits on Redis beside exact ones: tables here, raw numbers in the output folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..harness import facts, save
from ..redis.cores import server_on_its_own_core
from .scenarios import FULL, QUICK, Result, everything


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.leases", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL

    results: list[Result] = []
    with server_on_its_own_core() as server:
        machine = facts(["headgate", "uvloop"])
        print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
        for result in everything(server, settings):
            print(result.as_text(), flush=True)
            results.append(result)
    judged = [row.met for result in results for row in result.rows if row.met is not None]
    print(f"\n{sum(judged)} of {len(judged)} targets met")
    save(
        options.out / "leases.json",
        {
            "machine": machine,
            "settings": vars(settings),
            "scenarios": {result.name: result.as_json() for result in results},
        },
    )
    print(f"written: {options.out}/leases.json")


if __name__ == "__main__":
    main()
