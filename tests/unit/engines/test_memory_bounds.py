"""Memory is bounded in bytes, whatever callers choose: keys, windows, limits. And no count is forgotten for it."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    Charge,
    Concurrency,
    Limiter,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.algorithms import ALGORITHMS, FixedWindow
from headgate.algorithms._holders import Holders
from headgate.algorithms.base import MAX_WINDOW_US
from headgate.charge import ChargeSet
from headgate.engines._memory_budget import (
    FEW_ENTRIES,
    SHARED_BYTES,
    is_stand_in,
    log_weight,
    longer_window_us,
    slots_weight,
    stand_in,
    table_weight,
    weight_of,
)
from headgate.engines._state_table import StateTable
from headgate.rate import limits_of
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEGABYTE = 1_000_000
YEAR = 31_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def weighed(engine: MemoryEngine) -> int:
    """What everything weighs, counted anew."""
    return sum(
        table_weight(table.limit)
        + sum(map(weight_of, [*table.young, *table.old]))
        + SHARED_BYTES * len(table.shared)
        + sum(
            grown(state)
            for states in (table.young, table.old, table.shared)
            for state in states.values()
        )
        for table in engine._core.tables.values()
    )


def grown(state: Any) -> int:
    """What the state of a log, or of slots, weighs besides."""
    if isinstance(state, Holders):
        return slots_weight(state)
    is_log = isinstance(state, tuple) and isinstance(state[0], list)
    return log_weight(state) if is_log else 0


def fill_with_windows(limiter: Limiter, most: int = 100_000) -> int:
    """Hit in new windows until memory is full; how many that took."""
    for number in range(most):
        if limiter.hit(
            f"filler:{number}", f"1/{YEAR - number}s", algorithm="fixed_window"
        ).degraded:
            return number
    raise AssertionError("memory is never full")


def filled(fill: Callable[[], MemoryEngine]) -> tuple[MemoryEngine, int]:
    """A full engine, and the bytes it takes: the least of three, because threads of other tests are traced, too."""
    found: list[tuple[MemoryEngine, int]] = []
    for _ in range(3):
        tracemalloc.start()
        try:
            engine = fill()
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        found.append((engine, size))
    return found[-1][0], min(size for _, size in found)


def hit_hourly(limiter: Limiter, key: str) -> bool:
    return limiter.hit(key, "100/hour", algorithm="fixed_window").allowed


class TestKeys:
    def test_long_keys_are_bounded_by_their_bytes(self, clock: ManualClock) -> None:
        def fill() -> MemoryEngine:
            engine = MemoryEngine(max_bytes=2 * MEGABYTE, clock=clock)
            limiter = Limiter(engine)
            for number in range(3_000):  # 24 MB of text.
                limiter.hit(f"{number:08}" * 1_000, "1/hour")
            return engine

        engine, size = filled(fill)
        assert size < 3 * MEGABYTE
        assert engine.counters.bytes == weighed(engine) <= 2.3 * MEGABYTE
        assert engine.counters.shared > 0

    def test_a_key_at_its_limit_is_never_forgotten_for_others(self, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        assert limiter.hit("me", "1/hour")
        for number in range(5_000):
            limiter.hit(f"other:{number}", "1/hour")
            if number % 500 == 0:
                assert not limiter.hit("me", "1/hour")

    def test_what_is_idle_weighs_nothing_in_the_end(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        limiter = Limiter(engine)
        for number in range(6_000):
            limiter.hit(f"key:{number}", "1/minute")
        assert engine.counters.shared
        clock.advance(3_600)
        for number in range(6_000):
            limiter.hit(f"new:{number % 10}:{number}", "1/second")
            clock.advance(0.01)
        assert engine.counters.bytes == weighed(engine) < MEGABYTE
        assert not limiter.hit("one more", "1/second").degraded

    @pytest.mark.parametrize("max_bytes", [0, 99_999, True, 1e6, "1"])
    def test_the_bound_is_a_number_that_makes_sense(self, max_bytes: int) -> None:
        with pytest.raises(UsageError, match="max_bytes"):
            MemoryEngine(max_bytes=max_bytes)

    def test_a_url_can_name_it(self) -> None:
        engine = Limiter("memory://?max_bytes=5000000").engine.unguarded
        assert isinstance(engine, MemoryEngine)
        assert engine.max_bytes == 5_000_000


class TestReservations:
    LIMIT = TokenBucket(10_000, 3_600_000_000)

    def reserve(self, engine: MemoryEngine, number: int, cost: int, seconds: int = 600) -> None:
        key = f"{number} " + "x" * (number % 500)
        charge = Charge(key if number else "k", self.LIMIT, cost)
        engine.decide([ChargeSet((charge,), 0, seconds * 1_000_000, f"token {number}")])

    @pytest.mark.parametrize("cost", [0, 1])
    def test_any_number_of_them_is_open_in_bounded_memory(
        self, clock: ManualClock, cost: int
    ) -> None:
        def fill() -> MemoryEngine:
            engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
            for number in range(5_000):
                self.reserve(engine, number, cost)
            return engine

        engine, size = filled(fill)
        assert size < 2 * MEGABYTE
        assert 0 < engine.counters.reservations < 500

    def test_the_first_that_would_expire_ends_early_and_stays_charged(
        self, clock: ManualClock
    ) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        self.reserve(engine, 0, 100, seconds=1)
        for number in range(1, 500):
            self.reserve(engine, number, 1)
        assert not engine.settle("token 0", 0)
        assert engine.settle("token 499", 0)
        assert engine.usage("k", self.LIMIT).used == 100

    def test_one_that_is_settled_makes_room(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        for number in range(5_000):
            self.reserve(engine, number, 1)
            assert engine.settle(f"token {number}", 0)
        self.reserve(engine, 5_000, 1, seconds=1)
        self.reserve(engine, 5_001, 1)
        assert engine.settle("token 5000", 0)

    def test_of_those_that_expire_together_the_oldest_ends_first(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        for number in range(2_000):
            self.reserve(engine, number, 1)
        assert not engine.settle("token 0", 0)
        assert engine.settle("token 1999", 0)

    def test_those_with_long_tokens_take_up_more(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        charge = Charge("key", self.LIMIT)
        for number in range(200):
            engine.decide([ChargeSet((charge,), 0, 600_000_000, f"{number:0>8000}")])
        assert 0 < engine.counters.reservations < 40


class TestLogs:
    LIMIT = SlidingLog(100_000, 3_600_000_000)

    def test_long_logs_are_bounded_by_their_bytes(self, clock: ManualClock) -> None:
        def fill() -> MemoryEngine:
            engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
            limiter = Limiter(engine)
            for number in range(30_000):  # 1.5 MB of entries.
                limiter.hit(f"key:{number % 7}", self.LIMIT)
                clock.advance(us=10_000)
            return engine

        engine, size = filled(fill)
        assert size < 1.3 * MEGABYTE
        assert engine.counters.bytes == weighed(engine) <= MEGABYTE

    def test_many_short_logs_are_bounded_as_well(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        limiter = Limiter(engine)
        for number in range(40_000):
            limiter.hit(f"key:{number % 4_000}", self.LIMIT)
            clock.advance(us=1_000)
        assert engine.counters.bytes == weighed(engine) < 1.2 * MEGABYTE

    @pytest.mark.parametrize("seed", range(4))
    def test_a_coarse_log_admits_no_more_in_any_window(self, clock: ManualClock, seed: int) -> None:
        chance = random.Random(seed)
        admitted: list[int] = []
        limit = SlidingLog(40, 10_000_000)
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        limiter = Limiter(engine)
        assert limiter.hit("me", limit)
        for number in range(300):
            limiter.hit(f"{number} " * 100, "1/day")  # Memory is full.
        assert engine.counters.shared
        table = engine._core.tables["", None, limit.identity]
        coarse = False
        for _ in range(3_000):
            now_us = clock.now_us()
            if limiter.hit("me", limit):
                admitted.append(now_us)
                assert sum(at > now_us - 10_000_000 for at in admitted) <= 40
            _, start, end, total = table.get("me")
            assert end - start <= 2 * FEW_ENTRIES
            coarse |= total > FEW_ENTRIES
            clock.advance(chance.choice([0, 0.01, 0.1, 0.5]))
        assert coarse
        assert len(admitted) > 300  # And it recovers all the time.


class TestSlots:
    def test_held_slots_are_bounded_by_their_bytes(self, clock: ManualClock) -> None:
        def fill() -> MemoryEngine:
            engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
            granted = 0
            for number in range(5_000):
                granted += self.hold(engine, f"key:{number % 5}", f"token {number}")
                clock.advance(us=1)
            assert 2_000 < granted < 3_000
            return engine

        engine, size = filled(fill)
        assert size < 1.3 * MEGABYTE
        assert engine.counters.bytes == weighed(engine) < 1.01 * MEGABYTE

    def test_one_that_is_released_makes_room(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        number = 0
        while self.hold(engine, "key", f"token {number}"):
            number += 1
        assert self.hold(engine, "key", "token 0")  # Its own one is only renewed.
        engine.release("key", SLOTS, "token 0")
        assert self.hold(engine, "key", "another")
        assert not self.hold(engine, "key", "one more")
        assert engine.usage("key", SLOTS).used == number
        clock.advance(31)
        assert self.hold(engine, "key", "later")
        assert engine.counters.bytes == weighed(engine)

    @pytest.mark.parametrize("way", ["hit", "run", "decide"])
    def test_those_that_nobody_names_are_bounded_as_well(
        self, clock: ManualClock, way: str
    ) -> None:
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        hit, run = engine.bind(SLOTS), engine.bind_run(SLOTS)
        granted = 0
        for _ in range(1_000):
            if way == "run":
                granted += run(["key"], 1).answers[0][0]
            elif way == "hit":
                granted += hit("key", 1).allowed
            else:
                granted += engine.decide([ChargeSet((Charge("key", SLOTS),))])[0].allowed
        assert 200 < granted < 300
        assert engine.counters.bytes == weighed(engine) < 101_000
        clock.advance(31)
        assert hit("key", 1)

    @staticmethod
    def hold(engine: MemoryEngine, key: str, token: str) -> bool:
        (decision,) = engine.decide([ChargeSet((Charge(key, SLOTS),), token=token)])
        assert decision.allowed or decision.degraded
        return decision.allowed


SLOTS = Concurrency(100_000, 30_000_000)


class TestWindows:
    def test_any_number_of_windows_is_counted_in_bounded_memory(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        limiter = Limiter(engine)
        for number in range(5_000):
            limiter.hit(f"key:{number}", f"2/{YEAR - number}s", algorithm=random.choice(ALL))
        assert len(engine._core.tables) < 1_000
        assert engine.counters.bytes == weighed(engine) < 1.3 * MEGABYTE

    @pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"concurrency"}))
    def test_a_window_without_room_has_a_stand_in(self, algorithm: str, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        fill_with_windows(limiter)
        first = limiter.hit("me", "3/10s", algorithm=algorithm)
        assert (first.allowed, first.degraded, first.window) == (True, True, 10.0)
        assert limiter.decide([Charge("me", "3/10s", 1, algorithm)]).allowed
        limit = limiter.limit("me", "3/10s", algorithm=algorithm)
        assert limit.stats().count == 2
        admitted = 2 + sum(limit.hit().allowed for _ in range(5))
        assert admitted == (3 if algorithm == "token_bucket" else 2)
        denied = limiter.decide([Charge("me", "3/10s", 1, algorithm)])
        assert (denied.allowed, denied.degraded) == (False, True)
        assert 10 / 3 <= denied.retry_after <= 13
        limit.reset()
        assert limit.hit().allowed

    def test_counting_stays_in_the_longer_window_when_there_is_room_again(
        self, clock: ManualClock
    ) -> None:
        """To begin a window of its own in between would be a fresh allowance."""
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        limiter = Limiter(engine)
        many = fill_with_windows(limiter)
        for _ in range(2):
            assert limiter.hit("me", "3/10s", algorithm="sliding_log")
        for number in range(many):
            rate = f"1/{YEAR - number}s"
            limiter.limit(f"filler:{number}", rate, algorithm="fixed_window").reset()
        for number in range(200):
            limiter.hit(f"other:{number}", "1/second", algorithm="fixed_window")
            clock.advance(0.01)
        assert engine.counters.bytes < 97_000
        denied = limiter.hit("me", "3/10s", algorithm="sliding_log")
        assert not denied
        assert not limiter.limit("me", "3/10s", algorithm="sliding_log").hit()
        assert not Limiter(engine).hit("me", "3/10s", algorithm="sliding_log")
        assert limiter.hit("you", "3/10s", algorithm="sliding_log").degraded is False
        clock.advance(60)
        again = limiter.hit("me", "3/10s", algorithm="sliding_log")
        assert (again.allowed, again.degraded) == (True, False)
        assert not limiter.hit("me", "3/10s", algorithm="sliding_log").degraded

    def test_a_window_that_was_there_stays_as_it_is(self, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        assert limiter.hit("me", "5/day").remaining == 4
        fill_with_windows(limiter)
        again = limiter.hit("me", "5/day")
        assert (again.remaining, again.degraded) == (3, False)

    def test_a_calendar_and_slots_have_no_longer_window(self, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        fill_with_windows(limiter)
        assert limiter.hit("me", "5/calendar month").remaining == 4
        with limiter.concurrency("me", 1).slot():
            assert not limiter.concurrency("me", 1).check()

    def test_counting_stays_in_the_longer_window_after_a_restart(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        path = tmp_path / "limits.state"
        engine = MemoryEngine(max_bytes=100_000, clock=clock, state_file=path)
        limiter = Limiter(engine)
        fill_with_windows(limiter)
        for _ in range(2):
            assert limiter.hit("me", "3/hour").degraded
        assert not limiter.hit("me", "3/hour")
        engine.close()
        again = MemoryEngine(max_bytes=100_000, clock=clock, state_file=path)
        assert not Limiter(again).hit("me", "3/hour")
        assert again.counters.bytes == weighed(again)
        again.close()

    def test_strangers_that_share_a_state_later_give_a_key_no_fresh_allowance(
        self, clock: ManualClock
    ) -> None:
        """A key in the longer window stays there, also when others share states of the window itself by now."""
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        limiter = Limiter(engine)
        self.fill_with_keys(limiter, 1, 100_000)
        admitted = sum(hit_hourly(limiter, "me") for _ in range(200))
        clock.advance(300)
        for number in range(30):  # Each makes room for several.
            limiter.hit(f"later:{number}", "1/minute")
        assert engine.counters.bytes < 90_000
        assert hit_hourly(limiter, "you")
        self.fill_with_keys(limiter, 2, 112_500)
        hit_hourly(limiter, "a stranger")
        admitted += sum(hit_hourly(limiter, "me") for _ in range(200))
        assert 50 <= admitted <= 100
        assert engine.counters.bytes == weighed(engine)

    def test_one_request_counts_a_key_in_one_place(self, clock: ManualClock) -> None:
        """Memory is full of windows once the first charge is worked out, and other windows get their stand-in."""
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        limiter = Limiter(engine)
        while engine.counters.bytes < 97_000:
            limiter.hit(f"other:{engine.counters.bytes}", "1/hour", algorithm="fixed_window")
        limit = FixedWindow(3, 10_000_000)
        nearby = [FixedWindow(3, 10_000_000 - number) for number in range(1, 60)]
        asked = Charge("me", limit, 2)
        charges = (asked, *(Charge("me", one, 0) for one in nearby), asked)
        assert not limiter.decide(charges)

    def test_settling_for_more_gives_a_key_no_fresh_allowance(self, clock: ManualClock) -> None:
        """The window in which it was reserved is over, and the key is counted in the longer one by now."""
        engine = MemoryEngine(max_bytes=100_000, clock=clock)
        limiter = Limiter(engine)
        limit = FixedWindow(100, 60_000_000)
        engine.decide([ChargeSet((Charge("me", limit),), 0, 3_600_000_000, "token")])
        clock.advance(300)
        fill_with_windows(limiter)  # And what is idle is dropped.
        assert limiter.hit("me", limit).degraded
        before = 1 + sum(limiter.hit("me", limit).allowed for _ in range(200))
        assert engine.settle("token", 2)
        assert before + sum(limiter.hit("me", limit).allowed for _ in range(200)) <= 100

    @staticmethod
    def fill_with_keys(limiter: Limiter, seed: int, size: int) -> None:
        engine = limiter.engine.unguarded
        assert isinstance(engine, MemoryEngine)
        number = 0
        while engine.counters.bytes < size:
            limiter.hit(f"filler:{seed}:{number}", "1/minute")
            number += 1

    def test_reservations_settle_in_it(self, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        fill_with_windows(limiter)
        limit = limiter.limit("me", "100/hour", algorithm="sliding_log")
        with limit.reserve(40) as reservation:
            assert reservation.settle(10)
        assert limit.stats().count == 10


class TestRules:
    def test_any_number_of_rules_is_counted_in_bounded_memory(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_bytes=MEGABYTE, clock=clock)
        limiter = Limiter(engine)
        for number in range(5_000):
            limiter.decide([Charge("me", "5/hour", rule=f"rule:{number}")])
        assert engine.counters.bytes == weighed(engine) <= 1.2 * MEGABYTE
        assert len(engine._by_rule) <= 1.25 * len(engine._core.tables) + 16

    def test_a_rule_without_room_admits_no_more_than_its_limit(self, clock: ManualClock) -> None:
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        for number in range(200):
            limiter.decide([Charge("other", "1/hour", rule=f"rule:{number}")])
        asked = [limiter.decide([Charge("me", "4/hour", rule="new")]) for _ in range(10)]
        assert sum(map(bool, asked)) <= 4
        assert all(decision.degraded for decision in asked)

    @pytest.mark.parametrize("seed", range(5))
    def test_no_rule_admits_more_in_a_memory_that_is_too_small(
        self, seed: int, clock: ManualClock
    ) -> None:
        chance = random.Random(seed)
        limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
        admitted: dict[tuple[str, int], int] = {}
        rules = [f"rule:{number}" for number in range(8)]
        for number in range(4_000):
            rule = chance.choice(rules)
            if limiter.decide([Charge("me", "3/10s", 1, "fixed_window", rule=rule)]):
                place = (rule, clock.now_us() // 10_000_000)
                admitted[place] = admitted.get(place, 0) + 1
                assert admitted[place] <= 3
            limiter.decide([Charge("other", f"1/{chance.randint(1, 900)}s", rule=f"r{number}")])
            clock.advance(chance.choice([0.1, 0.5, 1, 30 * (chance.random() < 0.05)]))
        assert 3 in admitted.values()


ALL = sorted(set(ALGORITHMS) - {"concurrency"})


class TestStandIns:
    @pytest.mark.parametrize("window_us", [1_000, 999_999, 1 << 20, 3_600_000_000, MAX_WINDOW_US])
    def test_their_windows_are_longer_and_not_much(self, window_us: int) -> None:
        found = longer_window_us(window_us, b"secret")
        assert window_us <= found <= min(1.28 * window_us, MAX_WINDOW_US)

    def test_there_are_few_and_they_are_known_again(self) -> None:
        chosen = set()
        for _ in range(5_000):
            made = stand_in(FixedWindow(3, random.randint(1_000, MAX_WINDOW_US)), b"secret")
            assert made is not None
            assert is_stand_in(made, b"secret")
            chosen.add(made.identity)
        assert len(chosen) <= 144

    @pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7, 100, 2**43])
    @pytest.mark.parametrize("kind", [FixedWindow, SlidingWindow])
    def test_no_span_of_the_window_gets_more_than_the_limit(
        self, limit: int, kind: type[FixedWindow]
    ) -> None:
        """Whatever the algorithm guarantees then holds."""
        made = stand_in(kind(limit, 1_000_000), b"secret")
        assert made is not None
        if limit == 1:  # One after the other, each later than a window after the one before.
            assert (made.burst, made.limit) == (1, 1)
            assert made.window_us >= 1_000_000
        else:
            assert made.burst * bool(limit) + made.limit <= limit

    def test_buckets_keep_their_burst_where_they_can(self) -> None:
        made = stand_in(TokenBucket(10, 1_000_000, 25), b"s")
        assert made is not None
        assert (made.limit, made.burst) == (10, 25)
        large = stand_in(TokenBucket(1, 366 * 86_400_000_000, 1), b"s")
        assert large is not None
        assert large.burst == 1

    def test_stand_ins_depend_on_a_secret(self, clock: ManualClock) -> None:
        one, two = MemoryEngine(clock=clock), MemoryEngine(clock=clock)
        limit = FixedWindow(1, 3_600_000_000)
        assert stand_in(limit, one._core._secret) != stand_in(limit, two._core._secret)


OURS = [
    tracemalloc.Filter(inclusive=True, filename_pattern=f"*/headgate/{room}/*")
    for room in ("engines", "algorithms")
]
"""Where memory of an engine is taken; what other tests have left behind may end meanwhile."""


def tables_in_memory() -> int:
    """By `type`, since `isinstance` asks lazy objects of other libraries for their class, which sets them up."""
    gc.collect()
    return sum(issubclass(type(one), StateTable) for one in gc.get_objects())


class TestWindowsInBytes:
    @pytest.mark.parametrize("algorithm", sorted(set(ALL) - {"calendar_window"}))
    def test_a_window_takes_no_more_than_it_weighs(
        self, clock: ManualClock, algorithm: str
    ) -> None:
        engine = MemoryEngine(clock=clock)
        tracemalloc.start()
        for number in range(2_000):
            (limit,) = limits_of(f"5/{YEAR - number}s", algorithm)
            engine.bind(limit)("key", 1)
        gc.collect()
        taken = tracemalloc.take_snapshot().filter_traces(OURS)
        tracemalloc.stop()
        size = sum(one.size for one in taken.traces)
        assert 0 < size < engine.counters.bytes == weighed(engine)

    def test_windows_that_are_over_are_let_go(self, clock: ManualClock) -> None:
        """Not only counted as gone: nothing else may hold them, or they take up memory all the same."""
        engine = MemoryEngine(max_bytes=4 * MEGABYTE, clock=clock)
        of_others = tables_in_memory()
        for number in range(6_000):
            engine.bind(FixedWindow(5, 60_000_000 + number))("key", 1)
            clock.advance(0.1)
        kept = tables_in_memory() - of_others
        assert len(engine._core.tables) <= kept < 1.2 * len(engine._core.tables) + 100


@pytest.mark.parametrize("seed", range(4))
def test_what_is_weighed_is_what_is_there(seed: int, clock: ManualClock) -> None:
    """After whatever was hit, reset, reserved and swept, in a memory that is too small for it."""
    chance = random.Random(seed)
    engine = MemoryEngine(max_bytes=100_000, max_keys=150, clock=clock)
    limiter = Limiter(engine)
    for _ in range(6_000):
        key = f"key:{chance.randint(0, 400)}" * chance.choice([1, 1, 30])
        rate = (
            f"{chance.randint(1, 3)}/{chance.choice([1, 2, 3, 60, 3600, chance.randint(1, 500)])}s"
        )
        limit = limiter.limit(key, rate, algorithm=chance.choice(ALL), mode="immediate")
        action = chance.random()
        if action < 0.8:
            limit.hit()
        elif action < 0.9:
            limit.reset()
        else:
            limit.stats()
        clock.advance(chance.choice([0, 0, 0.01, 1, 100 * (chance.random() < 0.01)]))
        assert engine.counters.bytes == weighed(engine)
        assert engine.counters.keys == sum(map(len, engine._core.tables.values()))


@pytest.mark.parametrize("seed", range(5))
def test_no_window_admits_more_in_a_memory_that_is_too_small(seed: int, clock: ManualClock) -> None:
    """Fixed windows of one key, while memory fills and empties around it: never more than the limit in one of them."""
    chance = random.Random(seed)
    limiter = Limiter(MemoryEngine(max_bytes=100_000, clock=clock))
    admitted: dict[tuple[int, int], int] = {}
    windows = [chance.randint(2, 40) for _ in range(8)]
    for number in range(4_000):
        window = chance.choice(windows)
        if limiter.hit("me", f"3/{window}s", algorithm="fixed_window"):
            place = (window, clock.now_us() // (window * 1_000_000))
            admitted[place] = admitted.get(place, 0) + 1
            assert admitted[place] <= 3
        limiter.hit(f"other:{number}", f"1/{chance.randint(1, 3_000)}s")
        clock.advance(chance.choice([0.1, 0.5, 1, 30 * (chance.random() < 0.05)]))
    assert 3 in admitted.values()


MANY = """
import sys
from headgate import Limiter, MemoryEngine

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

what, many = sys.argv[1], int(sys.argv[2])
limiter = Limiter(MemoryEngine(max_bytes=32_000_000))
limiter.hit("a", "1/minute")
before = rss()
for number in range(many):
    if what == "keys":
        limiter.hit(f"key:{number}" * 10, "5/hour")
    elif what == "limits":
        limiter.hit("key", f"{number}/hour")
    else:
        limiter.hit(f"key:{number}", f"5/{31_000_000 - number}s")
print((rss() - before) / 1_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
@pytest.mark.slow
@pytest.mark.parametrize("what, many", [("keys", 200_000), ("limits", 20_000), ("windows", 30_000)])
def test_a_process_stays_small(what: str, many: int) -> None:
    """Slow: it takes many of them to tell a bound from none. 64 MB is twice the bound of the engine and its caches."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, what, str(many)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 100
