"""Guards have a price only when they have something to do: few calls lie between a caller and Redis."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter
from headgate.engines.redis import batcher
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

HITS = 200
PER_HIT = 8
"""The limiter's coroutine (entered twice), two guards, the engine, its request, its queue, and the decision."""
PER_TICK = 200
"""All else: what is done once for a batch, and the replies."""


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_a_hit_that_is_allowed_goes_through_few_calls(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count, because a busy machine cannot time it."""
    monkeypatch.setattr(batcher, "MIN_SEPARATE_BATCH", HITS)  # One batch, whatever is in flight.
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "headgate" in frame.f_code.co_filename

    async def main() -> None:
        async with AsyncLimiter(f"{redis_server.url}?max_batch={HITS}") as limiter:
            hits = [limiter.hit(f"key:{number}", "5/minute") for number in range(HITS)]
            assert all(await asyncio.gather(*hits))
            hits = [limiter.hit(f"key:{number}", "5/minute") for number in range(HITS)]
            sys.setprofile(count)
            try:
                decisions = await asyncio.gather(*hits)
            finally:
                sys.setprofile(None)
            assert [decision.remaining for decision in decisions] == [3] * HITS

    asyncio.run(main())
    assert HITS < calls <= PER_HIT * HITS + PER_TICK
