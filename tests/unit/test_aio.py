"""The library as its users meet it: `AsyncLimiter` in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    AsyncLimiter,
    Charge,
    Decision,
    EngineError,
    Limiter,
    MemoryEngine,
    RateLimitExceeded,
    Stats,
    UsageError,
    aio,
    held,
    held_async,
    limiter as blocking_limiter,
)
from headgate.charge import MAX_STEPS
from headgate.engines.base import Awaited
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence

    from headgate import Limit
    from headgate.charge import ChargeSet


class Failing(MemoryEngine):
    """Fails the operations that it is told to, before it has carried them out."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock)
        self.fails: dict[str, BaseException] = {}
        self.asked: list[str] = []

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        self._ask("decide")
        return super().decide(requests)

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        self._ask("settle")
        return super().settle(token, actual)

    def leave_line(self, decision: Decision) -> None:
        self._ask("leave_line")
        super().leave_line(decision)

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        self._ask("release")
        super().release(key, limit, token, rule)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if name in self.fails:
            raise self.fails[name]


DOWN = EngineError("connection refused", transient=True)
LOST = EngineError("no answer", transient=True, indefinite=True)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Each test is one coroutine, run to its end."""
    return asyncio.run(main)


def test_it_has_the_names_of_its_twin() -> None:
    """Whoever knows one of them knows the other."""
    pairs = [
        (Limiter, AsyncLimiter),
        (blocking_limiter.KeyLimit, aio.AsyncKeyLimit),
        (held.Reservation, held_async.AsyncReservation),
        (held.Slots, held_async.AsyncSlots),
    ]
    for blocking, awaited in pairs:
        ours = {name for name in vars(blocking) if not name.startswith("_")} - {"close"}
        theirs = {name for name in vars(awaited) if not name.startswith("_")}
        theirs -= {
            "aclose",
            "decide_request_nowait",
        }  # The second is for those who may not have to await.
        assert ours == theirs
        for name in ours:
            parameters = [
                list(inspect.signature(getattr(kind, name)).parameters.values())
                for kind in (blocking, awaited)
                if callable(getattr(kind, name))
            ]
            assert not parameters or parameters[0] == parameters[1], name


def test_golden_examples() -> None:
    """Four a second, five rapid calls, in both modes; check after three."""

    async def main() -> None:
        clock = ManualClock()
        limiter = AsyncLimiter(clock=clock)
        igdb = limiter.limit("igdb:api", limit=4, window=1.0, algorithm="sliding_log")
        start_us = clock.now_us()
        for _ in range(3):
            await igdb.acquire()
        assert (await igdb.check()).remaining == 1
        assert await igdb.stats() == Stats(3, 4, 1.0, 1)
        await igdb.acquire()
        immediate = limiter.limit("igdb:api", "4/second", algorithm="sliding_log", mode="immediate")
        with pytest.raises(RateLimitExceeded, match="Rate limit exceeded for key 'igdb:api'"):
            await immediate.acquire()
        await igdb.acquire()
        assert 1_000_000 <= clock.now_us() - start_us <= 1_050_000
        await igdb.reset()
        assert (await igdb.stats()).count == 0

    run(main())


def test_hit_check_and_decide() -> None:
    async def main() -> None:
        async with AsyncLimiter() as limiter:
            assert (await limiter.hit("k", "2/minute")).remaining == 1
            assert (await limiter.check("k", "2/minute")).remaining == 1
            assert not await limiter.hit("k", "2/hour; 1/minute", cost=2)
            charges = [Charge("k", "2/minute"), Charge("org", "5/minute", cost=3)]
            assert await limiter.decide(charges)
            assert not await limiter.decide(charges)
            assert (await limiter.check("org", "5/minute")).remaining == 2
            for wrong in ([], iter(()), ["k"], [None], Charge("k", "2/minute")):
                with pytest.raises(UsageError, match="Charge"):
                    await limiter.decide(wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="an algorithm must be a string"):
                await limiter.hit("k", "2/minute", algorithm=[])  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                await limiter.hit("k", "nonsense")

    run(main())


def test_a_local_answer_costs_no_turn_of_the_loop() -> None:
    """The engine answers at once, so `hit` finishes without giving way to other tasks."""

    async def main() -> list[str]:
        limiter = AsyncLimiter()
        order: list[str] = []

        async def other() -> None:
            order.append("other")

        task = asyncio.create_task(other())
        await limiter.hit("k", "5/minute")
        order.append("hit")
        await task
        return order

    assert run(main()) == ["hit", "other"]


def test_a_cancelled_waiter_gives_its_place_back() -> None:
    """The last in line leaves, and the next one gets the same slot."""

    async def main() -> None:
        limit = AsyncLimiter().limit("k", "1/hour burst 1")
        await limit.acquire()
        waiter = asyncio.create_task(limit.acquire())
        await asyncio.sleep(0)
        assert (await limit.stats()).count == 2
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert (await limit.stats()).count == 1

    run(main())


def test_a_place_that_cannot_be_given_back_hides_no_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        engine = Failing()
        engine.fails["leave_line"] = DOWN
        limit = AsyncLimiter(engine).limit("k", "1/hour burst 1")
        await limit.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await limit.acquire()
        assert engine.asked[-1] == "leave_line"

    run(main())
    assert "could not be given back: connection refused" in caplog.text


def test_a_place_in_line_comes_back_once_everybody_behind_it_has_left() -> None:
    """Those behind have been told when to start, so until then an earlier place stays charged."""

    async def main() -> None:
        limit = AsyncLimiter().limit("k", "1/hour burst 1")
        await limit.acquire()
        first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert (await limit.stats()).count == 3
        second.cancel()
        await asyncio.wait([second])
        assert (await limit.stats()).count == 1

    run(main())


def test_a_hundred_waiters_that_are_cancelled_do_not_hold_up_a_newcomer() -> None:
    """A hundred an hour, and the newcomer would wait for an hour if their places stayed charged."""

    async def main() -> None:
        limit = AsyncLimiter().limit("k", "100/hour burst 1")
        await limit.acquire()
        waiters = [asyncio.create_task(limit.acquire()) for _ in range(100)]
        await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters)
        assert all(waiter.cancelled() for waiter in waiters)
        with pytest.raises(RateLimitExceeded) as denied:
            await limit.acquire(timeout=0)
        assert denied.value.retry_after <= 36

    run(main())


def test_many_waiters_are_spaced_by_the_bucket() -> None:
    """Twenty tasks at once, ten milliseconds apart: none starts early on the real clock."""

    async def main() -> list[float]:
        limit = AsyncLimiter().limit("k", "100/second burst 1")
        loop = asyncio.get_running_loop()
        starts: list[float] = []

        async def work() -> None:
            await limit.acquire()
            starts.append(loop.time())

        begin = loop.time()
        await asyncio.gather(*(work() for _ in range(20)))
        return [start - begin for start in starts]

    for position, start in enumerate(run(main())):
        assert start >= position * 0.01 - 0.002  # The loop's timer may fire a tick early.


def test_with_and_decorator() -> None:
    async def main() -> None:
        limit = AsyncLimiter().limit("k", "2/minute", mode="immediate")

        @limit
        async def fetch(path: str) -> str:
            """Fetch it."""
            return path

        assert inspect.iscoroutinefunction(fetch)
        assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")
        assert await fetch("/a") == "/a"
        async with limit as decision:
            assert isinstance(decision, Decision)
        with pytest.raises(RateLimitExceeded):
            await fetch("/b")
        with pytest.raises(UsageError, match="not a coroutine function"):
            limit(len)  # type: ignore[type-var]

    run(main())


def test_an_async_generator_acquires_at_its_first_item() -> None:
    async def main() -> None:
        limit = AsyncLimiter().limit("k", "1/minute", mode="immediate")

        @limit
        async def pages(count: int) -> AsyncIterator[int]:
            """Read them."""
            for number in range(count):
                yield number

        assert inspect.isasyncgenfunction(pages)
        assert (pages.__name__, pages.__doc__) == ("pages", "Read them.")
        found = pages(3)
        assert (await limit.stats()).count == 0
        assert [number async for number in found] == [0, 1, 2]
        assert (await limit.stats()).count == 1
        with pytest.raises(RateLimitExceeded):
            await anext(pages(3))

    run(main())


def test_a_limited_async_generator_can_be_talked_to_as_before() -> None:
    """What is sent, thrown or closed from outside reaches the generator inside."""

    async def main() -> list[object]:
        heard: list[object] = []

        @AsyncLimiter().limit("k", "10/minute")
        async def echo() -> AsyncGenerator[str, str]:
            try:
                heard.append((yield "first"))
                try:
                    yield "second"
                except ZeroDivisionError:
                    yield "third"
            finally:
                heard.append("closed")

        talk = echo()
        assert await anext(talk) == "first"
        assert await talk.asend("hello") == "second"
        assert await talk.athrow(ZeroDivisionError) == "third"
        await talk.aclose()
        short = echo()
        await anext(short)
        await short.asend("again")
        with pytest.raises(KeyError):
            await short.athrow(KeyError)
        return heard

    assert run(main()) == ["hello", "closed", "again", "closed"]


def test_waits_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """On the limiter's own logger, for units, reservations and slots alike."""

    async def main() -> None:
        limiter = AsyncLimiter(clock=ManualClock(), logger=logging.getLogger("app.limits"))
        bucket = limiter.limit("bucket", "10/second burst 1")
        await bucket.acquire()
        await bucket.acquire()
        async with bucket.reserve(1):
            pass
        slots = limiter.concurrency("slots", 1)
        async with slots.slot():
            with pytest.raises(RateLimitExceeded):
                async with slots.slot(timeout=0.001):
                    pytest.fail("the slot is held")

    caplog.set_level(logging.DEBUG, "app.limits")
    run(main())
    waits = [record for record in caplog.records if record.name == "app.limits"]
    assert waits[0].getMessage() == "waiting 0.100 s for 'bucket'"
    assert [record.args[1] for record in waits[:3]] == ["bucket", "bucket", "slots"]  # type: ignore[index]


