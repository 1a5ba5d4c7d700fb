"""Hammer one key of the cluster that `deploy/etcd/machine` started, and say whether the count was right to the unit.

    python deploy/etcd/hammer.py [--units 20000] [--callers 16]

It ends when the key is used up. A call that gets no answer may have been charged, so it is counted by itself: the count
is right if no more than the limit was admitted, and no less but for those calls.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections import Counter

from headgate import AsyncLimiter, EngineError

FIRST_PORT = int(os.environ.get("FIRST_PORT", "7000"))
NODES = [f"127.0.0.1:{FIRST_PORT + 10 * machine + 1}" for machine in (1, 2, 3)]
PAUSE_S = 0.02
"""Between two calls of one caller, so that there is time to kill something."""


def urls() -> list[str]:
    """All nodes, each time with another one first: that one is asked as long as it answers."""
    turned = (NODES[first:] + NODES[:first] for first in range(3))
    return [f"headgate://{','.join(nodes)}?deadline=10" for nodes in turned]


async def call(limiter: AsyncLimiter, key: str, units: int, seen: Counter[str]) -> None:
    """Take units one by one until one is denied."""
    while True:
        try:
            decision = await limiter.hit(key, f"{units} per 30 days", algorithm="fixed_window")
        except EngineError as error:
            seen["unknown" if error.indefinite else "failed"] += 1
        else:
            seen["admitted" if decision else "denied"] += 1
            if not decision:
                return
        await asyncio.sleep(PAUSE_S)


async def report(seen: Counter[str]) -> None:
    """Print every second what has happened so far."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(1)
        told = ", ".join(f"{seen[name]} {name}" for name in ("admitted", "failed", "unknown"))
        print(f"{time.monotonic() - began:4.0f} s: {told}", flush=True)


async def hammer(units: int, callers: int) -> int:
    """Use up a new key, and judge what came of it; the exit code."""
    seen: Counter[str] = Counter()
    key = f"hammered:{uuid.uuid4()}"
    async with contextlib.AsyncExitStack() as stack:
        limiters = [await stack.enter_async_context(AsyncLimiter(url)) for url in urls()]
        reports = asyncio.create_task(report(seen))
        await asyncio.gather(
            *(call(limiters[place % 3], key, units, seen) for place in range(callers))
        )
        reports.cancel()
    is_right = seen["admitted"] <= units <= seen["admitted"] + seen["unknown"]
    print(
        f"{seen['admitted']} of {units} admitted, {seen['unknown']} calls without an answer: "
        f"{'right to the unit' if is_right else 'WRONG'}"
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hammer one key of a cluster.")
    parser.add_argument("--units", type=int, default=20_000, help="how many the key has")
    parser.add_argument("--callers", type=int, default=16, help="how many ask at once")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(hammer(arguments.units, arguments.callers)))
