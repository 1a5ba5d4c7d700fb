"""The library as its users meet it: `Limiter` in threads and plain functions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    AsyncLimiter,
    Charge,
    ConfigError,
    Decision,
    EngineError,
    ExponentialBackoff,
    Limiter,
    MemoryEngine,
    Rate,
    RateLimitExceeded,
    Stats,
    TokenBucket,
    UsageError,
)
from headgate.charge import MAX_STEPS
from headgate.testing import ManualClock
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from headgate import Limit
    from headgate.charge import ChargeSet
    from headgate.charge_kind import ChargeKind


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


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


class TestGolden:
    """Four a second, and five rapid calls."""

    def test_blocking_lets_the_fifth_wait_for_its_turn(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        igdb = limiter.limit("igdb:api", limit=4, window=1.0, algorithm="sliding_log")
        start_us = clock.now_us()
        waited = []
        for _ in range(5):
            assert igdb.acquire()
            waited.append(clock.now_us() - start_us)
        assert waited[:4] == [0, 0, 0, 0]
        assert 1_000_000 <= waited[4] <= 1_050_000  # The jitter is at most a twentieth of a second.

    def test_a_window_beyond_every_float_is_refused_like_any_other(self, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match="between 1 ms and 366 days"):
            limiter.limit("igdb:api", limit=4, window=10**400)

    def test_immediate_raises_on_the_fifth(self, limiter: Limiter) -> None:
        igdb = limiter.limit("igdb:api", "4/second", algorithm="sliding_log", mode="immediate")
        for _ in range(4):
            igdb.acquire()
        with pytest.raises(RateLimitExceeded) as caught:
            igdb.acquire()
        assert str(caught.value) == "Rate limit exceeded for key 'igdb:api'"
        assert (caught.value.key, caught.value.retry_after) == ("igdb:api", 1.0)

    def test_check_after_three_hits_takes_nothing(self, limiter: Limiter) -> None:
        igdb = limiter.limit("igdb:api", "4/second", algorithm="sliding_log")
        for _ in range(3):
            igdb.acquire()
        assert [igdb.check().remaining for _ in range(3)] == [1, 1, 1]
        assert igdb.stats() == Stats(3, 4, 1.0, 1)
        assert not igdb.check(cost=2)


class TestHit:
    """One call, one answer, no waiting."""

    def test_a_decision_says_everything(self, limiter: Limiter) -> None:
        decision = limiter.hit("user:42", "2/minute", algorithm="fixed_window")
        assert decision
        assert (decision.key, decision.allowed, decision.limit, decision.remaining) == (
            "user:42",
            True,
            2,
            1,
        )
        assert (decision.retry_after, decision.reset_after, decision.window) == (0.0, 60.0, 60.0)
        assert (decision.algorithm, decision.source, decision.rule) == (
            "fixed_window",
            "engine",
            None,
        )
        assert (decision.degraded, decision.never, decision.backoff_level) == (False, False, 0)
        assert decision.burst == 2
        assert decision.rules == (decision,)

    @pytest.mark.parametrize("algorithm", ["token_bucket", "adaptive"])
    def test_a_bucket_says_how_much_it_holds(self, algorithm: str, limiter: Limiter) -> None:
        """There may be more left than the limit says, but never more than the burst."""
        decision = limiter.check("k", "10/minute burst 25", algorithm=algorithm)
        assert (decision.limit, decision.burst) == (10, 25)
        assert limiter.check("other", "10/minute burst 25").remaining == 25

    def test_a_denial_is_falsy_and_never_raised(self, limiter: Limiter) -> None:
        limiter.hit("user:42", "1/minute")
        denied = limiter.hit("user:42", "1/minute")
        assert not denied
        assert 60 < denied.retry_after <= 120

    def test_the_default_algorithm_follows_the_rate(self, limiter: Limiter) -> None:
        assert limiter.hit("k", "10/minute").algorithm == "sliding_window"
        assert limiter.hit("k", "10/minute burst 5").algorithm == "token_bucket"
        assert limiter.hit("k", "10/calendar day").algorithm == "fixed_window"

    def test_several_rates_are_taken_together(self, limiter: Limiter) -> None:
        answers = [limiter.hit("k", "2/second; 3/hour") for _ in range(3)]
        assert [bool(answer) for answer in answers] == [True, True, False]
        assert [one.remaining for one in answers[2].rules] == [0, 1]
        assert answers[2].limit == 2

    def test_a_cost_that_never_fits_is_marked_as_such(self, limiter: Limiter) -> None:
        decision = limiter.hit("k", "5/minute", cost=6)
        assert (decision.never, decision.retry_after) == (True, math.inf)
        assert limiter.check("k", "5/minute", cost=5)

    def test_a_cost_of_nothing_only_looks(self, limiter: Limiter) -> None:
        assert limiter.hit("k", "5/minute", cost=0).remaining == 5

    def test_a_limit_of_0_denies_everything(self, limiter: Limiter) -> None:
        for rate in ("0/minute", Rate(0, 60)):
            for algorithm in ("fixed_window", "sliding_window", "sliding_log", "token_bucket"):
                assert limiter.hit("k", rate, algorithm=algorithm).never

    def test_rates_come_as_text_as_rates_and_as_limits(self, limiter: Limiter) -> None:
        for rate in ("10/second burst 10", Rate(10, 1, 10), TokenBucket(10, 1_000_000, 10)):
            limiter.hit("k", rate)
        assert limiter.check("k", "10/second burst 10").remaining == 7

    def test_changing_the_limit_keeps_what_was_used(self, limiter: Limiter) -> None:
        limiter.hit("k", "10/minute", cost=4)
        assert limiter.hit("k", "20/minute").remaining == 15

    def test_many_different_rates_do_not_pile_up(
        self, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headgate._limiter_base.MAX_BOUND", 10)
        for number in range(1, 100):
            assert limiter.hit("k", f"1000/{number} minutes")
        assert len(limiter._bound) <= 10


class TestAcquire:
    """Waiting, and when not to."""

    def test_a_cost_that_never_fits_raises_at_once(self, limiter: Limiter) -> None:
        for algorithm in ("fixed_window", "sliding_window", "sliding_log", "token_bucket"):
            with pytest.raises(RateLimitExceeded) as caught:
                limiter.limit("k", "4/second", algorithm=algorithm).acquire(cost=5)
            assert caught.value.decision.never

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log", "token_bucket"])
    def test_a_wait_that_cannot_end_in_time_is_not_begun(
        self, algorithm: str, limiter: Limiter, clock: ManualClock
    ) -> None:
        limit = limiter.limit("k", "1/minute", algorithm=algorithm)
        limit.acquire()
        before_us = clock.now_us()
        with pytest.raises(RateLimitExceeded):
            limit.acquire(timeout=30)
        assert clock.now_us() == before_us
        limit.acquire(timeout=60)
        assert clock.now_us() >= before_us + 60_000_000

    def test_a_timeout_wins_over_the_mode(self, limiter: Limiter, clock: ManualClock) -> None:
        limit = limiter.limit("k", "1/second", mode="immediate", algorithm="token_bucket")
        limit.acquire()
        start_us = clock.now_us()
        limit.acquire(timeout=1)
        assert clock.now_us() == start_us + 1_000_000

    def test_a_bucket_serves_first_come_first(self, limiter: Limiter, clock: ManualClock) -> None:
        """Slots are booked in order, one emission apart, exactly."""
        limit = limiter.limit("k", "10/second burst 1")
        starts = []
        for _ in range(4):
            limit.acquire()
            starts.append(clock.now_us())
        assert [start - starts[0] for start in starts] == [0, 100_000, 200_000, 300_000]

    def test_a_completed_wait_leaves_nothing_to_wait_for(self, limiter: Limiter) -> None:
        """The units are there when `acquire` returns, so there is nothing left to wait for."""
        limit = limiter.limit("k", "10/second burst 1")
        limit.acquire()
        decision = limit.acquire()
        assert (decision.allowed, decision.retry_after, decision.reset_after) == (True, 0.0, 0.1)

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
    def test_a_timeout_is_not_overshot_by_jitter(
        self, algorithm: str, limiter: Limiter, clock: ManualClock
    ) -> None:
        """However the dice fall, the last look comes when time is up, and not before it can pass."""
        limit = limiter.limit("k", "1/second", algorithm=algorithm)
        for _ in range(50):
            limit.acquire()
            start_us = clock.now_us()
            retry_after_us = limit.check().retry_after_us
            limit.acquire(timeout=retry_after_us / 1_000_000)
            assert clock.now_us() - start_us == retry_after_us

    def test_waiting_on_backoff_does_not_escalate(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        """A waiter peeks, so that its own patience is not held against it."""
        backoff = ExponentialBackoff(1, 60_000_000, denials_per_level=1)
        limit = limiter.limit("k", backoff)
        limit.acquire()
        limit.acquire()
        assert limit.check().backoff_level == 0
        assert limit.hit().backoff_level == 1

    def test_an_interrupted_waiter_gives_its_place_back(self, clock: ManualClock) -> None:
        """The last in line can leave; the next one gets the same slot."""

        class Interrupted(ManualClock):
            def sleep_us(self, duration_us: int) -> None:
                raise KeyboardInterrupt

        clock = Interrupted()
        limit = Limiter(MemoryEngine(clock=clock)).limit("k", "1/second burst 1")
        limit.acquire()
        with pytest.raises(KeyboardInterrupt):
            limit.acquire()
        assert limit.stats().count == 1

    def test_a_place_that_cannot_be_given_back_hides_no_interrupt(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Interrupted(ManualClock):
            def sleep_us(self, duration_us: int) -> None:
                raise KeyboardInterrupt

        engine = Failing(Interrupted())
        engine.fails["leave_line"] = DOWN
        limit = Limiter(engine).limit("k", "1/second burst 1")
        limit.acquire()
        with pytest.raises(KeyboardInterrupt):
            limit.acquire()
        assert engine.asked[-1] == "leave_line"
        assert "could not be given back: connection refused" in caplog.text

    @pytest.mark.parametrize("timeout", [-1, float("nan"), True, "1"])
    def test_a_timeout_is_a_number_of_seconds(self, timeout: float, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match="timeout"):
            limiter.limit("k", "1/second").acquire(timeout=timeout)

    def test_an_endless_timeout_is_no_timeout(self, limiter: Limiter) -> None:
        limit = limiter.limit("k", "1/second", algorithm="token_bucket")
        decisions = [limit.acquire(timeout=math.inf) for _ in range(3)]
        assert all(decisions)


class TestContextManagerAndDecorator:
    """`with limit:` and `@limit`."""

    def test_with_takes_one_unit(self, limiter: Limiter) -> None:
        limit = limiter.limit("k", "2/second", mode="immediate")
        with limit as decision:
            assert isinstance(decision, Decision)
        with limit:
            pass
        with pytest.raises(RateLimitExceeded), limit:
            pytest.fail("the block must not be entered")

    def test_only_functions_can_be_decorated(self, limiter: Limiter) -> None:
        thing: Any = 5
        with pytest.raises(UsageError, match="a limit decorates a function, not 5"):
            limiter.limit("k", "1/s")(thing)

    def test_a_decorated_function_keeps_its_signature(self, limiter: Limiter) -> None:
        @limiter.limit("k", "1/second", mode="immediate")
        def fetch(path: str, *, retries: int = 3) -> str:
            """Fetch it."""
            return f"{path}:{retries}"

        assert fetch("/a", retries=1) == "/a:1"
        assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")
        assert str(inspect.signature(fetch)) == "(path: 'str', *, retries: 'int' = 3) -> 'str'"
        with pytest.raises(RateLimitExceeded):
            fetch("/b")

    def test_it_also_works_inside_an_event_loop(self, limiter: Limiter) -> None:
        """A plain limiter waits without blocking the loop when it guards a coroutine function."""
        limit = limiter.limit("k", "2/second", algorithm="token_bucket")

        @limit
        async def fetch(number: int) -> int:
            return number

        async def main() -> list[int]:
            async with limit:
                return [await fetch(1), await fetch(2)]

        assert inspect.iscoroutinefunction(fetch)
        assert asyncio.run(main()) == [1, 2]

    def test_a_generator_function_acquires_when_it_is_called(self, limiter: Limiter) -> None:
        """As any function does; going through what it yields costs nothing more."""
        limit = limiter.limit("k", "1/second", mode="immediate")

        @limit
        def pages(count: int) -> Iterator[int]:
            yield from range(count)

        found = pages(3)
        assert limit.stats().count == 1
        assert list(found) == [0, 1, 2]
        with pytest.raises(RateLimitExceeded):
            pages(3)

    def test_an_async_generator_acquires_at_its_first_item(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        """It waits in the event loop, and other tasks go on meanwhile."""
        limit = limiter.limit("k", "1/second burst 1")
        order: list[str] = []

        @limit
        async def pages(name: str) -> AsyncIterator[str]:
            for number in range(2):
                yield f"{name}{number}"

        async def read(name: str) -> None:
            order.append(f"{name} begins")
            order.extend([page async for page in pages(name)])

        async def main() -> None:
            await asyncio.gather(read("a"), read("b"))

        assert inspect.isasyncgenfunction(pages)
        start_us = clock.now_us()
        asyncio.run(main())
        assert order == ["a begins", "a0", "a1", "b begins", "b0", "b1"]
        assert clock.now_us() - start_us == 1_000_000


class TestReserve:
    """Charge an estimate, settle the truth."""

    def test_less_than_the_estimate_is_given_back(self, limiter: Limiter) -> None:
        tokens = limiter.limit("llm", "1000/minute")
        with tokens.reserve(cost=500) as reservation:
            assert tokens.stats().remaining == 500
            assert reservation.settle(120)
        assert tokens.stats().count == 120

    def test_more_is_charged_even_over_the_limit(self, limiter: Limiter) -> None:
        tokens = limiter.limit("llm", "1000/minute")
        with tokens.reserve(cost=900) as reservation:
            reservation.settle(1500)
        assert tokens.stats() == Stats(1500, 1000, 60.0, 0)

    def test_an_exception_gives_everything_back(self, limiter: Limiter) -> None:
        tokens = limiter.limit("llm", "1000/minute")
        with pytest.raises(ZeroDivisionError), tokens.reserve(cost=900):
            _ = 1 / 0
        assert tokens.stats().count == 0

    def test_leaving_without_settling_keeps_the_estimate(self, limiter: Limiter) -> None:
        tokens = limiter.limit("llm", "1000/minute")
        with tokens.reserve(cost=300) as reservation:
            pass
        assert reservation.settled
        assert tokens.stats().count == 300

    def test_it_settles_once(self, limiter: Limiter) -> None:
        with limiter.limit("llm", "1000/minute").reserve(cost=300) as reservation:
            reservation.settle(1)
            with pytest.raises(UsageError, match="already settled"):
                reservation.settle(2)

    def test_it_must_be_entered_first_and_only_once(self, limiter: Limiter) -> None:
        reservation = limiter.limit("llm", "1000/minute").reserve(cost=300)
        with pytest.raises(UsageError, match="enter the reservation"):
            reservation.settle(1)
        with reservation, pytest.raises(UsageError, match="only once"):
            reservation.acquire()

    def test_a_late_settlement_changes_nothing(self, limiter: Limiter, clock: ManualClock) -> None:
        tokens = limiter.limit("llm", "1000/hour")
        with tokens.reserve(cost=300, ttl=10) as reservation:
            clock.advance(10)
            assert not reservation.settle(0)
        assert tokens.stats().count == 300

    def test_it_waits_or_raises_like_acquire(self, limiter: Limiter, clock: ManualClock) -> None:
        start_us = clock.now_us()
        tokens = limiter.limit("llm", "1000/minute", algorithm="token_bucket")
        tokens.acquire(cost=1000)
        with pytest.raises(RateLimitExceeded), tokens.reserve(cost=500, timeout=10):
            pytest.fail("there is no room within ten seconds")
        with tokens.reserve(cost=500):
            assert clock.now_us() >= start_us + 30_000_000

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), True, "1", 1e9])
    def test_the_time_to_live_is_checked(self, ttl: float, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match="ttl"):
            limiter.limit("llm", "1000/minute").reserve(1, ttl=ttl)


class TestFailingSettlement:
    """What becomes of a reservation when the engine cannot be told the real cost."""

    def test_a_settlement_that_was_not_sent_can_be_tried_again(self) -> None:
        engine = Failing()
        limit = Limiter(engine).limit("llm", "100/hour")
        with limit.reserve(50) as reservation:
            engine.fails["settle"] = DOWN
            with pytest.raises(EngineError):
                reservation.settle(20)
            unsettled = not reservation.settled
            engine.fails.clear()
            assert reservation.settle(30)
        assert unsettled
        assert reservation.settled
        assert limit.stats().count == 30

    def test_a_settlement_whose_answer_is_lost_is_not_tried_again(self) -> None:
        engine = Failing()
        limit = Limiter(engine).limit("llm", "100/hour")
        with limit.reserve(50) as reservation:
            engine.fails["settle"] = LOST
            with pytest.raises(EngineError):
                reservation.settle(20)
            assert reservation.settled
            with pytest.raises(UsageError, match="already settled"):
                reservation.settle(20)
        assert engine.asked.count("settle") == 1

    def test_a_cost_that_could_not_be_settled_is_settled_on_leaving(self) -> None:
        """The failure that ends the block is no reason to give everything back."""
        engine = Failing()
        limit = Limiter(engine).limit("llm", "100/hour")

        def use() -> None:
            with limit.reserve(50) as reservation:
                engine.fails["settle"] = DOWN
                try:
                    reservation.settle(20)
                finally:
                    engine.fails.clear()

        with pytest.raises(EngineError):
            use()
        assert limit.stats().count == 20

    @pytest.mark.parametrize("error", [DOWN, LOST])
    def test_a_failing_refund_does_not_hide_the_exception(
        self, error: EngineError, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = Failing()
        engine.fails["settle"] = error
        limit = Limiter(engine).limit("llm", "100/hour")
        with pytest.raises(KeyError, match="mine"), limit.reserve(50):
            raise KeyError("mine")
        assert "a reservation of 'llm' could not be settled" in caplog.text
        assert limit.stats().count == 50

    def test_a_finished_block_does_not_fail_for_its_settlement(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = Failing()
        engine.fails["settle"] = DOWN
        with Limiter(engine).limit("llm", "100/hour").reserve(50):
            pass
        assert "its estimate stays charged: connection refused" in caplog.text


def assert_renewed(limiter: Limiter, clock: ManualClock) -> None:
    """Hold a slot for longer than its time to live; it is renewed each time that a part of that has passed."""
    reports = limiter.concurrency("reports", 1)
    with reports.slot(ttl=0.06) as slot:
        for _ in range(5):
            clock.advance(us=40_000)
            wait_until(
                lambda: limiter.engine.usage("reports", slot.limit).answer[3] == 60_000,
                "the slot is renewed",
            )
        assert not reports.check()
        assert not slot.lost


class TestConcurrency:
    """So many at the same time."""

    def test_slots_are_held_and_let_go(self, limiter: Limiter) -> None:
        reports = limiter.concurrency("reports", 2)
        with reports.slot(), reports.slot():
            assert reports.stats() == Stats(2, 2, 0.0, 0)
            assert not reports.check()
            with pytest.raises(RateLimitExceeded) as caught, reports.slot(ttl=30):
                pytest.fail("both slots are held")
            assert caught.value.retry_after == 30.0
        assert reports.stats().count == 0

    def test_an_exception_lets_go(self, limiter: Limiter) -> None:
        reports = limiter.concurrency("reports", 1)
        with pytest.raises(ZeroDivisionError), reports.slot():
            _ = 1 / 0
        assert reports.check()

    def test_a_waiter_gets_the_slot_when_its_holder_dies(
        self, limiter: Limiter, clock: ManualClock
    ) -> None:
        """Nobody renews on a clock that stands still for the holder: after `ttl` the slot is free."""
        reports = limiter.concurrency("reports", 1)
        dead = reports.slot(ttl=30)
        dead.__enter__()
        start_us = clock.now_us()
        with reports.slot(timeout=60):
            assert clock.now_us() - start_us >= 30_000_000
        dead.__exit__()
        assert reports.stats().count == 0

    def test_a_held_slot_is_renewed(self) -> None:
        """A slot of 60 ms is still held after 200, by the clock that it expires by."""
        clock = ManualClock()
        with Limiter(MemoryEngine(clock=clock)) as limiter:
            assert_renewed(limiter, clock)

    def test_a_slot_that_was_taken_away_is_lost(
        self, limiter: Limiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The holder learns of it, and the log says so."""
        reports = limiter.concurrency("reports", 1)
        with reports.slot(ttl=0.003) as slot:
            reports.reset()
            for _ in range(1000):
                if slot.lost:
                    break
                threading.Event().wait(0.005)
        assert slot.lost
        assert "a slot of 'reports' expired while it was held" in caplog.text

    def test_a_slot_taken_after_closing_is_renewed(self) -> None:
        """`close` ends the thread; the next slot starts another."""
        clock = ManualClock()
        limiter = Limiter(MemoryEngine(clock=clock))
        for _ in range(2):
            assert_renewed(limiter, clock)
            limiter.close()

    def test_closing_ends_the_thread_even_if_a_slot_comes_at_the_same_time(self) -> None:
        limiter = Limiter(MemoryEngine())
        reports = limiter.concurrency("reports", 1)
        for _ in range(100):
            with reports.slot():
                closing = threading.Thread(target=limiter.close)
                closing.start()
            with reports.slot():
                closing.join(10)
                assert not closing.is_alive()
        limiter.close()

    def test_more_slots_than_there_are_never_fit(self, limiter: Limiter) -> None:
        with pytest.raises(RateLimitExceeded) as caught:
            limiter.concurrency("reports", 2).slot(cost=3, timeout=None).__enter__()
        assert caught.value.decision.never

    def test_one_object_cannot_hold_two_slots(self, limiter: Limiter) -> None:
        reports = limiter.concurrency("reports", 1)
        slot = reports.slot()
        with slot:
            with pytest.raises(UsageError, match="already held"):
                slot.__enter__()
            assert reports.stats().count == 1
        assert reports.stats().count == 0

    def test_an_object_that_is_used_again_is_a_new_holder(self, limiter: Limiter) -> None:
        """A name from before would renew what another one thinks is his."""
        reports = limiter.concurrency("reports", 1)
        slot = reports.slot()
        with slot:
            first = slot.token
        with slot:
            assert slot.token != first
            with pytest.raises(RateLimitExceeded):
                reports.slot().__enter__()

    def test_an_object_that_got_no_slot_can_be_used_again(self, limiter: Limiter) -> None:
        reports = limiter.concurrency("reports", 1)
        slot = reports.slot()
        with reports.slot(), pytest.raises(RateLimitExceeded):
            slot.__enter__()
        with slot:
            assert reports.stats().count == 1

    def test_a_renewal_of_an_earlier_time_says_nothing_about_this_one(self) -> None:
        class Slow(MemoryEngine):
            def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
                slot.__exit__()
                slot.__enter__()
                return super().renew(key, limit, token, rule)

        slot = Limiter(Slow()).concurrency("reports", 1).slot()
        with slot:
            assert slot.renew()
            assert not slot.lost

    def test_a_finished_block_does_not_fail_because_its_slot_stays(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = Failing()
        engine.fails["release"] = DOWN
        slot = Limiter(engine).concurrency("reports", 1).slot()
        with slot:
            pass
        assert "a slot of 'reports' could not be released" in caplog.text
        with pytest.raises(KeyError, match="mine"), Limiter(engine).concurrency("k", 1).slot():
            raise KeyError("mine")

    @pytest.mark.parametrize(
        "error, asked",
        [
            (DOWN, ["decide"]),  # An outage takes one deadline, not two.
            (LOST, ["decide", "release"]),
            (KeyboardInterrupt(), ["decide", "release"]),
        ],
    )
    def test_a_slot_is_let_go_only_if_it_may_have_been_given(
        self, error: BaseException, asked: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """And if that fails too, the first error is the one that is told."""
        engine = Failing()
        engine.fails.update(decide=error, release=EngineError("again", transient=True))
        with pytest.raises(type(error)) as caught:
            Limiter(engine).concurrency("reports", 1).slot().__enter__()
        assert caught.value is error
        assert engine.asked == asked
        assert ("could not be released, and will expire: again" in caplog.text) == (len(asked) == 2)

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), True, "1", float("inf")])
    def test_the_time_to_live_is_checked(self, ttl: float, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match="ttl"):
            limiter.concurrency("reports", 1).slot(ttl=ttl)

    def test_an_invalid_ttl_is_reported_in_seconds(self, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match=r"between 0\.001 and 86400 s, not 90000"):
            limiter.concurrency("reports", 1).slot(ttl=90_000)