def test_reserve_and_settle() -> None:
    async def main() -> None:
        tokens = AsyncLimiter().limit("llm", "1000/hour")
        async with tokens.reserve(cost=500) as reservation:
            assert await reservation.settle(120)
            with pytest.raises(UsageError, match="already settled"):
                await reservation.settle(1)
        assert (await tokens.stats()).count == 120
        with pytest.raises(ZeroDivisionError):
            async with tokens.reserve(cost=500):
                _ = 1 / 0
        assert (await tokens.stats()).count == 120

    run(main())


def test_a_settlement_that_was_not_sent_can_be_tried_again() -> None:
    async def main() -> None:
        engine = Failing()
        limit = AsyncLimiter(engine).limit("llm", "100/hour")
        async with limit.reserve(50) as reservation:
            engine.fails["settle"] = DOWN
            with pytest.raises(EngineError):
                await reservation.settle(20)
            engine.fails.clear()
            assert await reservation.settle(30)
        assert (await limit.stats()).count == 30

    run(main())


def test_a_settlement_whose_answer_is_lost_is_not_tried_again() -> None:
    async def main() -> None:
        engine = Failing()
        async with AsyncLimiter(engine).limit("llm", "100/hour").reserve(50) as reservation:
            engine.fails["settle"] = LOST
            with pytest.raises(EngineError):
                await reservation.settle(20)
        assert engine.asked.count("settle") == 1

    run(main())


