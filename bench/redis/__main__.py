"""Run the comparison: a table here, raw numbers and a picture in the output folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..harness import facts, save, table
from .contenders import ENTRIES, OURS, PACKAGES
from .cores import server_on_its_own_core
from .plot import draw
from .scenarios import FULL, QUICK, Bench, Promise, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.redis", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL

    results: list[Result] = []
    with server_on_its_own_core() as server, Bench(server, settings) as bench:
        machine = facts([*PACKAGES, "matplotlib"])
        machine["server"] = f"Redis {server.info('server')['redis_version']}"
        print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
        bench.verify_all()
        print(
            f"\n{len(ENTRIES)} contenders verified: each admits its limit, denies the next, keeps keys apart"
        )
        for result in bench.everything():
            print(result.as_text(), flush=True)
            results.append(result)
        weights = bench.weights()
    print(weights_as_text(weights, settings.weighed_keys))

    promises = [one for result in results for one in result.promises]
    print(promises_as_text(promises))
    print(f"\n{sum(one.met for one in promises)} of {len(promises)} targets met")

    save(
        options.out / "redis.json",
        {
            "machine": machine,
            "settings": vars(settings),
            "scenarios": {result.name: result.as_json() for result in results},
            "bytes_per_key": weights,
        },
    )
    draw(results, options.out / "redis.png")
    print(f"written: {options.out}/redis.json, {options.out}/redis.png")


def weights_as_text(weights: Mapping[str, float], keys: int) -> str:
    """Bytes per key, the lightest first."""
    return table(
        f"Bytes per key in the server at {keys:,} keys, hit once each, the key's text included",
        ["", "bytes", ""],
        [
            [name, f"{weight:.0f}", "Headgate" if name in OURS else ""]
            for name, weight in sorted(weights.items(), key=lambda item: item[1])
        ],
    )


def promises_as_text(promises: Iterable[Promise]) -> str:
    """Every target, and what became of it."""
    return table(
        "Targets",
        ["scenario", "", "", "reached", "target", ""],
        [
            [
                one.scenario,
                one.algorithm,
                one.what,
                f"{one.reached:.2f}",
                f"{'at most' if one.at_most else 'at least'} {one.target:g}",
                "met" if one.met else "MISSED",
            ]
            for one in promises
        ],
    )


if __name__ == "__main__":
    main()
