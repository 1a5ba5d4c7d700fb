"""A limiter that chooses from its own traffic: blocking, awaiting, in memory and on Redis, by hits and by requests."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

from headgate import Adaptive, AsyncLimiter, Charge, Limiter
from headgate.adaptive.local import MAX_CHOOSERS, LocalAdaptive
from headgate.adaptive.selector import BACKOFF, BUCKET, WINDOW
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from headgate.engines.base import Engine
    from tests.servers.redis import RedisServer

LIMIT = Adaptive(100, 60_000_000)


def exercise(engine: Engine | str, clock: ManualClock) -> None:
    """Steady, a burst, abuse and calm, as the same chooser sees it whoever counts."""
    choices = LocalAdaptive(clock=clock)
    limiter = Limiter(engine, clock=clock if isinstance(engine, str) else None, adaptive=choices)
    seen = []

    def second(requests: int, key: str = "k") -> list[bool]:
        clock.advance(1)
        answers = [
            limiter.hit(key, "100/minute", algorithm="adaptive").allowed for _ in range(requests)
        ]
        seen.append(choices.choice(LIMIT).algorithm)
        return answers

    for _ in range(12):
        assert all(second(2))
    assert set(seen) == {WINDOW}
    assert sum(second(150)) == 76  # By the window: 24 of its hundred were taken.
    second(1)
    assert seen[-1] == BUCKET
    assert choices.choice(LIMIT).epoch == 1
    for _ in range(12):
        second(60)
    assert seen[-1] == BACKOFF
    assert "denied" in choices.choice(LIMIT).reason
    clock.advance(3_600)
    second(1)
    assert seen[-1] == WINDOW


def test_a_limiter_in_memory_chooses_from_its_own_traffic() -> None:
    exercise("memory://", ManualClock())


@on_flavours("redis_server", "redis-7.0")
def test_a_limiter_on_redis_chooses_from_its_own_traffic(redis_server: RedisServer) -> None:
    clock = ManualClock()
    with closing(RedisEngine(redis_server.url, clock=clock)) as engine:
        exercise(engine, clock)


def test_requests_of_several_charges_and_peeks_ask_for_the_chosen_variant() -> None:
    clock = ManualClock()
    choices = LocalAdaptive(clock=clock)
    with Limiter(clock=clock, adaptive=choices) as limiter:
        charges = [Charge("a", LIMIT), Charge("b", "1000/hour")]
        for _ in range(110):
            limiter.decide(charges)
        chooser = choices.chosen(LIMIT, None)
        assert (chooser.requests, chooser.denied) == (110, 10)
        assert not limiter.check("a", LIMIT)
        assert chooser.requests == 110  # A look is no request.
        clock.advance(2)  # Nothing came in the second after: it was a burst.
        limiter.hit("other", LIMIT)
        assert choices.choice(LIMIT).algorithm == BUCKET
        # A bucket has refilled three units by now, where a window has nothing yet.
        assert limiter.check("a", LIMIT).remaining == 3
        assert limiter.decide(charges).allowed
        assert (
            Limiter(limiter.engine).hit("a", "100/minute").allowed
        )  # Another algorithm, another state.


def test_an_awaiting_limiter_chooses_too() -> None:
    async def story() -> None:
        clock = ManualClock()
        choices = LocalAdaptive(clock=clock)
        async with AsyncLimiter(clock=clock, adaptive=choices) as limiter:
            for _ in range(100):
                assert await limiter.hit("k", "100/minute", algorithm="adaptive")
            assert not await limiter.hit("k", "100/minute", algorithm="adaptive")
            clock.advance(2)  # The bucket has refilled three.
            assert await limiter.hit("k", "100/minute", algorithm="adaptive")
            assert choices.choice(LIMIT).algorithm == BUCKET

    asyncio.run(story())


def test_every_limit_has_a_choice_of_its_own_until_there_are_too_many() -> None:
    choices = LocalAdaptive(clock=ManualClock())
    limits = [Adaptive(n, 60_000_000) for n in range(1, MAX_CHOOSERS + 10)]
    choosers = {id(choices.chosen(limit, None)) for limit in limits}
    assert len(choosers) == MAX_CHOOSERS + 1
    assert choices.chosen(LIMIT, "a") is choices.chosen(LIMIT, "b")  # Too many by now.