def test_a_failing_refund_does_not_hide_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = Failing()
        engine.fails["settle"] = DOWN
        with pytest.raises(KeyError, match="mine"):
            async with AsyncLimiter(engine).limit("llm", "100/hour").reserve(50):
                raise KeyError("mine")

    run(main())
    assert "a reservation of 'llm' could not be settled" in caplog.text


def test_one_object_cannot_hold_two_slots() -> None:
    """And when it has let go, it is a new holder."""

    async def main() -> None:
        reports = AsyncLimiter().concurrency("reports", 1)
        slot = reports.slot()
        async with slot:
            first = slot.token
            with pytest.raises(UsageError, match="already held"):
                await slot.__aenter__()
            with pytest.raises(RateLimitExceeded):
                await reports.slot().__aenter__()
        async with slot:
            assert slot.token != first
            assert (await reports.stats()).count == 1
        assert (await reports.stats()).count == 0

    run(main())


def test_an_object_that_got_no_slot_can_be_used_again() -> None:
    async def main() -> None:
        reports = AsyncLimiter().concurrency("reports", 1)
        slot = reports.slot()
        async with reports.slot():
            with pytest.raises(RateLimitExceeded):
                await slot.__aenter__()
        async with slot:
            assert (await reports.stats()).count == 1

    run(main())


