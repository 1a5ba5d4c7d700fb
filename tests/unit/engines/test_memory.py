"""The memory engine: bounded without forgetting, exact under threads."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from random import Random
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
from headgate.charge import ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines._state_store import TABLES_WHEN_FULL
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
    def test_keys_that_share_a_state_are_still_limited(
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

    @pytest.mark.parametrize(
        "limit",
        [FixedWindow(5, HOUR_US), SlidingLog(5, HOUR_US), TokenBucket(5, HOUR_US), Concurrency(5)],
        ids=lambda limit: limit.name,
    )
    @pytest.mark.parametrize("reserve_us", [0, HOUR_US])
    def test_new_keys_of_one_request_that_come_to_share_a_state_are_all_charged(
        self, limit: Limit, reserve_us: int, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither had a state when the request was worked out."""
        monkeypatch.setattr("headgate.engines._state_store.shared_index", lambda *_: 7)
        engine = MemoryEngine(max_keys=1, clock=clock)
        hit = engine.bind(limit)
        assert hit("first", 1)
        charges = (Charge("one", limit, 5), Charge("two", limit, 1))
        token = NAME if reserve_us else None
        assert engine.decide([ChargeSet(charges, reserve_us=reserve_us, token=token)])[0]
        assert engine.usage("one", limit).used == 6
        assert not hit("one", 1)
        if reserve_us:
            assert engine.settle(NAME, [5, 0])
            assert engine.usage("one", limit).used == 5

    def test_answers_from_a_shared_state_say_so(self, clock: ManualClock) -> None:
        """`degraded` tells that strangers may be counted together."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        hit = engine.bind(SlidingWindow(5, HOUR_US))
        assert not hit("first", 1).degraded
        assert hit("stranger", 1).degraded
        denied = hit("stranger", 5)
        assert (denied.allowed, denied.degraded) == (False, True)
        for kind in (ChargeKind.TAKE, ChargeKind.PEEK):
            request = ChargeSet((Charge("stranger", SlidingWindow(5, HOUR_US), 5, kind=kind),))
            assert engine.decide([request])[0].degraded
        assert engine.counters.shared == 4

    def test_a_shared_state_does_not_hide_the_rule(self, clock: ManualClock) -> None:
        hit = MemoryEngine(max_keys=1, clock=clock).bind(SlidingWindow(5, HOUR_US), "a rule")
        hit("first", 1)
        decision = hit("stranger", 1)
        assert (decision.degraded, decision.rule) == (True, "a rule")

    def test_a_reset_makes_room(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_keys=1, clock=clock)
        limit = SlidingWindow(5, HOUR_US)
        hit = engine.bind(limit)
        hit("first", 1)
        engine.reset("first", limit)
        assert engine.counters.keys == 0
        assert not hit("second", 1).degraded

    def test_a_slot_in_a_shared_state_is_renewed_and_let_go(self, clock: ManualClock) -> None:
        """Its holder finds it again, wherever it is kept."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        limit = Concurrency(1, 30_000_000)
        engine.bind(limit)("first", 1)
        hold = ChargeSet((Charge("stranger", limit),), token=NAME)
        assert engine.decide([hold])[0].degraded
        clock.advance(29)
        assert engine.renew("stranger", limit, NAME)
        clock.advance(29)
        assert engine.usage("stranger", limit).used == 1
        engine.release("stranger", limit, NAME)
        assert engine.usage("stranger", limit).used == 0

    def test_resetting_a_key_that_shares_a_state_drops_the_shared_state(
        self, clock: ManualClock
    ) -> None:
        """What strangers used of it is forgotten too: nobody can tell it apart."""
        engine = MemoryEngine(max_keys=1, clock=clock)
        limit = FixedWindow(1, HOUR_US)
        hit = engine.bind(limit)
        hit("first", 1)
        assert hit("stranger", 1).degraded
        assert not hit("stranger", 1)
        engine.reset("stranger", limit)
        assert hit("stranger", 1)
        assert not hit("first", 1)

    @pytest.mark.parametrize("max_keys", [0, -1, True, 1.5, "10", None])
    def test_the_bound_is_a_whole_number(self, max_keys: int) -> None:
        with pytest.raises(UsageError, match="max_keys"):
            MemoryEngine(max_keys=max_keys)


