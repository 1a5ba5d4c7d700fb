"""Run the comparison: a table here, raw numbers and a picture in the output folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..harness import facts, save, table
from . import memory, targets
from .builds import BUILDS
from .contenders import ENTRIES, OURS, PACKAGES
from .plot import draw
from .scenarios import FULL, QUICK, Result, everything, verify_all


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.inprocess", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    settings = QUICK if options.quick else FULL

    machine = facts([*PACKAGES, "matplotlib"])
    print("\n".join(f"{name:16} {value}" for name, value in machine.items()))
    verify_all()
    print(
        f"\n{len(ENTRIES)} contenders verified: each admits its limit, denies the next, keeps keys apart"
    )

    results: list[Result] = []
    for result in everything(settings):
        print(result.as_text(), flush=True)
        results.append(result)
    weights = weigh_all(settings.weighed_keys)

    print("\n* no peer has one; compared with what comes closest (see bench/inprocess/targets.py)")
    for build in BUILDS:
        judged = [
            row.met
            for result in results
            for row in result.rows
            if row.build == build.name and row.met is not None
        ]
        judged += [
            weights[build(name)] <= most
            for name, most in targets.MAX_BYTES_PER_KEY.items()
            if weights
        ]
        print(f"{build.name}: {sum(judged)} of {len(judged)} targets met")
    if len(BUILDS) == 1:
        print("There is no compiled build of these sources to measure; `make compiled` makes one")

    save(
        options.out / "inprocess.json",
        {
            "machine": machine,
            "settings": vars(settings),
            "scenarios": {result.name: result.as_json() for result in results},
            "bytes_per_key": weights,
        },
    )
    draw(results, options.out / "inprocess.png")
    print(f"written: {options.out}/inprocess.json, {options.out}/inprocess.png")


def weigh_all(keys: int) -> dict[str, float]:
    """Bytes per key of everybody, printed as they come; nothing where memory cannot be read."""
    if not memory.STATM.exists():
        print("\nbytes per key: this system does not tell")
        return {}
    weights = {name: memory.bytes_per_key(name, keys) for name in ("floor", *ENTRIES)}
    rows = []
    for name, weight in sorted(weights.items(), key=lambda item: item[1]):
        _, algorithm = OURS.get(name, (None, name))
        most = targets.MAX_BYTES_PER_KEY.get(algorithm)
        verdict = "" if most is None else "met" if weight <= most else "MISSED"
        rows.append(
            [
                name,
                f"{weight:.0f}",
                "Headgate" if name in OURS else "",
                f"at most {most}" if most else "",
                verdict,
            ]
        )
    print(
        table(
            f"Bytes per key at {keys:,} keys, the key's text included",
            ["", "bytes", "", "target", ""],
            rows,
        )
    )
    return weights


if __name__ == "__main__":
    main()
