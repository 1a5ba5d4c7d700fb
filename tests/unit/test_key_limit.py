"""A key with its limit: exact by default, as fast as a plain hit, and with a key that comes from arguments."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Limiter, RateLimitExceeded, UsageError
from headgate.charge import ChargeSet
from headgate.engines.memory import MemoryEngine
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headgate.decision import Decision


class TestWaitingIsExact:
    @pytest.mark.parametrize(
        "rate, algorithm",
        [
            ("4/second", "sliding_log"),
            ("10000/second", "sliding_log"),
            ("10001/second", "sliding_window"),
            ("4/second burst 2", "token_bucket"),
            ("4/calendar day", "fixed_window"),
        ],
    )
    def test_the_default_algorithm_is_named_wherever_a_limit_is_shown(
        self, rate: str, algorithm: str
    ) -> None:
        limit = Limiter().limit("api", rate)
        assert limit.stats().algorithm == algorithm
        assert limit.hit().algorithm == algorithm
        assert f"by {algorithm}, blocking>" in repr(limit)
        awaited = AsyncLimiter().limit("api", rate)
        assert asyncio.run(awaited.stats()).algorithm == algorithm
        assert repr(awaited) == repr(limit).replace("<KeyLimit", "<AsyncKeyLimit")

    def test_numbers_have_the_default_of_rates(self) -> None:
        assert Limiter().limit("api", limit=4, window=1.0).stats().algorithm == "sliding_log"
        assert Limiter().limit("api", limit=20_000, window=1).stats().algorithm == "sliding_window"

    def test_hits_and_several_rates_keep_their_own(self) -> None:
        limiter = Limiter()
        assert limiter.hit("api", "4/second").algorithm == "sliding_window"
        both = limiter.limit("api", "4/second; 20000/hour")
        assert "4 in 1 s by sliding_log and 20000 in 3600 s by sliding_window" in repr(both)

    @pytest.mark.parametrize(
        "rate, most, window_us", [("4/second", 4, 1_000_000), ("1/second", 1, 1_000_000)]
    )
    def test_no_span_of_a_window_holds_more_than_the_limit(
        self, rate: str, most: int, window_us: int
    ) -> None:
        """Callers who wait get all of it, and never more: four a second, and one every second."""
        clock = ManualClock(
            1_800_000_000.95
        )  # Late in an aligned window, where counters are weakest.
        limit = Limiter(clock=clock).limit("api", rate)
        times = []
        for _ in range(5 * most):
            limit.acquire()
            times.append(clock.now_us())
        for first, beyond in zip(times, times[most:], strict=False):
            assert beyond - first >= window_us
        assert times[-1] - times[0] < 5 * window_us + 500_000


class Counting(MemoryEngine):
    """Tells how often it was asked the long way."""

    asked = 0

    def decide(self, requests: Any) -> list[Decision]:
        self.asked += 1
        return super().decide(requests)


class TestTheFastPath:
    def test_a_bound_limit_asks_as_a_plain_hit_does(self) -> None:
        engine = Counting()
        limit = Limiter(engine).limit("api", "100/hour")
        assert limit.hit().remaining == 99
        assert limit.acquire().remaining == 98
        with limit as decision:
            assert decision.remaining == 97
        assert limit.acquire(3, timeout=1.0).remaining == 94

        @limit
        async def call() -> str:
            async with limit:
                return "done"

        assert asyncio.run(call()) == "done"
        assert limit.check().remaining == 92
        assert engine.asked == 1  # That was the check.

    def test_it_is_refused_what_was_refused_before(self) -> None:
        engine = MemoryEngine()
        limit = Limiter(engine).limit("api", "100/hour")
        for cost in (-1, 1.5, True, "1"):
            with pytest.raises(UsageError):
                limit.acquire(cost)  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                limit.hit(cost)  # type: ignore[arg-type]
        for timeout in (-1, "1", True, float("nan")):
            with pytest.raises(UsageError):
                limit.acquire(1, timeout)  # type: ignore[arg-type]
        assert limit.stats().count == 0

    @pytest.mark.parametrize("algorithm", ["exponential_backoff", "adaptive"])
    def test_who_waits_where_denials_count_still_looks_first(self, algorithm: str) -> None:
        clock = ManualClock()
        limit = Limiter(clock=clock).limit("api", "2/minute", algorithm=algorithm)
        for _ in range(20):
            limit.acquire()
        assert limit.check().backoff_level == 0
        with pytest.raises(RateLimitExceeded):
            limit.acquire(timeout=0.001)

    def test_those_in_line_keep_their_order(self) -> None:
        """A plain hit in front of the line must not overtake it."""

        async def waited() -> list[int]:
            limit = AsyncLimiter().limit("api", "200/second burst 1")
            order: list[int] = []

            async def go(number: int) -> None:
                await limit.acquire()
                order.append(number)

            async with asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(go(number))
            return order

        assert asyncio.run(waited()) == list(range(12))

    def test_a_denial_is_asked_once(self) -> None:
        """Who is denied by the plain hit waits at once."""
        engine = Counting(clock=ManualClock())
        limit = Limiter(engine).limit("api", "1/hour")
        limit.acquire()
        with pytest.raises(RateLimitExceeded):
            limit.acquire(timeout=1)
        assert engine.asked == 0
        limit.acquire()
        assert engine.asked == 1

    def test_many_limits_of_one_rate_are_bound_once(self) -> None:
        engine = MemoryEngine()
        bound = []
        bind = engine.bind

        def binding(*args: Any) -> Any:
            bound.append(args)
            return bind(*args)

        engine.bind = binding  # type: ignore[assignment, method-assign]
        limiter = Limiter(engine)
        for number in range(100):
            assert limiter.limit(f"user:{number}", "1/hour").hit()
        assert len(bound) == 1


class TestKeysFromArguments:
    def test_each_key_has_its_own_count(self) -> None:
        limiter = Limiter(clock=ManualClock())
        by_user = limiter.limit(lambda user, **_: f"mails:{user}", "1/hour", mode="immediate")

        @by_user
        def send(user: str, *, text: str = "") -> str:
            """Send a mail."""
            return f"{text} to {user}"

        assert send("ada", text="hello") == "hello to ada"
        assert send("grace") == " to grace"
        with pytest.raises(RateLimitExceeded) as caught:
            send("ada")
        assert caught.value.key == "mails:ada"
        assert (send.__name__, send.__doc__) == ("send", "Send a mail.")
        assert by_user.of("ada").stats().remaining == 0
        by_user.of("ada").reset()
        assert send("ada")

    def test_methods_and_coroutines_of_a_plain_limiter(self) -> None:
        limiter = Limiter(clock=ManualClock())

        class Client:
            def __init__(self, host: str) -> None:
                self.host = host

            @limiter.limit(lambda self, _: self.host, "1/hour", mode="immediate")
            def get(self, path: str) -> str:
                return self.host + path

            @limiter.limit(lambda self: f"{self.host}:slow", "1/hour", mode="immediate")
            async def wait(self) -> str:
                return self.host

        one, two = Client("one"), Client("two")
        assert (one.get("/a"), two.get("/a")) == ("one/a", "two/a")
        with pytest.raises(RateLimitExceeded):
            one.get("/b")
        assert asyncio.run(one.wait()) == "one"
        with pytest.raises(RateLimitExceeded):
            asyncio.run(one.wait())

    def test_awaited(self) -> None:
        limiter = AsyncLimiter(clock=ManualClock())

        @limiter.limit(lambda user: f"mails:{user}", "1/hour", mode="immediate")
        async def send(user: str) -> str:
            return user

        @limiter.limit(lambda user: f"news:{user}", "1/hour", mode="immediate")
        async def news(user: str) -> AsyncIterator[str]:
            yield user

        async def main() -> None:
            assert (await send("ada"), await send("grace")) == ("ada", "grace")
            with pytest.raises(RateLimitExceeded):
                await send("ada")
            assert [one async for one in news("ada")] == ["ada"]
            with pytest.raises(RateLimitExceeded):
                [one async for one in news("ada")]

        asyncio.run(main())

    def test_what_cannot_work_is_refused_at_once(self) -> None:
        limiter = Limiter()
        with pytest.raises(UsageError, match="mode must be"):
            limiter.limit(lambda: "key", "1/hour", mode="soon")  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="not a rate"):
            limiter.limit(lambda: "key", "soon")
        with pytest.raises(UsageError, match="decorates a function"):
            limiter.limit(lambda: "key", "1/hour")(5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="not a coroutine function"):
            AsyncLimiter().limit(lambda: "key", "1/hour")(print)  # type: ignore[type-var]

        @limiter.limit(lambda user: user, "1/hour")
        def function(user: Any) -> None:
            """Do nothing."""

        with pytest.raises(UsageError, match="a key must be a string"):
            function(5)


class TestSharedCounts:
    """Two rates of one window share a key's count; a limiter says so, once."""

    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [
            record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
        ]

    def test_it_is_logged_once_per_limiter(self, caplog: pytest.LogCaptureFixture) -> None:
        limiter = Limiter()
        limiter.hit("user:42", "5/minute")
        limiter.hit("user:42", "9/minute")
        limiter.hit("user:42", "5/minute")
        limiter.hit("user:42", "9/minute")
        limiter.hit("user:43", "5/minute")
        limiter.hit("user:43", "7/minute")
        (told,) = self.warnings(caplog)
        assert told.startswith("two rates share one count: 'user:42' is counted by sliding_window")
        Limiter().limit("a", "1/hour")
        assert len(self.warnings(caplog)) == 1

    def test_async_and_bound_limits_are_covered_too(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            limiter = AsyncLimiter()
            await limiter.hit("a", "5/minute")
            await limiter.hit("a", "6/minute")
            await limiter.hit("a", "5/minute")

        asyncio.run(main())
        assert len(self.warnings(caplog)) == 1
        limiter = Limiter()
        limiter.limit("a", "5/minute")
        limiter.limit("a", "6/minute")
        limiter.hit("a", "5/minute", algorithm="sliding_log")
        assert len(self.warnings(caplog)) == 2

    def test_tiers_other_windows_and_other_algorithms_are_no_matter(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        limiter = Limiter()
        for number in range(50):
            limiter.hit(f"free:{number}", "5/minute")
            limiter.hit(f"paid:{number}", "500/minute")
            limiter.hit(f"free:{number}", "50/hour")
            limiter.hit(f"free:{number}", "7/minute", algorithm="fixed_window")
            limiter.hit(f"free:{number}", "1/second; 70/day")
        assert self.warnings(caplog) == []

    def test_looking_ends_and_remembers_little(self) -> None:
        limiter = Limiter()
        shared = limiter._shared_counts
        shared._left = 10_000
        limiter.hit("a", "5/minute")
        limiter.hit("b", "6/minute")
        watched = limiter._bound[None]["6/minute"]
        for number in range(12_000):
            limiter.hit(f"user:{number}", f"{5 + number % 2}/minute")
            assert len(shared._keys) <= 4_096
        assert shared._left == 0
        assert limiter._bound[None]["6/minute"] is not watched
        for number in range(10_000):
            limiter.hit("c", f"{number + 1}/{number + 1000} ms")
            assert len(shared._first) <= 4_096


def test_a_limiter_remembers_a_bounded_number_of_limits() -> None:
    """Texts of a hundred limits each count for a hundred."""
    limiter = Limiter()
    many = "; ".join(f"9/{number}s" for number in range(1, 100))
    for number in range(500):
        limiter.hit("a", f"{many}; 9/{number + 200}s")
        assert sum(map(len, limiter._bound.values())) <= 101


def test_a_request_of_many_limits_is_one() -> None:
    """Several rates are still taken together, or not at all."""
    limit = Limiter().limit("a", "1/second; 5/minute")
    assert limit.hit()
    assert not limit.hit()
    assert limit.stats().limit == 1
    assert isinstance(limit._spec.request(1), ChargeSet)
