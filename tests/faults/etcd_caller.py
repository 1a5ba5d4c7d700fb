"""A node of the etcd engine that hammers one key, in a process of its own that a test can kill.

`python -m tests.faults.etcd_caller URL LIMIT CALLERS STOP_AT` writes a letter for what happens: `s` when a hit starts,
`y` or `n` when it is answered, `?` when nobody knows, `e` when it was not decided, and `.` once that many were
admitted. Then it stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import sys

from headgate import Decision, EngineError, FixedWindow
from headgate.engines.etcd.aio import AsyncEtcdEngine

DAY_US = 86_400_000_000


def say(letter: bytes) -> None:
    os.write(1, letter)  # At once: what is in a buffer is lost when the process is killed.


async def hammer(url: str, limit: int, callers: int, stop_at: int) -> None:
    engine = AsyncEtcdEngine(url)
    hit = engine.bind(FixedWindow(limit, DAY_US))
    admitted = started = 0

    async def call() -> None:
        nonlocal admitted, started
        while started < stop_at:
            started += 1
            say(b"s")
            try:
                answer = hit("key", 1)
                decision = answer if isinstance(answer, Decision) else await answer
            except EngineError as error:
                say(b"?" if error.indefinite else b"e")
                started -= not error.indefinite
                continue
            say(b"y" if decision else b"n")
            admitted += decision.allowed
            if not decision:
                return

    await asyncio.gather(*(call() for _ in range(callers)))
    say(b".")
    await asyncio.Event().wait()


if __name__ == "__main__":
    where, *numbers = sys.argv[1:]
    asyncio.run(hammer(where, *map(int, numbers)))
