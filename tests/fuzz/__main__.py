"""Fuzz for as long as you like: `python -m tests.fuzz [TARGET ...] --executions 1000000`.

With Atheris, inputs are led by the code that they reach; new ones are kept in build/fuzz/<target> and used again by the
next run. Where Atheris is not to be had, inputs are made by chance alone. An input that breaks a promise is written to
build/fuzz and named. The HTTP front also gets streams of requests that are mostly honest, which no mutation of bytes
would make.
"""

from __future__ import annotations

import argparse
import random
import secrets
import subprocess
import sys
import time
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from . import cost, http_front
from .mutations import mutated
from .targets import TARGETS, Target

OUT: Final = Path("build/fuzz")
TELL_EVERY_S: Final = 10.0


def main() -> int:
    """Fuzz one target after the other; the exit code tells whether all promises held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)}"
    )
    parser.add_argument(
        "--executions",
        type=int,
        help="inputs for each target; if not given, each has its own number",
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="to repeat a run")
    parser.add_argument("--by-chance", action="store_true", help="without Atheris")
    options = parser.parse_args()
    by_chance = options.by_chance or find_spec("atheris") is None
    held = True
    for name in options.targets:
        target = TARGETS[name]
        executions = options.executions or target.executions
        tell(f"{name}: {executions} inputs, seed {options.seed}")
        began = time.monotonic()
        if name == "http":
            requests = options.executions or http_front.REQUESTS
            http_front.run(requests, options.seed)
            tell(f"  {requests} requests in {time.monotonic() - began:.0f} s, none misread")
            began = time.monotonic()
        fuzz = fuzz_by_chance if by_chance else fuzz_guided
        held &= fuzz(target, executions, options.seed)
        tell(f"  {executions} inputs in {time.monotonic() - began:.0f} s")
    return 0 if held else 1


def tell(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)  # noqa: T201


def fuzz_guided(target: Target, executions: int, seed: int) -> bool:
    """Let libFuzzer find its way; in a process of its own, which it ends at the first failure."""
    found = OUT / target.name
    found.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "tests.fuzz.guided", target.name),
        *(f"-runs={executions}", f"-seed={seed or 1}", "-max_len=65536"),
        *(f"-artifact_prefix={OUT}/{target.name}-", "-timeout=60", "-rss_limit_mb=0"),
        *("-print_final_stats=0", "-verbosity=0"),
        *map(str, (found, *target.folders)),
    ]
    return subprocess.run(command, check=False).returncode == 0


def fuzz_by_chance(target: Target, executions: int, seed: int) -> bool:
    """Make inputs from those that are kept."""
    corpus, chance = target.corpus(), random.Random(seed)
    told = time.monotonic()
    for number in range(executions):
        data = mutated(corpus, chance)
        try:
            cost.run(target, data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the input is kept
            OUT.mkdir(parents=True, exist_ok=True)
            kept = OUT / f"{target.name}-crash-{sha256(data).hexdigest()[:16]}"
            kept.write_bytes(data)
            tell(f"  {type(error).__name__}: {error}\n  the input is in {kept}")
            return False
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            tell(f"  {number + 1} inputs")
    return True


if __name__ == "__main__":
    sys.exit(main())
