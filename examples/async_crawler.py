"""Twenty tasks share one polite budget: five pages a second, evenly spaced, in the order they asked.

A token bucket with `burst 1` has a line: each task books its turn and sleeps until then.

Prints:

    page 0 at 0.0 s
    page 1 at 0.2 s
    page 2 at 0.4 s
    page 19 at 3.8 s
"""

import asyncio

from headgate import AsyncLimiter
from headgate.testing import ManualClock

clock = ManualClock()  # Leave it out in a real program.
start_us = clock.now_us()


async def main() -> None:
    """Fetch twenty pages at once, or so it seems to the tasks."""
    async with AsyncLimiter(clock=clock) as limiter:
        site = limiter.limit("site:example.org", "5/second burst 1")

        async def fetch(page: int) -> str:
            async with site:
                return f"page {page} at {(clock.now_us() - start_us) / 1_000_000:.1f} s"

        pages = await asyncio.gather(*(fetch(page) for page in range(20)))
    print(*pages[:3], pages[-1], sep="\n")


asyncio.run(main())
