"""Measure the etcd engine on three etcd servers: tables here, raw numbers in the output folder."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from tests.servers.etcd import etcd

from ..harness import facts, save
from .owners import about_owners
from .scenarios import FULL, QUICK, everything


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    parser.add_argument("--only", default="", metavar="WORDS", help="what a title has to contain")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL
    machine = facts(("headgate", "grpcio"))
    print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
    raw = {}
    with etcd(3) as servers:
        results = everything(servers, settings, options.only)
        if not options.only:
            results = chain(results, about_owners(servers, settings))
        for result in results:
            print(result.as_text(), flush=True)
            raw[result.title] = {"ratios": result.verdicts, "raw": result.raw}
    save(
        options.out / "cluster.json",
        {"machine": machine, "settings": settings._asdict(), "scenarios": raw},
    )
    print(f"\nwritten: {options.out}/cluster.json")


if __name__ == "__main__":
    main()
