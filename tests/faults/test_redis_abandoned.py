"""Callers who give up while their request is tried again: nothing that they asked for happens behind their back."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, EngineError
from headgate.algorithms import Concurrency
from headgate.clock import ManualClock
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.rate import limits_of
from tests.faults.load import report
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

ROUNDS = 600


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_a_slot_is_not_taken_again_after_it_was_let_go(redis_server: RedisServer) -> None:
    """Functions are flushed all the while, so that every other call has to be sent twice."""
    chance = random.Random(11)

    async def flush() -> None:
        while True:
            await asyncio.to_thread(redis_server.flush_functions)

    async def hold(limiter: AsyncLimiter) -> None:
        async with limiter.concurrency("key", 100_000).slot(ttl=60):
            pass

    async def main() -> int:
        limiter = AsyncLimiter(f"{redis_server.url}?deadline=10")
        flushing = asyncio.create_task(flush())
        cancelled = 0
        for _ in range(ROUNDS // 4):
            tasks = [asyncio.create_task(hold(limiter)) for _ in range(4)]
            await asyncio.sleep(
                chance.random() * 0.004
            )  # Each round is cancelled elsewhere on its way.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            cancelled += sum(task.cancelled() for task in tasks)
        flushing.cancel()
        with suppress(asyncio.CancelledError):
            await flushing
        await limiter.aclose()  # Waits for those who give back.
        used = (await limiter.engine.usage("key", Concurrency(100_000))).used
        await limiter.aclose()
        report(f"{cancelled} of {ROUNDS} were cancelled, {used} slots stayed held")
        assert cancelled > ROUNDS // 10
        return used

    assert asyncio.run(main()) == 0


class Receding(ManualClock):
    """Whenever it is asked, it is two days earlier."""

    def now_us(self) -> int:
        self.advance(-2 * 86_400)
        return super().now_us()


@pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])
@on_flavours("redis_server", "redis-7.0")
def test_a_calendar_that_is_always_out_of_date_is_an_error(
    redis_server: RedisServer, kind: Any
) -> None:
    """A store whose clock leaps between two periods; who asks is told, and not left waiting."""
    (limit,) = limits_of("5/calendar day")

    async def main() -> list[str]:
        engine = kind(redis_server.url, clock=Receding())
        told = []

        async def answer(asked: Any, *given: Any) -> Any:
            found = asked(*given)
            return await asyncio.wait_for(found, 5.0) if kind is AsyncRedisEngine else found

        for asked in ((engine.bind(limit), "key", 1), (engine.usage, "key", limit)):
            with pytest.raises(EngineError) as caught:
                await answer(*asked)
            assert (caught.value.transient, caught.value.indefinite) == (True, False)
            told.append(str(caught.value))
        await engine.aclose() if kind is AsyncRedisEngine else engine.close()
        return told

    told = asyncio.run(asyncio.wait_for(main(), 15.0))
    assert len(told) == 2
    assert all("clock" in words for words in told)
