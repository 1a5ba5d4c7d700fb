"""A process with a limiter that falls back to its share: `python -m tests.faults.library_process URL KIND [TTL_S]`.

KIND is `blocking` or `asyncio`. A line on its input is a command; the answer is one line of JSON:

- `hit KEY NUMBER LIMIT`: ask so often for a unit of so many in an hour; how many were admitted, by their source;
- `nodes`: among how many it would divide a limit;
- `close`: close the limiter, and end.

With TTL_S others give the limiter up so soon after it was killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

from headgate import AsyncLimiter, FixedWindow, Limiter, _registration

HOUR_US = 3_600_000_000


async def hit(limiter: Any, key: str, number: int, limit: int) -> dict[str, int]:
    admitted: Counter[str] = Counter()
    for _ in range(number):
        decision = limiter.hit(key, FixedWindow(limit, HOUR_US))
        if isinstance(limiter, AsyncLimiter):
            decision = await decision
        if decision:
            admitted[decision.source] += 1
    return admitted


async def main() -> None:
    url, kind, *ttl_s = sys.argv[1:]
    if ttl_s:
        _registration.TTL_US = round(float(ttl_s[0]) * 1e6)  # type: ignore[misc]
    made: type[Any] = AsyncLimiter if kind == "asyncio" else Limiter
    limiter = made(url, on_error="fallback")
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        told: Any = None
        match words:
            case ["hit", key, number, limit]:
                told = await hit(limiter, key, int(number), int(limit))
            case ["nodes"]:
                told = limiter.nodes
            case ["close"] if isinstance(limiter, AsyncLimiter):
                await limiter.aclose()
            case ["close"]:
                limiter.close()
        print(json.dumps(told), flush=True)  # noqa: T201 - it is what the test reads


if __name__ == "__main__":
    asyncio.run(main())
