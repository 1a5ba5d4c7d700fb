"""The memory engine: bounded without forgetting, exact under threads."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest

from headgate import (
    Adaptive,
    Charge,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    Limiter,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.charge import Kind, Request
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
NAME = "a reservation"
HOUR_US = 3_600_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestBounds:
    """What happens when more keys come than memory may hold."""

    def test_idle_keys_make_room_without_loss(self, clock: ManualClock) -> None:
        """A key whose window is over is the same as one that was never used."""
        engine = MemoryEngine(max_keys=100, clock=clock)
        hit = engine.bind(TokenBucket(10, 1_000_000))
        for number in range(1_000):
            assert hit(f"key:{number}", 1)
            clock.advance(us=100_000)
        assert engine.counters.keys <= 100
        assert engine.counters.dropped >= 900
        assert engine.counters.shared == 0

    def test_a_key_at_its_limit_is_never_forgotten(self, clock: ManualClock) -> None:
        """However many strangers come, the key that used up its limit stays denied."""
        engine = MemoryEngine(max_keys=50, clock=clock)
        hit = engine.bind(FixedWindow(3, HOUR_US))
        for _ in range(3):
            assert hit("limited", 1)
        for number in range(5_000):
            hit(f"flood:{number}", 1)
            assert not hit("limited", 1)
        assert engine.counters.keys == 50
        assert engine.counters.shared > 4_000

    @pytest.mark.parametrize(
        "limit",
        [kind(2, HOUR_US) for kind in (FixedWindow, SlidingWindow, SlidingLog, TokenBucket)]
        + [ExponentialBackoff(2, HOUR_US), Adaptive(2, HOUR_US)],
        ids=lambda limit: limit.name,
    )
    def test_strangers_that_share_a_state_are_still_limited(
        self, limit: Limit, clock: ManualClock
    ) -> None:
        """A key in the overflow gets at most its limit, for as long as it matters."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        hit = engine.bind(limit)
        assert hit("first", 1)
        assert [bool(hit("stranger", 1)) for _ in range(5)] == [True, True, False, False, False]
        assert hit("first", 1)

    def test_a_shared_key_gets_no_fresh_allowance_when_room_comes(self, clock: ManualClock) -> None:
        """It stays with the shared state until that is idle."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        short, long = engine.bind(FixedWindow(1, 1_000_000)), engine.bind(FixedWindow(1, HOUR_US))
        assert short("first", 1)
        assert long("stranger", 1).degraded
        clock.advance(2)
        assert long("other", 1)  # Sweeping for this key made room.
        assert not long("stranger", 1)

    def test_answers_from_a_shared_state_say_so(self, clock: ManualClock) -> None:
        """`degraded` tells that strangers may be counted together."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        hit = engine.bind(SlidingWindow(5, HOUR_US))
        assert not hit("first", 1).degraded
        assert hit("stranger", 1).degraded

    def test_a_reset_makes_room(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_keys=1, clock=clock)
        limit = SlidingWindow(5, HOUR_US)
        hit = engine.bind(limit)
        hit("first", 1)
        engine.reset("first", limit)
        assert engine.counters.keys == 0
        assert not hit("second", 1).degraded

    @pytest.mark.parametrize("max_keys", [0, -1, True, 1.5, "10", None])
    def test_the_bound_is_a_whole_number(self, max_keys: int) -> None:
        with pytest.raises(UsageError, match="max_keys"):
            MemoryEngine(max_keys=max_keys)


