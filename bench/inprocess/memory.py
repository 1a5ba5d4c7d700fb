"""What a key weighs: the growth of a fresh process in which every key is hit once.

    python -m bench.inprocess.memory token_bucket 1000000

The resident set is what the operator pays for: it includes the key's text, the table's slots and
whatever the allocator wastes. Each contender gets a process of its own, because memory that one has freed
would be a present to the next.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from .contenders import ENTRIES, Floor

STATM = Path("/proc/self/statm")


def bytes_per_key(name: str, keys: int) -> float:
    """Ask a fresh process; only where the system tells about memory as Linux does."""
    command = [sys.executable, "-m", "bench.inprocess.memory", name, str(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout)


def weigh(name: str, keys: int) -> float:
    """Hit `keys` keys once each, and say by how many bytes a key the process has grown."""
    entrant = Floor(0) if name == "floor" else ENTRIES[name](1_000)
    entrant.run(["user:0000000"])
    gc.collect()
    before = _resident_bytes()
    for start in range(0, keys, 1_000):
        entrant.run([f"user:{number:07}" for number in range(start, start + 1_000)])
    entrant.settle()
    gc.collect()
    return (_resident_bytes() - before) / keys


def _resident_bytes() -> int:
    import resource  # noqa: PLC0415 - there is none on Windows, where nothing is weighed

    return int(STATM.read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    print(f"{weigh(sys.argv[1], int(sys.argv[2])):.1f}")