class TestWindows:
    """Callers choose windows, so there may be many of them; each has a table."""

    @pytest.mark.parametrize("kind", [ChargeKind.TAKE, ChargeKind.PEEK])
    @pytest.mark.parametrize("max_keys", [1_000_000, 1], ids=["own states", "shared states"])
    def test_unused_ones_take_no_memory(
        self, max_keys: int, kind: ChargeKind, clock: ManualClock
    ) -> None:
        engine = MemoryEngine(max_keys=max_keys, clock=clock)
        engine.bind(FixedWindow(1, HOUR_US))("stays", 1)
        for number in range(5_000):
            charge = Charge("key", FixedWindow(5, 1_000 + number), kind=kind)
            assert engine.decide([ChargeSet((charge,))])[0]
            clock.advance(us=10_000)
        assert len(engine._core.tables) < 2_000
        assert len(engine._by_rule[None].tables) < 2 * len(engine._core.tables) + 100
        assert not engine.bind(FixedWindow(1, HOUR_US))("stays", 1)

    def test_a_new_key_looks_at_few_of_them_when_memory_is_full(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_keys=1_000, clock=clock)
        for number in range(1_000):
            engine.bind(FixedWindow(5, HOUR_US + number))("key", 1)
        before = list(engine._core._round)
        assert engine.bind(FixedWindow(5, HOUR_US))("another", 1).degraded
        looked_at = TABLES_WHEN_FULL
        assert list(engine._core._round) == [*before[looked_at:], *before[:looked_at]]

    def test_idle_keys_of_all_of_them_make_room(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_keys=1_000, clock=clock)
        for number in range(1_000):
            engine.bind(FixedWindow(5, 1_000_000 + number))("key", 1)
        clock.advance(10)
        hit = engine.bind(FixedWindow(5, HOUR_US))
        degraded = [hit(f"key:{number}", 1).degraded for number in range(1_000)]
        assert not any(degraded)
        assert engine.counters.keys == 1_000

    @pytest.mark.parametrize("first", ["old", "new"])
    def test_one_that_was_let_go_counts_on(
        self, first: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Through whatever held it, and through a table that has taken its place."""
        monkeypatch.setattr("headgate.engines._state_store.FEW_TABLES", 0)
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(2, 1_000_000)
        twin = engine.scoped("")
        old, run = twin.bind(limit), twin.bind_run(limit)
        self._let_go(engine, clock, limit)
        if first == "old":
            assert old("key", 1)
            assert engine.bind(limit)("key", 1)
        else:
            assert engine.bind(limit)("key", 1)
            assert run(["key"], 1).answers[0][0]
        assert not old("key", 1)
        assert not engine.bind(limit)("key", 1)
        assert not twin.decide([ChargeSet((Charge("key", limit),))])[0]
        assert engine.usage("key", limit).used == twin.usage("key", limit).used == 2

    def test_a_reservation_outlives_its_table(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headgate.engines._state_store.FEW_TABLES", 0)
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, 1_000_000)
        charge = Charge("key", limit)
        engine.decide([ChargeSet((charge,), reserve_us=HOUR_US, token=NAME)])
        self._let_go(engine, clock, limit)
        engine.scoped("").bind(limit)("key", 1)
        assert engine.settle(NAME, 5)
        assert engine.usage("key", limit).used == 5
        assert not engine._core.reservations._names

    def test_one_request_of_many_new_ones_is_counted_in_all_of_them(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are empty until all of it is decided, and must not be let go before."""
        monkeypatch.setattr("headgate.engines._state_store.FEW_TABLES", 0)
        engine = MemoryEngine(clock=clock)
        limits = [FixedWindow(5, HOUR_US + number) for number in range(64)]
        charges = tuple(Charge("key", limit) for limit in limits)
        assert engine.decide([ChargeSet(charges)])[0]
        assert {engine.scoped("").usage("key", limit).used for limit in limits} == {1}
        assert engine.decide([ChargeSet((*charges, *charges))])[0]
        assert {engine.usage("key", limit).used for limit in limits} == {3}

    def test_one_request_counts_a_limit_once_whatever_comes_between(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The table of the slots is empty until all of it is decided, and the next in turn to be let go."""
        monkeypatch.setattr("headgate.engines._state_store.FEW_TABLES", 0)
        engine = MemoryEngine(clock=clock)
        slots = Charge("key", Concurrency(1))
        others = [Charge("key", FixedWindow(5, HOUR_US + number)) for number in range(64)]
        assert not engine.decide([ChargeSet((slots, *others, slots))])[0]
        assert engine.decide([ChargeSet((slots, *others))])[0]
        assert not engine.bind(Concurrency(1))("key", 1)

    @staticmethod
    def _let_go(engine: MemoryEngine, clock: ManualClock, limit: Limit) -> None:
        """Ask for windows until that one is gone."""
        clock.advance(10)
        for number in range(10):
            engine.bind(FixedWindow(1, HOUR_US + number))
        assert limit.identity not in {identity for _, _, identity in engine._core.tables}


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

    def test_listing_continues_while_limits_are_added(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        engine.bind(FixedWindow(1, HOUR_US))("key", 1)
        windows = iter(range(1_000, 100_000))

        def work() -> set[int]:
            for _ in range(200):
                engine.bind(FixedWindow(1, next(windows)))
            return {len(engine.list_keys().entries) for _ in range(200)}

        assert _from_threads(8, work) == [{1}] * 8

    def test_a_reservation_settles_once(self, clock: ManualClock) -> None:
        """Eight threads settle the same reservation; one of them does."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, HOUR_US)
        request = ChargeSet((Charge("key", limit, 10),), reserve_us=60_000_000, token=NAME)
        assert engine.decide([request])[0]
        settled = _from_threads(8, lambda: engine.settle(NAME, 4))
        assert sorted(settled) == [False] * 7 + [True]
        assert engine.usage("key", limit).used == 4


class TestReservations:
    """Settling, and what is left when nobody does."""

    def test_an_expired_reservation_stays_charged(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, HOUR_US)
        engine.decide([ChargeSet((Charge("key", limit, 10),), reserve_us=1_000_000, token=NAME)])
        clock.advance(1)
        assert not engine.settle(NAME, 0)
        assert engine.usage("key", limit).used == 10
        assert engine.counters.reservations == 0

    def test_one_token_is_one_reservation(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        request = ChargeSet((Charge("key", "10/hour"),), reserve_us=1_000_000, token=NAME)
        engine.decide([request])
        with pytest.raises(UsageError, match="already open"):
            engine.decide([request])
        assert engine.usage("key", SlidingWindow(10, HOUR_US)).used == 1

    def test_a_denied_reservation_leaves_nothing_behind(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        engine.decide([ChargeSet((Charge("key", "1/hour", 2),), reserve_us=1_000_000, token=NAME)])
        assert engine.counters.reservations == 0

    def test_settling_covers_every_limit_of_the_reservation(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        charge = Charge("key", "100/minute; 1000/hour", 50)
        engine.decide([ChargeSet((charge,), reserve_us=1_000_000, token=NAME)])
        assert engine.settle(NAME, 20)
        assert [engine.usage("key", limit).used for limit in charge.limits] == [20, 20]

    def test_a_reset_ends_the_reservations_of_its_key_and_limit(self, clock: ManualClock) -> None:
        """A refund of what is forgotten would give back what others have taken since."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(10, HOUR_US)
        hit = engine.bind(limit)
        for key in ("key", "other"):
            engine.decide([ChargeSet((Charge(key, limit, 10),), reserve_us=HOUR_US, token=key)])
        engine.reset("key", FixedWindow(5, HOUR_US))
        assert hit("key", 10)
        assert not engine.settle("key", 0)
        assert not hit("key", 1)
        assert engine.settle("other", 4)
        assert engine.usage("other", limit).used == 4
        assert engine.counters.reservations == 0

    def test_a_reset_of_one_limit_ends_the_whole_reservation(self, clock: ManualClock) -> None:
        """It settles as one, or not at all; what the other limits charged stays."""
        engine = MemoryEngine(clock=clock)
        charge = Charge("key", "100/minute; 1000/hour", 50)
        engine.decide([ChargeSet((charge,), reserve_us=1_000_000, token=NAME)])
        engine.reset("key", charge.limits[0])
        assert not engine.settle(NAME, 20)
        assert [engine.usage("key", limit).used for limit in charge.limits] == [0, 50]

    def test_a_reset_of_a_shared_state_ends_the_reservations_of_all_who_share_it(
        self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headgate.engines._state_store.shared_index", lambda *_: 7)
        engine = MemoryEngine(max_keys=1, clock=clock)
        limit = FixedWindow(10, HOUR_US)
        for key in ("first", "stranger", "another"):
            charge = Charge(key, limit, 5)
            engine.decide([ChargeSet((charge,), reserve_us=HOUR_US, token=key)])
        engine.reset("another", limit)
        assert engine.bind(limit)("another", 10)
        assert not engine.settle("stranger", 0)
        assert not engine.settle("another", 0)
        assert engine.settle("first", 0)
        assert not engine.bind(limit)("another", 1)

    def test_reservations_expire_in_any_order(self, clock: ManualClock) -> None:
        """Also beside others that were settled, and under a name that was used before."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(1000, HOUR_US)

        def reserve(name: str, seconds: int) -> None:
            charge = Charge("key", limit)
            engine.decide([ChargeSet((charge,), reserve_us=seconds * 1_000_000, token=name)])

        for seconds in (5, 1, 4, 2, 3):
            reserve(f"{seconds}", seconds)
        assert engine.settle("2", 1)
        reserve("2", 6)
        clock.advance(3)
        assert not engine.settle("3", 1)
        assert engine.counters.reservations == 3
        assert engine.settle("2", 1)
        clock.advance(1.5)
        assert not engine.settle("4", 1)
        assert engine.settle("5", 1)
        assert engine.counters.reservations == 0

    def test_settled_reservations_leave_nothing_behind(self, clock: ManualClock) -> None:
        """Each is dropped long before it would have expired."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(1000, HOUR_US)
        for number in range(1000):
            request = ChargeSet((Charge("key", limit),), reserve_us=HOUR_US, token=f"{number}")
            engine.decide([request])
            assert engine.settle(f"{number}", 0)
        assert len(engine._core.reservations._due) < 100
        assert not engine._core.reservations._names


class TestLine:
    """Those who wait have been told when to start, and nobody may start beside them."""

    @pytest.mark.parametrize("max_keys", [100, 1], ids=["own state", "shared state"])
    def test_a_refund_leaves_the_line_alone_after_its_last_one_has_left(
        self, max_keys: int, clock: ManualClock
    ) -> None:
        """Five wait in line, a sixth joins and leaves: a newcomer still starts behind the fifth."""
        engine = MemoryEngine(max_keys=max_keys, clock=clock)
        engine.bind(FixedWindow(1, HOUR_US))("somebody else", 1)
        charge = Charge("key", TokenBucket(10, 1_000_000, 1))
        in_line = ChargeSet((charge,), wait_us=HOUR_US)
        engine.decide([ChargeSet((charge,), reserve_us=HOUR_US, token=NAME)])
        *five, sixth = (engine.decide([in_line])[0] for _ in range(6))
        assert [one.retry_after_us for one in five] == [n * 100_000 for n in range(1, 6)]
        engine.leave_line(sixth)
        engine.settle(NAME, 0)
        assert engine.decide([in_line])[0].retry_after_us == 600_000

    def test_a_refund_counts_from_the_moment_on_at_which_the_last_one_starts(
        self, clock: ManualClock
    ) -> None:
        engine = MemoryEngine(clock=clock)
        charge = Charge("key", TokenBucket(4, 1_000_000, 2))
        in_line = ChargeSet((charge,), wait_us=HOUR_US)
        for name in ("one", "two"):
            engine.decide([ChargeSet((charge,), reserve_us=HOUR_US, token=name)])
        starts_us = engine.decide([in_line])[0].retry_after_us
        clock.advance(us=starts_us - 1)
        engine.settle("one", 0)
        assert not engine.bind(charge.limits[0])("key", 1)
        clock.advance(us=1)
        engine.settle("two", 0)
        assert engine.bind(charge.limits[0])("key", 1)

    def test_a_refund_counts_again_once_the_line_is_empty(self, clock: ManualClock) -> None:
        """The only one in line leaves: nobody is left who was told when to start."""
        engine = MemoryEngine(clock=clock)
        bucket = TokenBucket(10, 1_000_000, 1)
        charge = Charge("key", bucket)
        engine.decide([ChargeSet((charge,), reserve_us=HOUR_US, token=NAME)])
        engine.leave_line(engine.decide([ChargeSet((charge,), wait_us=HOUR_US)])[0])
        engine.settle(NAME, 0)
        assert engine.usage("key", bucket).used == 0


def test_a_peek_among_takes_can_deny_them(clock: ManualClock) -> None:
    """Looking is a condition too: what it denies is not taken elsewhere."""
    engine = MemoryEngine(clock=clock)
    full, free = FixedWindow(0, HOUR_US), FixedWindow(5, HOUR_US)
    request = ChargeSet((Charge("full", full, kind=ChargeKind.PEEK), Charge("free", free)))
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


def test_listing_reports_the_limit_used_last(clock: ManualClock, tmp_path: Path) -> None:
    """Also after a restart, when the state file has brought states without their number."""
    engine = MemoryEngine(clock=clock, state_file=tmp_path / "state")
    engine.bind(FixedWindow(9, HOUR_US))("key", 2)
    assert [entry.limit for entry in engine.list_keys().entries] == [9]
    engine.bind(FixedWindow(7, HOUR_US))("key", 2)
    assert [entry.limit for entry in engine.list_keys().entries] == [7]
    engine.close()
    engine = MemoryEngine(clock=clock, state_file=tmp_path / "state")
    engine.bind(FixedWindow(7, HOUR_US))
    assert [(entry.limit, entry.count) for entry in engine.list_keys().entries] == [(7, 4)]
    engine.close()


def test_listing_is_not_changed_by_those_who_take_nothing(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    limit, other = TokenBucket(10, HOUR_US), TokenBucket(1, HOUR_US)
    engine.usage("key", other)
    engine.bind(limit)("key", 2)
    engine.usage("key", other)
    engine.reset("nobody", other)
    engine.decide([ChargeSet((Charge("key", other, kind=ChargeKind.PEEK),))])
    (entry,) = engine.list_keys().entries
    assert (entry.limit, entry.count, entry.limit_known) == (10, 2, True)
    slots, fewer = Concurrency(10), Concurrency(1)
    engine.decide([ChargeSet((Charge("held", slots),), token=NAME)])
    engine.renew("held", fewer, NAME)
    engine.release("held", fewer, "nobody")
    (entry,) = engine.list_keys("held").entries
    assert (entry.limit, entry.limit_known) == (10, True)


@pytest.mark.parametrize("by", ["hit", "decide"])
def test_listing_marks_limits_it_cannot_attribute(by: str, clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    limits = {"ten": FixedWindow(10, HOUR_US), "five": FixedWindow(5, HOUR_US)}
    hits = {key: engine.bind(limit) for key, limit in limits.items() if by == "hit"}
    for key, limit in limits.items():
        for _ in range(2):
            if by == "hit":
                hits[key](key, 1)
            else:
                engine.decide([ChargeSet((Charge(key, limit),))])
    assert [entry.limit_known for entry in engine.list_keys().entries] == [False, False]


def test_listing_skips_no_key_whatever_it_is_made_of(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    keys = ["a", "a\0", "a\0b", "b", "\0"]
    for key in keys:
        for rule in (None, "z"):
            engine.bind(FixedWindow(1, HOUR_US), rule)(key, 1)
    seen, cursor = [], ""
    while True:
        entries, cursor = engine.list_keys("", cursor, 1)
        seen += [(entry.key, entry.rule) for entry in entries]
        if not cursor:
            break
    assert sorted(seen, key=str) == sorted([(k, r) for k in keys for r in (None, "z")], key=str)


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


class TestRuns:
    """Several keys in one go."""

    @pytest.mark.parametrize(
        "limit",
        [
            FixedWindow(3, HOUR_US),
            SlidingWindow(3, HOUR_US),
            SlidingLog(3, HOUR_US),
            TokenBucket(3, HOUR_US),
            ExponentialBackoff(3, HOUR_US),
            Adaptive(3, HOUR_US),
        ],
        ids=lambda limit: limit.name,
    )
    def test_a_run_is_answered_as_hits_one_after_the_other(self, limit: Limit) -> None:
        """Keys that come again see what was taken before, over generations and with little memory."""
        one_clock, run_clock = ManualClock(), ManualClock()
        hit = MemoryEngine(max_keys=6, clock=one_clock).bind(limit, "rule")
        hit_run = MemoryEngine(max_keys=6, clock=run_clock).bind_run(limit, "rule")
        chance = Random(7)
        seen: Counter[bool] = Counter()
        for _ in range(200):
            keys = [f"key:{chance.randrange(9)}" for _ in range(chance.randrange(1, 7))]
            cost = chance.randrange(3)
            decisions = hit_run(keys, cost).decisions()
            expected = [hit(key, cost) for key in keys]
            # Who shares a state with whom is up to each engine's secret.
            if not any(one.degraded for one in (*decisions, *expected)):
                assert decisions == expected
            seen.update(one.allowed for one in decisions)
            step = chance.choice((0, 1, 600, 1_800))
            one_clock.advance(step)
            run_clock.advance(step)
        assert min(seen[True], seen[False]) > 50

    def test_those_who_share_a_state_are_degraded_and_no_others(self, clock: ManualClock) -> None:
        engine = MemoryEngine(max_keys=2, clock=clock)
        run = engine.bind_run(FixedWindow(9, HOUR_US), "rule")(["a", "b", "c", "a"], 1)
        assert list(run.degraded) == [2]
        decisions = run.decisions()
        assert [one.degraded for one in decisions] == [False, False, True, False]
        assert [one.key for one in decisions] == ["a", "b", "c", "a"]
        assert {one.rule for one in decisions} == {"rule"}
        assert engine.counters.shared == 1

    def test_a_run_sees_a_generation_that_turns_within_it(self, clock: ManualClock) -> None:
        """The first new key begins a new generation, and the key behind it is found all the same."""
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(9, HOUR_US)
        hit_run = engine.bind_run(limit)
        hit_run(["known"], 1)
        clock.advance(1_800)
        answers = hit_run(["new", "known", "newer", "known"], 1).answers
        assert [answer[1] for answer in answers] == [8, 7, 8, 6]
        assert engine.usage("known", limit).used == 3

    @pytest.mark.parametrize("cost", [-1, True, 1.0, 2**53])
    def test_a_cost_that_is_none_is_refused_before_anything_is_taken(
        self, clock: ManualClock, cost: int
    ) -> None:
        engine = MemoryEngine(clock=clock)
        limit = FixedWindow(9, HOUR_US)
        with pytest.raises(UsageError, match="cost"):
            engine.bind_run(limit)(["a"], cost)
        assert engine.usage("a", limit).used == 0

    def test_a_key_that_is_none_lets_go_of_the_lock(self, clock: ManualClock) -> None:
        engine = MemoryEngine(clock=clock)
        hit_run = engine.bind_run(FixedWindow(9, HOUR_US))
        with pytest.raises(UsageError, match="empty"):
            hit_run(["a", "", "b"], 1)
        assert [answer[1] for answer in hit_run(["a", "b"], 1).answers] == [7, 8]