class TestThreads:
    """Many threads, a tiny switch interval, and never one unit too many."""

    @pytest.fixture(autouse=True)
    def _switch_often(self) -> Iterator[None]:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(interval)

    @pytest.mark.parametrize(
        "limit",
        [
            FixedWindow(500, HOUR_US),
            SlidingWindow(500, HOUR_US),
            SlidingLog(500, HOUR_US),
            TokenBucket(500, HOUR_US),
            ExponentialBackoff(500, HOUR_US),
            Adaptive(500, HOUR_US),
            Concurrency(500, HOUR_US),
        ],
        ids=lambda limit: limit.name,
    )
    def test_exactly_the_limit_passes(self, limit: Limit, clock: ManualClock) -> None:
        """Sixteen threads want twice the limit of one key; the limit passes, not one more."""
        hit = MemoryEngine(clock=clock).bind(limit)
        admitted = _from_threads(16, lambda: sum(bool(hit("hot", 1)) for _ in range(64)))
        assert sum(admitted) == 500

    def test_several_charges_are_all_or_nothing(self, clock: ManualClock) -> None:
        """Pairs that share keys in opposite order: both sides are charged the same."""
        limiter = Limiter(MemoryEngine(clock=clock))
        pairs = [("a", "b"), ("b", "a")]

        def work() -> Counter[str]:
            admitted: Counter[str] = Counter()
            for number in range(200):
                first, second = pairs[number % 2]
                if limiter.decide(
                    [
                        Charge(first, "300/hour"),
                        Charge(second, "500/hour", algorithm="fixed_window"),
                    ]
                ):
                    admitted[first] += 1
            return admitted

        total = sum(_from_threads(8, work), Counter())
        assert total == {"a": 300, "b": 300}

    def test_a_reservation_settles_once(self, clock: ManualClock) -> None:
        """Eight threads settle the same reservation; one of them does."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, HOUR_US)
        request = Request((Charge("key", limit, 10),), reserve_us=60_000_000, token=NAME)
        assert engine.decide([request])[0]
        settled = _from_threads(8, lambda: engine.settle(NAME, 4))
        assert sorted(settled) == [False] * 7 + [True]
        assert engine.usage("key", limit).used == 4


class TestReservations:
    """Settling, and what is left when nobody does."""

    def test_an_expired_reservation_stays_charged(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, HOUR_US)
        engine.decide([Request((Charge("key", limit, 10),), reserve_us=1_000_000, token=NAME)])
        clock.advance(1)
        assert not engine.settle(NAME, 0)
        assert engine.usage("key", limit).used == 10
        assert engine.counters.reservations == 0

    def test_one_token_is_one_reservation(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        request = Request((Charge("key", "10/hour"),), reserve_us=1_000_000, token=NAME)
        engine.decide([request])
        with pytest.raises(UsageError, match="open already"):
            engine.decide([request])
        assert engine.usage("key", SlidingWindow(10, HOUR_US)).used == 1

    def test_a_denied_reservation_leaves_nothing_behind(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        engine.decide([Request((Charge("key", "1/hour", 2),), reserve_us=1_000_000, token=NAME)])
        assert engine.counters.reservations == 0

    def test_settling_covers_every_limit_of_the_reservation(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        charge = Charge("key", "100/minute; 1000/hour", 50)
        engine.decide([Request((charge,), reserve_us=1_000_000, token=NAME)])
        assert engine.settle(NAME, 20)
        assert [engine.usage("key", limit).used for limit in charge.limits] == [20, 20]


def test_a_peek_among_takes_can_deny_them(clock: ManualClock) -> None:
    """Looking is a condition too: what it denies is not taken elsewhere."""
    engine = MemoryEngine(clock=clock)
    full, free = FixedWindow(0, HOUR_US), FixedWindow(5, HOUR_US)
    request = Request((Charge("full", full, kind=Kind.PEEK), Charge("free", free)))
    assert not engine.decide([request])[0]
    assert engine.usage("free", free).used == 0


def test_listing_pages_through_every_key_in_use(clock: ManualClock) -> None:
    """Keys come once each, in order, and idle ones are left out."""
    engine = MemoryEngine(clock=clock)
    gone, here = engine.bind(FixedWindow(1, 1_000_000)), engine.bind(FixedWindow(9, HOUR_US))
    gone("gone", 1)
    for number in range(25):
        here(f"user:{number:02}", 2)
    clock.advance(1)
    seen, cursor = [], ""
    while True:
        entries, cursor = engine.list_keys("user:", cursor, 10)
        seen += entries
        if not cursor:
            break
    assert [entry.key for entry in seen] == [f"user:{number:02}" for number in range(25)]
    assert {(entry.count, entry.algorithm, entry.window_us) for entry in seen} == {
        (2, "fixed_window", HOUR_US)
    }
    assert [entry.key for entry in engine.list_keys().entries][:1] == ["user:00"]


def _from_threads(count: int, work: Callable[[], T]) -> list[T]:
    results: list[T] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        results.append(work())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