class TestDecide:
    """Several keys, all or nothing."""

    def test_all_are_charged_or_none(self, limiter: Limiter) -> None:
        user, org = Charge("user:42", "2/minute"), Charge("org:7", "5/minute", cost=3)
        assert limiter.decide([user, org])
        denied = limiter.decide([user, org])
        assert not denied
        assert (denied.key, denied.limit) == ("org:7", 5)
        assert limiter.check("user:42", "2/minute").remaining == 1
        assert [(one.key, bool(one)) for one in denied.rules] == [
            ("user:42", True),
            ("org:7", False),
        ]

    def test_nothing_to_decide_is_an_error(self, limiter: Limiter) -> None:
        nothings: list[Iterable[Charge]] = [[], (), iter(()), (charge for charge in list[Charge]())]
        for nothing in nothings:
            with pytest.raises(UsageError, match="at least one Charge"):
                limiter.decide(nothing)

    @pytest.mark.parametrize(
        "charges", [["user:42"], [None], [("user:42", "2/minute")], Charge("k", "2/minute"), 5]
    )
    def test_only_charges_can_be_decided(self, charges: list[Charge], limiter: Limiter) -> None:
        with pytest.raises(UsageError, match=r"Charge\("):
            limiter.decide(charges)

    def test_one_request_asks_at_most_128_limits(self, limiter: Limiter) -> None:
        """All of them are decided in one go, so a request without bounds would hold up everybody."""
        most = ";".join(f"9/{seconds}s" for seconds in range(1, MAX_STEPS + 1))
        more = most + ";9/h"
        assert limiter.hit("k", most)
        assert limiter.limit("k", most).hit()
        assert limiter.decide([Charge(f"k{number}", "9/second") for number in range(MAX_STEPS)])
        for ask in (
            lambda: limiter.hit("k", more),
            lambda: limiter.check("k", more),
            lambda: limiter.limit("k", more),
            lambda: limiter.decide([Charge("k", most), Charge("k", "9/second")]),
            lambda: limiter.decide([Charge(f"{number}", "1/second") for number in range(129)]),
        ):
            with pytest.raises(UsageError, match=r"at most 128 limits, over all .* not 129"):
                ask()

    def test_a_generator_of_charges_will_do(self, limiter: Limiter) -> None:
        assert limiter.decide(Charge(key, "2/minute") for key in "ab")
        assert limiter.check("b", "2/minute").remaining == 1