def test_a_finished_block_does_not_fail_because_its_slot_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        engine = Failing()
        engine.fails["release"] = DOWN
        async with AsyncLimiter(engine).concurrency("reports", 1).slot():
            pass
        with pytest.raises(KeyError, match="mine"):
            async with AsyncLimiter(engine).concurrency("k", 1).slot():
                raise KeyError("mine")

    run(main())
    assert "a slot of 'reports' could not be released" in caplog.text


@pytest.mark.parametrize(
    "error, asked",
    [
        (DOWN, ["decide"]),  # An outage takes one deadline, not two.
        (LOST, ["decide", "release"]),
        (asyncio.CancelledError(), ["decide", "release"]),
    ],
)
def test_a_slot_is_let_go_only_if_it_may_have_been_given(
    error: BaseException, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And if that fails too, the first error is the one that is told."""

    async def main() -> None:
        engine = Failing()
        engine.fails.update(decide=error, release=EngineError("again", transient=True))
        with pytest.raises(type(error)):
            await AsyncLimiter(engine).concurrency("reports", 1).slot().__aenter__()
        assert engine.asked == asked

    run(main())
    assert ("could not be released, and will expire: again" in caplog.text) == (len(asked) == 2)


def test_one_request_asks_at_most_128_limits() -> None:
    async def main() -> None:
        limiter = AsyncLimiter()
        most = ";".join(f"9/{seconds}s" for seconds in range(1, MAX_STEPS + 1))
        assert await limiter.hit("k", most)
        with pytest.raises(UsageError, match="at most 128 limits"):
            await limiter.hit("k", most + ";9/h")
        with pytest.raises(UsageError, match="at most 128 limits"):
            limiter.limit("k", most + ";9/h")
        with pytest.raises(UsageError, match="at most 128 limits"):
            await limiter.decide([Charge("k", most), Charge("k", "9/second")])

    run(main())


def test_slots_are_held_renewed_and_let_go() -> None:
    async def main() -> None:
        reports = AsyncLimiter().concurrency("reports", 1)
        async with reports.slot(ttl=0.5):
            await asyncio.sleep(0.8)  # Slots are renewed by the loop's own timer.
            assert await reports.stats() == Stats(1, 1, 0.0, 0)
            assert not await reports.check()
            with pytest.raises(RateLimitExceeded):
                async with reports.slot():
                    pytest.fail("the slot is held")
        async with reports.slot(timeout=1):
            pass
        assert (await reports.stats()).count == 0

    run(main())


def test_a_slot_that_was_taken_away_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        reports = AsyncLimiter().concurrency("reports", 1)
        async with reports.slot(ttl=0.003) as slot:
            await reports.reset()
            for _ in range(1000):
                if slot.lost:
                    break
                await asyncio.sleep(0.005)  # As above: until the renewal finds out.
            assert slot.lost

    run(main())
    assert "a slot of 'reports' expired while it was held" in caplog.text


def test_a_waiter_takes_over_a_slot_that_is_let_go() -> None:
    async def main() -> None:
        reports = AsyncLimiter().concurrency("reports", 1)
        async with reports.slot():
            waiter = asyncio.create_task(reports.slot(timeout=5).__aenter__())
            await asyncio.sleep(0.02)  # Time enough for a slot that was free.
            assert not waiter.done()
        held = await waiter
        await held.__aexit__(None, None, None)

    run(main())


def test_one_engine_serves_both_worlds() -> None:
    """A limiter in a thread and one in a loop share one budget."""

    async def main() -> None:
        engine = MemoryEngine()
        assert Limiter(engine).hit("k", "2/hour")
        assert await AsyncLimiter(engine).hit("k", "2/hour")
        assert not await AsyncLimiter(Awaited(engine)).hit("k", "2/hour")

    run(main())
