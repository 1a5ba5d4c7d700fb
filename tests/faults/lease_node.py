"""One node of a fleet that shares a leased limit: a process that hits one key at a steady pace.

`python -m tests.faults.lease_node URL LIMIT KEY HITS_PER_SECOND TALLY`. It says `ready`, begins at a line on its input,
and ends at the next one or when that is closed. Then it tells what came of it, as JSON: when each hit that was allowed
began and ended, by the clock that all processes of this machine share, how many were asked for, and by whom they were
answered. That clock is true also where a test lets the one drift that limiters go by. The file TALLY has the number of
hits that were allowed at any time, also if the process is killed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from mmap import mmap
from pathlib import Path
from struct import pack_into
from typing import Any

from headgate import EngineError, FixedWindow, Limit, Limiter, SlidingWindow, TokenBucket
from headgate.guards.stack import leases_of

KINDS = {"FixedWindow": FixedWindow, "SlidingWindow": SlidingWindow, "TokenBucket": TokenBucket}


def limit_of(text: str) -> Limit:
    """The limit that `repr` of one says."""
    made: Limit = eval(text, {"__builtins__": {}}, dict(KINDS))  # noqa: S307 - of a test, by a test
    return made


def true_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def hit_at_a_pace(
    limiter: Limiter, limit: Limit, key: str, pace: float, tally: mmap
) -> dict[str, Any]:
    """Hit until told to stop; a node that was held up makes up for at most a tenth of a second."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    spans, sources, asked, failed = [], Counter[str](), 0, 0
    since = time.monotonic()
    while not over.is_set():
        due = int((time.monotonic() - since) * pace)
        if due - asked > pace / 10:
            since += (due - asked) / pace - 0.1
            continue
        while asked < due:
            asked += 1
            began = true_ns()
            try:
                decision = limiter.hit(key, limit)
            except EngineError:
                failed += 1
                continue
            sources[f"{decision.source} {'allows' if decision else 'denies'}"] += 1
            if decision:
                spans.append((began, true_ns()))
                pack_into("q", tally, 0, len(spans))
        time.sleep(0.001)  # The pace is that of the real clock, as the leases are.
    return {"spans": spans, "asked": asked, "failed": failed, "sources": sources}


def main() -> None:
    """Run one node."""
    url, text, key, pace, path = sys.argv[1:]
    limiter = Limiter(url)
    print("ready", flush=True)  # noqa: T201 - it is what the test waits for
    sys.stdin.readline()
    with Path(path).open("r+b") as file, mmap(file.fileno(), 8) as tally:
        outcome = hit_at_a_pace(limiter, limit_of(text), key, float(pace), tally)
    limiter.close()
    leases = leases_of(limiter.engine)
    outcome["leases"] = None if leases is None else leases.totals()
    print(json.dumps(outcome), flush=True)  # noqa: T201 - and what it reads


if __name__ == "__main__":
    main()
