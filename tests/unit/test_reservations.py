"""Reservations of several keys, and what is left of reservations and slots whose callers were interrupted."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Charge, Limiter, RateLimitExceeded, UsageError
from headgate.algorithms import FixedWindow, TokenBucket
from headgate.charge import ChargeSet
from headgate.engines.memory import MemoryEngine
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate import Decision
    from tests.servers.redis import Cluster, RedisServer

REQUESTS, TOKENS = FixedWindow(3, 3_600_000_000), TokenBucket(1_000, 3_600_000_000)
MINUTE_US = 60_000_000


def call(tokens: int = 400) -> list[Charge]:
    """What one call of a language model is charged: a request, and an estimate of its tokens."""
    return [Charge("requests", REQUESTS), Charge("tokens", TOKENS, tokens)]


def used(limiter: Limiter) -> tuple[int, int]:
    engine = limiter.engine
    return engine.usage("requests", REQUESTS).used, engine.usage("tokens", TOKENS).used


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=ManualClock())


def test_several_keys_are_reserved_together_and_settled_each(limiter: Limiter) -> None:
    with limiter.reserve(call()) as reservation:
        assert used(limiter) == (1, 400)
        assert reservation.costs == (1, 400)
        assert reservation.settle(1, 150)
    assert reservation.settled
    assert used(limiter) == (1, 150)


def test_all_of_them_or_none(limiter: Limiter) -> None:
    with pytest.raises(RateLimitExceeded), limiter.reserve(call(1_001), timeout=0):
        pass
    assert used(limiter) == (0, 0)


def test_an_exception_gives_all_of_them_back(limiter: Limiter) -> None:
    with pytest.raises(ConnectionError), limiter.reserve(call()):
        raise ConnectionError
    assert used(limiter) == (0, 0)


def test_without_being_settled_all_estimates_stay(limiter: Limiter) -> None:
    with limiter.reserve(call()):
        pass
    assert used(limiter) == (1, 400)


@pytest.mark.parametrize("actual", [(), (1,), (1, 2, 3)])
def test_each_charge_is_settled_with_its_own_cost(
    limiter: Limiter, actual: tuple[int, ...]
) -> None:
    reservation = limiter.reserve(call()).acquire()
    with pytest.raises(UsageError, match="2 numbers, one for each of its charges"):
        reservation.settle(*actual)
    assert not reservation.settled
    assert reservation.settle(0, 0)


def test_the_limits_of_one_key_are_one_charge(limiter: Limiter) -> None:
    limit = limiter.limit("key", "100/hour; 1000/day", mode="immediate")
    reservation = limit.reserve(50).acquire()
    with pytest.raises(UsageError, match="1 numbers, the real cost"):
        reservation.settle(1, 2)
    assert reservation.settle(20)
    assert limit.stats().count == 20


def test_an_engine_refuses_another_number_of_costs(limiter: Limiter) -> None:
    request = ChargeSet(tuple(call()), reserve_us=MINUTE_US, token="name")  # noqa: S106
    limiter.engine.decide([request])
    with pytest.raises(UsageError, match="one cost for each charge"):
        limiter.engine.settle("name", [1, 2, 3])
    assert limiter.engine.settle("name", [1, 2])


def test_the_same_on_an_event_loop() -> None:
    async def main() -> None:
        async with AsyncLimiter(clock=ManualClock()) as limiter:
            async with limiter.reserve(call()) as reservation:
                assert await reservation.settle(1, 150)
            with pytest.raises(ConnectionError):
                async with limiter.reserve(call()):
                    raise ConnectionError
            with pytest.raises(RateLimitExceeded):
                await limiter.reserve(call(1_001), timeout=0).acquire()
            counts = [
                (await limiter.engine.usage("requests", REQUESTS)).used,
                (await limiter.engine.usage("tokens", TOKENS)).used,
            ]
            assert counts == [1, 150]

    asyncio.run(main())


@pytest.mark.slow
@on_flavours("redis_cluster", "redis-7.0")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_several_slots_of_a_cluster(redis_cluster: Cluster, kind: str) -> None:
    redis_cluster.flush()
    if kind == "async":

        async def main() -> None:
            limiter = AsyncLimiter(redis_cluster.url)
            async with limiter, limiter.reserve(call()) as reservation:
                assert await reservation.settle(1, 150)

        asyncio.run(main())
    with Limiter(redis_cluster.url) as limiter:
        if kind == "sync":
            with limiter.reserve(call()) as reservation:
                reservation.settle(1, 150)
        assert used(limiter) == (1, 150)
        request = ChargeSet(tuple(call()), reserve_us=MINUTE_US, token="name")  # noqa: S106
        (decision,) = limiter.engine.decide([request])
        assert decision.token is not None
        with pytest.raises(UsageError, match="one cost for each charge"):
            limiter.engine.settle(decision.token, [1, 2, 3])
        limiter.engine.withdraw(request)
        assert used(limiter) == (1, 150)
        limiter.engine.withdraw(request)
        with pytest.raises(UsageError, match="already open"):
            limiter.engine.decide([request])
        assert used(limiter) == (1, 150)


class Interrupted(MemoryEngine):
    """Decides, and is interrupted before it can tell."""

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        super().decide(requests)
        raise KeyboardInterrupt


def test_an_interrupt_while_reserving_gives_everything_back() -> None:
    limiter = Limiter(Interrupted(clock=ManualClock()))
    with pytest.raises(KeyboardInterrupt), limiter.reserve(call()):
        pass
    with pytest.raises(KeyboardInterrupt):
        limiter.limit("tokens", TOKENS).reserve(100).acquire()
    assert used(limiter) == (0, 0)


def test_a_reservation_that_was_interrupted_can_be_made_again() -> None:
    limiter = Limiter(clock=ManualClock())
    reservation = limiter.reserve(call())
    engine: Any = limiter.engine
    engine.decide = lambda requests: Interrupted.decide(engine, requests)
    with pytest.raises(
        TypeError
    ):  # `super` is not meant to be borrowed; an interrupt all the same.
        reservation.acquire()
    del engine.decide
    assert reservation.acquire().settle(1, 1)
    assert used(limiter) == (1, 1)


@pytest.fixture(params=["async", "in threads"])
def async_url(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    redis_server.flush()
    if request.param == "async":
        yield lambda: AsyncRedisEngine(redis_server.url)
    else:
        yield lambda: RedisEngine(redis_server.url)
    redis_server.flush()


@pytest.mark.slow
def test_reservations_that_are_cancelled_at_any_moment_are_given_back(
    async_url: Any, redis_server: RedisServer
) -> None:
    """Before it is sent, on the way, on the way back, twice; and while the server forgets our functions."""
    choose = random.Random(11)
    limit = TokenBucket(1_000_000, 86_400_000_000)

    async def one(limiter: AsyncLimiter) -> None:
        task = asyncio.create_task(
            limiter.reserve([Charge("a", limit, 3), Charge("b", limit, 5)]).acquire()
        )
        for _ in range(choose.choice([1, 1, 2])):
            # Real time passes on the way to a real server.
            await asyncio.sleep(choose.choice([0, 0, 0.0002, 0.0005, 0.001, 0.002]))
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, BaseException):
            assert await result.settle(0, 0)

    async def main() -> None:
        engine = async_url()
        async with AsyncLimiter(engine) as limiter:
            for number in range(40):
                if number % 8 == 4:
                    redis_server.call("FUNCTION", "FLUSH")
                await asyncio.gather(*(one(limiter) for _ in range(10)))
            await asyncio.sleep(0.3)  # What a thread, or a second cancellation, has left to do.
            spent = [
                (await limiter.engine.usage(key, limit)).answer[3] // 86_400 for key in ("a", "b")
            ]
        assert spent == [0, 0]
        close = getattr(engine, "aclose", None) or engine.close
        if asyncio.iscoroutine(closing := close()):
            await closing

    asyncio.run(main())


@pytest.mark.slow
def test_a_request_that_was_withdrawn_takes_nothing_when_it_arrives(
    redis_server: RedisServer,
) -> None:
    redis_server.flush()
    with Limiter(redis_server.url) as limiter:
        request = ChargeSet(tuple(call()), reserve_us=MINUTE_US, token="late")  # noqa: S106
        limiter.engine.withdraw(request)
        with pytest.raises(UsageError, match="already open"):
            limiter.engine.decide([request])
        assert not limiter.engine.settle("late", 0)
        assert used(limiter) == (0, 0)


def test_a_slot_is_acquired_and_released_without_a_block(limiter: Limiter) -> None:
    slots = limiter.concurrency("reports", 1)
    slot = slots.slot()
    assert slot.acquire() is slot
    assert slots.stats().remaining == 0
    with pytest.raises(UsageError, match="already held"):
        slot.acquire()
    with pytest.raises(RateLimitExceeded):
        slots.slot().acquire()
    slot.release()
    slot.release()  # It is not held any more, so nothing happens.
    assert slots.stats().remaining == 1
    with slot:
        assert slots.stats().remaining == 0
    assert slots.stats().remaining == 1


def test_a_slot_is_acquired_and_released_on_an_event_loop() -> None:
    async def main() -> None:
        async with AsyncLimiter() as limiter:
            slots = limiter.concurrency("reports", 1)
            slot = slots.slot()
            assert await slot.acquire() is slot
            assert (await slots.stats()).remaining == 0
            with pytest.raises(UsageError, match="already held"):
                await slot.acquire()
            await slot.release()
            await slot.release()
            assert (await slots.stats()).remaining == 1
            async with slot:
                assert (await slots.stats()).remaining == 0
            assert (await slots.stats()).remaining == 1

    asyncio.run(main())


def test_an_interrupt_after_a_slot_was_given_lets_go_of_it(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = limiter.concurrency("reports", 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headgate._renewal.Renewer.add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        slots.slot().acquire()
    assert slots.stats().remaining == 1