class TestEngines:
    """How an engine is named."""

    def test_namespaces_keep_keys_apart(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        one, other = Limiter(engine, namespace="one"), Limiter(engine, namespace="other")
        assert one.hit("k", "1/minute")
        assert other.hit("k", "1/minute")
        assert not one.hit("k", "1/minute")

    @pytest.mark.parametrize("namespace", [5, 0, None, b"shop", "\ud800"])
    def test_a_namespace_is_text(self, namespace: str) -> None:
        with pytest.raises(UsageError, match="namespace"):
            Limiter(namespace=namespace)
        with pytest.raises(UsageError, match="namespace"):
            AsyncLimiter(namespace=namespace)

    def test_a_url_carries_options(self) -> None:
        engine = Limiter("memory://?max_keys=7").engine.unguarded
        assert isinstance(engine, MemoryEngine)
        assert engine.max_keys == 7

    @pytest.mark.parametrize(
        "url, reason",
        [
            ("", "an engine is given by a URL; the engines are memory://"),
            ("memory", "an engine is given by a URL"),
            ("redis", "an engine is given by a URL"),
            ("memcached://localhost", "there is no engine 'memcached'"),
            ("memory://localhost", "only options"),
            ("memory:///tmp/x", "only options"),
            ("memory://?size=3", "there is no option 'size'"),
            ("memory://?max_keys=many", "must be a whole number"),
            ("memory://?max_keys=1&max_keys=2", "given twice"),
            ("memory://?max_keys=0", "max_keys must be between 1"),
            ("memory://?max_keys=", "must be a whole number"),
            ("memory://?max_keys=1_0", "the option 'max_keys' must be a whole number"),
            ("memory://?max_keys=١٢", "must be a whole number"),
            ("memory://?max_keys=%205", "must be a whole number"),
            ("memory://?save_every=5", "save_every needs a state_file"),
            ("memory://?state_file=", "state_file"),
            ("memory://?state_file=%00", "state_file"),
            ("memory://?state_file=a.state&save_every=0", "save_every"),
            ("memory://?state_file=a.state&save_every=nan", "save_every"),
            ("memory://[", "check the brackets of its address"),
        ],
    )
    def test_a_wrong_url_is_a_clear_error(self, url: str, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            Limiter(url)

    def test_an_engine_brings_its_own_clock(self, clock: ManualClock) -> None:
        with pytest.raises(UsageError, match="clock"):
            Limiter(MemoryEngine(), clock=clock)

    def test_a_limiter_closes_only_what_it_opened(self, tmp_path: object) -> None:
        engine = MemoryEngine(state_file=f"{tmp_path}/a.state")
        Limiter(engine).close()
        engine.save()
        engine.close()
        with Limiter(f"memory://?state_file={tmp_path}/b.state") as limiter:
            limiter.hit("k", "5/hour")
        with Limiter(f"memory://?state_file={tmp_path}/b.state") as limiter:
            assert limiter.check("k", "5/hour").remaining == 4


BAD_KEYS = {
    "empty": "",
    "none": None,
    "number": 42,
    "bytes": b"key",
    "list": ["key"],
    "lone surrogate": "\ud800",
    "9 KB": "k" * 9_000,
    "9 KB in UTF-8": "é" * 4_500,
    "1 MB": "k" * 1_000_000,
}

GOOD_KEYS = ["a", " ", "\0", "\r\n\t", "🚪", "\u202egnp", "e\u0301", "é", "{", "}", "{}", "}x", "*"]
GOOD_KEYS += ["__proto__", "..", "a/b", "a_b:c", "a:b_c", "k" * 8_192, "' OR 1=1 --"]


class TestBadInput:
    """Refused early and whole, with a clear error, and nothing changed."""

    @pytest.mark.parametrize("name", BAD_KEYS)
    def test_bad_keys_are_refused_everywhere(self, name: str, limiter: Limiter) -> None:
        key: str = BAD_KEYS[name]  # type: ignore[assignment]
        calls: list[Callable[[], object]] = [
            lambda: limiter.hit(key, "5/minute"),
            lambda: limiter.check(key, "5/minute"),
            lambda: limiter.decide([Charge("fine", "5/minute"), Charge(key, "5/minute")]),
            lambda: limiter.limit(key, "5/minute"),
            lambda: limiter.concurrency(key, 5),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="key"):
                call()
        assert limiter.check("fine", "5/minute").remaining == 5

    @pytest.mark.parametrize("name", BAD_KEYS)
    def test_bad_keys_are_refused_also_beside_known_ones(self, name: str, limiter: Limiter) -> None:
        """Where everything else of the request has its fast path."""
        key: str = BAD_KEYS[name]  # type: ignore[assignment]
        limiter.hit("known", "5/minute")
        for others in ([], [Charge("known", "5/minute")]):
            with pytest.raises(UsageError, match="key"):
                limiter.decide([*others, Charge(key, "5/minute")])
        assert limiter.check("known", "5/minute").remaining == 4

    @pytest.mark.parametrize("rule", [5, ["rule"], b"rule", "\ud800"])
    def test_rules_that_are_no_text_are_refused(self, rule: str) -> None:
        with pytest.raises(UsageError, match="rule"):
            Charge("k", "5/minute", rule=rule)

    @pytest.mark.parametrize("kind", ["peek", None, 0, ["peek"]])
    def test_kinds_that_are_none_are_refused(self, kind: ChargeKind) -> None:
        with pytest.raises(UsageError, match="kind"):
            Charge("k", "5/minute", kind=kind)

    def test_any_other_text_is_a_key_of_its_own(self, limiter: Limiter) -> None:
        """Control characters, braces and look-alikes are data; no two of them are mixed up."""
        for key in GOOD_KEYS:
            assert limiter.hit(key, "1/minute")
        for key in GOOD_KEYS:
            assert not limiter.hit(key, "1/minute")

    @pytest.mark.parametrize(
        "cost",
        [
            *[-1, -(10**30), 1.5, 1.0, "1", "١", True, None, math.nan, math.inf, 2**53],
            pytest.param(10**5000, id="5000 digits"),
        ],
    )
    def test_bad_costs_are_refused_everywhere(self, cost: int, limiter: Limiter) -> None:
        calls: list[Callable[[], object]] = [
            lambda: limiter.hit("k", "5/minute", cost=cost),
            lambda: limiter.hit("k", "5/minute; 9/hour", cost=cost),
            lambda: limiter.check("k", "5/minute", cost=cost),
            lambda: Charge("k", "5/minute", cost=cost),
            lambda: limiter.limit("k", "5/minute").acquire(cost=cost),
            lambda: limiter.limit("k", "5/minute").hit(cost=cost),
            lambda: limiter.limit("k", "5/minute").reserve(cost=cost).acquire(),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="cost"):
                call()
        with limiter.limit("k", "5/minute").reserve(2) as reservation:
            with pytest.raises(UsageError, match="cost"):
                reservation.settle(cost)
            reservation.settle(0)
        assert limiter.check("k", "5/minute").remaining == 5

    @pytest.mark.parametrize("rate", [None, 5, 5.0, b"5/minute", [], {}, object(), ("5/minute",)])
    def test_a_rate_of_another_type_is_refused(self, rate: str, limiter: Limiter) -> None:
        with pytest.raises(UsageError, match="rate"):
            limiter.hit("k", rate)

    @pytest.mark.parametrize(
        "arguments, reason",
        [
            ({}, "needs a rate"),
            ({"limit": 4}, "needs a rate"),
            ({"window": 4}, "needs a rate"),
            ({"rate": "4/second", "limit": 4}, "not both"),
            ({"limit": True, "window": 1}, "whole number"),
            ({"limit": 4, "window": math.nan}, "window"),
            ({"limit": 4, "window": 0}, "window"),
            ({"limit": 4, "window": "1"}, "window"),
            ({"limit": 4, "window": 1, "burst": 0}, "burst"),
            ({"rate": "4/second", "mode": "later"}, "mode"),
            ({"rate": "4/second", "algorithm": "magic"}, "no algorithm"),
            ({"rate": "4/second", "algorithm": "concurrency"}, "slots"),
            ({"rate": "4/second burst 2", "algorithm": "fixed_window"}, "no burst"),
            ({"rate": TokenBucket(1, 1_000_000), "algorithm": "fixed_window"}, "already has"),
        ],
    )
    def test_a_limit_that_makes_no_sense_is_refused(
        self, arguments: dict[str, object], reason: str, limiter: Limiter
    ) -> None:
        with pytest.raises(UsageError, match=reason):
            limiter.limit("k", **arguments)  # type: ignore[call-overload]


class TestLog:
    """What happens out of sight is logged, under the name "headgate" or on a logger of your own."""

    def test_waits_are_logged(self, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
        limiter = Limiter(clock=clock, logger=logging.getLogger("app.limits"))
        caplog.set_level(logging.DEBUG, "app.limits")
        bucket = limiter.limit("the\nkey", "10/second burst 1")
        bucket.acquire()
        bucket.acquire()
        with bucket.reserve(1):
            pass
        window = limiter.limit("k" * 300, "1/second", algorithm="fixed_window")
        window.acquire()
        window.acquire(timeout=1)
        assert [record.name for record in caplog.records] == ["app.limits"] * 3
        assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 3
        bucket_line, reservation_line, window_line = caplog.messages
        assert bucket_line == r"waiting 0.100 s for 'the\nkey'"
        assert window_line.endswith(f" s for '{'k' * 256}'")
        assert reservation_line.startswith("waiting 0.1")

    def test_waits_for_slots_are_logged(
        self, limiter: Limiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "headgate")
        reports = limiter.concurrency("reports", 1)
        with reports.slot(), pytest.raises(RateLimitExceeded), reports.slot(timeout=0.001):
            pytest.fail("the slot is held")
        assert caplog.messages
        assert all(
            message.startswith("waiting 0.00") and message.endswith(" s for 'reports'")
            for message in caplog.messages
        )

    def test_nothing_is_logged_without_a_wait(
        self, limiter: Limiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        limiter.hit("k", "1/second")
        limiter.hit("k", "1/second")
        limiter.limit("other", "1/second").acquire()
        assert not caplog.messages


def test_errors_and_decisions_survive_pickling(limiter: Limiter) -> None:
    """Worker pools send both from process to process."""
    limiter.hit("k", "1/minute")
    decision = limiter.hit("k", "1/minute; 5/calendar day")
    error = pickle.loads(pickle.dumps(RateLimitExceeded(decision)))  # noqa: S301 - our own bytes
    assert error.decision == decision
    assert (error.key, error.retry_after) == ("k", decision.retry_after)
    assert str(error) == "Rate limit exceeded for key 'k'"


@pytest.mark.parametrize("transient, indefinite", [(True, True), (True, False), (False, False)])
def test_an_engine_error_keeps_what_it_says_when_pickled(
    transient: bool,  # noqa: FBT001 - a parameter of the test
    indefinite: bool,  # noqa: FBT001
) -> None:
    error = EngineError("no answer", transient=transient, indefinite=indefinite)
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (str(twin), twin.transient, twin.indefinite) == ("no answer", transient, indefinite)
    assert not EngineError("refused", transient=True).indefinite


def test_a_decision_reads_well(limiter: Limiter) -> None:
    assert repr(limiter.hit("k", "1/minute", algorithm="fixed_window")) == (
        "<Decision allowed 'k' fixed_window limit=1 remaining=0>"
    )
    assert repr(limiter.hit("k", "1/minute", algorithm="fixed_window")) == (
        "<Decision denied 'k' fixed_window limit=1 retry_after=60>"
    )
    assert "never fits" in repr(limiter.hit("k", "1/minute", cost=2))
