"""Slots are renewed whatever happens to one of them, and their holders are told when they are lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Limiter, MemoryEngine
from headgate.engines.base import Awaited
from tests.servers.fixtures import installed
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import RedisServer

TTL = 0.15
"""Renewals happen in real time; this is short, and long enough for a busy machine."""


class Torn(MemoryEngine):
    """Renewals of the key "torn" fail in a way that nobody expects."""

    def renew(self, key: str, *more: Any) -> bool:
        if key == "torn":
            raise ZeroDivisionError("somebody else's bug")
        return super().renew(key, *more)


def test_one_foreign_exception_does_not_end_the_renewal_of_other_slots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = Limiter(Torn())
    torn, good = (limiter.concurrency(key, 1).slot(ttl=TTL) for key in ("torn", "good"))
    with torn, good:
        wait_until(lambda: torn.lost, "the slot that is not renewed is told as lost")
        time.sleep(TTL)  # Renewal goes by a thread's timer.
        assert limiter.concurrency("good", 1).stats().count == 1
        assert not good.lost
    limiter.close()
    assert "could not be renewed: somebody else's bug" in caplog.text
    assert caplog.text.count("a slot of 'torn' expired while it was held") == 1


def test_the_same_holds_under_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(Torn())
        torn, good = (limiter.concurrency(key, 1).slot(ttl=TTL) for key in ("torn", "good"))
        async with torn, good:
            while not torn.lost:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)  # Renewal goes by the loop's timer.
            await asyncio.sleep(TTL)  # As above.
            assert (await limiter.concurrency("good", 1).stats()).count == 1
            assert not good.lost
        await limiter.aclose()

    asyncio.run(asyncio.wait_for(main(), 10))
    assert "could not be renewed: somebody else's bug" in caplog.text
    assert caplog.text.count("a slot of 'torn' expired while it was held") == 1


def test_a_forgotten_slot_expires() -> None:
    """Its `with` block was torn apart, so that it was never let go."""
    limiter = Limiter()
    slots = limiter.concurrency("key", 1)
    slots.slot(ttl=TTL).__enter__()
    gc.collect()
    wait_until(lambda: slots.stats().count == 0, "the slot has expired")
    with slots.slot(ttl=TTL):  # The thread is there for the next one.
        time.sleep(2 * TTL)  # Renewal goes by a thread's timer.
        assert slots.stats().count == 1
    limiter.close()


class ReusedWhileReleased(MemoryEngine):
    """While a slot is released, another thread or task releases it as well, and holds it again."""

    slot: Any = None

    def release(self, *slot: Any) -> None:
        reused, self.slot = self.slot, None
        if reused is not None:
            reused.release()
            reused.acquire()
        super().release(*slot)


class AwaitedWhileReleased(Awaited):
    """The same, awaited."""

    slot: Any = None

    async def release(self, *slot: Any) -> None:
        reused, self.slot = self.slot, None
        if reused is not None:
            await reused.release()
            await reused.acquire()
        await super().release(*slot)


def test_a_late_release_leaves_the_next_holder_alone() -> None:
    engine = ReusedWhileReleased()
    limiter = Limiter(engine)
    slots = limiter.concurrency("jobs", 1)
    slot = engine.slot = slots.slot().acquire()
    slot.release()
    assert slots.stats().remaining == 0
    assert limiter._renewer._due
    slot.release()
    assert slots.stats().remaining == 1
    assert not limiter._renewer._due


def test_a_late_release_of_a_task_leaves_the_next_holder_alone() -> None:
    async def main() -> tuple[int, int]:
        engine = AwaitedWhileReleased(MemoryEngine(), in_threads=True)
        slots = AsyncLimiter(engine).concurrency("jobs", 1)
        slot = engine.slot = await slots.slot().acquire()
        await slot.release()
        held = (await slots.stats()).remaining
        await slot.release()
        return held, (await slots.stats()).remaining

    assert asyncio.run(main()) == (0, 1)


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    servers: Callable[[str], RedisServer] = request.getfixturevalue("redis_servers")
    with installed():
        server = servers("redis-7.0")
    server.flush()
    return f"{server.url}?deadline=10"


def test_a_release_by_another_thread_does_nothing_before_the_slot_is_held(url: str) -> None:
    """Else nobody could release it afterwards, and it would be renewed for as long as the process runs."""
    with Limiter(url) as limiter:
        slots = limiter.concurrency("jobs", 1)
        other, slot = slots.slot().acquire(), slots.slot(timeout=30)
        waiting = threading.Thread(target=slot.acquire)
        waiting.start()
        wait_until(lambda: bool(slot._user), "the other thread waits for the slot")
        slot.release()
        other.release()
        waiting.join()
        assert slots.stats().count == 1
        assert limiter._renewer._due
        slot.release()
        assert slots.stats().count == 0
        assert not limiter._renewer._due


def test_a_release_by_another_task_does_nothing_before_the_slot_is_held(url: str) -> None:
    async def main() -> list[int]:
        async with AsyncLimiter(url) as limiter:
            slots = limiter.concurrency("jobs", 1)
            other, slot = await slots.slot().acquire(), slots.slot(timeout=30)
            waiting = asyncio.create_task(slot.acquire())
            await asyncio.sleep(0)  # One turn of the loop, in which it begins.
            await slot.release()
            await other.release()
            await waiting
            held = (await slots.stats()).count
            await slot.release()
            return [held, (await slots.stats()).count]

    assert asyncio.run(main()) == [1, 0]


def test_a_task_that_is_cancelled_while_it_acquires_holds_nothing(url: str) -> None:
    async def main() -> int:
        async with AsyncLimiter(url) as limiter:
            slots = limiter.concurrency("jobs", 1)
            slot = slots.slot(timeout=30)
            acquiring = asyncio.create_task(slot.acquire())
            await asyncio.sleep(0)  # One turn of the loop, in which it is sent.
            acquiring.cancel()
            await slot.release()
            await asyncio.wait([acquiring])
            left = (await slots.stats()).count
            async with slot:  # And the object can be used again.
                return left

    assert asyncio.run(main()) == 0
