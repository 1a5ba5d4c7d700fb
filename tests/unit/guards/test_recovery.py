"""The recovery, step by step: when the breaker closes, and when it must not."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from headgate import Charge, Concurrency, Decision, EngineError, FixedWindow
from headgate.charge import ChargeSet
from headgate.errors import EngineTimeout
from headgate.guards.breaker import Breaker
from headgate.guards.local_counts import LocalCounts
from headgate.guards.recovery import EngineCall, ProbePause, recover
from headgate.guards.shares import Fleet
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate.guards.recovery import Recovery, RecoveryStep

LIMIT = FixedWindow(10, 60_000_000)
HOLDER = "holder"
GRANTED = Decision("k", LIMIT, (True, 1, 0, 0, 0))
DENIED = Decision("k", LIMIT, (False, 0, 1, 0, 0))
LATE = EngineTimeout("it is down", transient=True, indefinite=True)


class Store:
    """A store that has gone away, and what is done about it, one step at a time."""

    def __init__(self, *, admitted: int = 1) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock, 0.025)
        self.local = LocalCounts(self.clock, Fleet)
        for number in range(admitted):
            self.local.decide(ChargeSet((Charge(f"key {number}", LIMIT),)))

    def open(self) -> None:
        for _ in range(2):
            self.breaker.failed(self.clock.ticks(), LATE)
        assert self.breaker.is_open

    def recovery(self) -> Recovery:
        return recover(self.breaker, self.local, self.clock)


def call_after_pause(recovery: Recovery) -> EngineCall:
    """The next call that it makes."""
    step: RecoveryStep = next(recovery)
    while isinstance(step, ProbePause):
        step = recovery.send(None)
    return step


def is_merge(step: Any) -> bool:
    return isinstance(step, EngineCall) and not str(step.args).count("headgate:probe")


def test_a_charge_that_fails_late_does_not_close_a_breaker_that_opened_meanwhile() -> None:
    """Callers lost the store while it was told of an admission, and the time that telling may take was over."""
    store = Store()
    recovery = store.recovery()
    assert is_merge(call_after_pause(recovery))
    store.open()
    store.clock.advance(us=2_000_000)
    recovery.throw(LATE)
    assert store.breaker.is_open


def test_a_store_that_fails_late_during_the_merge_is_not_called_again() -> None:
    store = Store()
    store.open()
    recovery = store.recovery()
    step: Any = call_after_pause(recovery)
    while not is_merge(step):
        step = recovery.send(None)
    store.clock.advance(us=2_000_000)
    step = recovery.throw(LATE)
    assert store.breaker.is_open
    assert isinstance(step, ProbePause)


def test_a_breaker_that_opens_during_the_merge_is_closed_by_probes_only() -> None:
    store = Store()
    recovery = store.recovery()
    assert is_merge(call_after_pause(recovery))
    store.open()
    step: Any = recovery.send([])
    for _ in range(3):
        assert store.breaker.is_open
        assert isinstance(step, ProbePause)
        assert not is_merge(recovery.send(None))
        step = next(recovery, None)
    assert not store.breaker.is_open


def test_a_merge_that_takes_too_long_does_not_keep_the_breaker_open() -> None:
    store = Store(admitted=300)
    store.open()
    recovery = store.recovery()
    step: Any = call_after_pause(recovery)
    while not is_merge(step):
        step = recovery.send(None)
    store.clock.advance(us=2_000_000)
    step = recovery.send([])
    assert not store.breaker.is_open
    assert store.local.has_debts
    step = call_after_pause(recovery) if isinstance(step, ProbePause) else step
    assert len(step.args[0]) > 1  # Nothing has failed, so the rest goes along together as well.


def test_a_charge_that_fails_alone_is_made_again() -> None:
    store = Store()
    recovery = store.recovery()
    call_after_pause(recovery)
    recovery.throw(EngineError("CLUSTERDOWN", transient=True))
    assert is_merge(call_after_pause(recovery))


@pytest.mark.parametrize("admitted", [1, 200])
def test_what_is_about_to_be_charged_when_a_recovery_ends_is_still_owed(admitted: int) -> None:
    """An interrupt, or an event loop that is stopped and left behind: the next recovery charges it."""
    store = Store(admitted=admitted)
    begun = store.recovery()
    assert is_merge(call_after_pause(begun))
    begun.close()
    charged: list[Any] = []
    recovery = store.recovery()
    with contextlib.suppress(StopIteration):
        step: Any = call_after_pause(recovery)
        while True:
            if is_merge(step):
                charged += [request.charges[0].key for request in step.args[0]]
            step = recovery.send([GRANTED])
    assert sorted(charged) == sorted(f"key {number}" for number in range(admitted))


class TestReservations:
    """A reservation of ten that was made here, and is settled for less."""

    @staticmethod
    def owed(local: LocalCounts) -> list[tuple[str, int]]:
        return [(one.charges[0].key, one.charges[0].cost) for one in local.next_debts(128)]

    @staticmethod
    def store() -> Store:
        store = Store(admitted=0)
        request = ChargeSet((Charge("k", LIMIT, 10),), reserve_us=90_000_000, token=HOLDER)
        assert store.local.decide(request)
        return store

    def test_what_others_owe_in_a_later_window_stays_owed(self) -> None:
        """Its own units are not owed any more, so they are not to be taken off."""
        store = self.store()
        store.clock.advance(us=60_000_000)
        assert all(store.local.decide(ChargeSet((Charge("k", LIMIT),))) for _ in range(4))
        store.open()
        recovery = store.recovery()
        step: Any = call_after_pause(recovery)
        while not is_merge(step):
            step = recovery.send(None)
        recovery.throw(LATE)
        assert store.local.settle(HOLDER, (0,))
        assert self.owed(store.local) == [("k", 4)]

    def test_one_that_is_too_old_stays_owed(self) -> None:
        store = Store(admitted=0)
        request = ChargeSet((Charge("k", LIMIT, 10),), reserve_us=1_000_000, token=HOLDER)
        assert store.local.decide(request)
        store.clock.advance(us=2_000_000)
        assert store.local.settle(HOLDER, (0,)) is False
        assert self.owed(store.local) == [("k", 10)]

    def test_in_its_window_it_is_owed_as_it_was_settled(self) -> None:
        store = self.store()
        assert store.local.settle(HOLDER, (3,))
        assert self.owed(store.local) == [("k", 3)]


class TestMovingSlots:
    """A slot that is released while the store is asked to take it over must not stay there."""

    LIMIT = Concurrency(4)

    def begin(self) -> tuple[Store, Recovery, EngineCall]:
        """Up to the call that moves the slot."""
        store = Store(admitted=0)
        store.local.decide(ChargeSet((Charge("k", self.LIMIT),), token=HOLDER))
        store.open()
        recovery = store.recovery()
        step: Any = next(recovery)
        while isinstance(step, ProbePause) or not is_merge(step):
            step = recovery.send(None)
        assert step.args[0][0].token == HOLDER
        return store, recovery, step

    def release(self, store: Store) -> bool:
        return store.local.release("k", self.LIMIT, HOLDER, None)

    def test_the_store_lets_go_of_what_it_took_after_that(self) -> None:
        store, recovery, _ = self.begin()
        assert not self.release(store)  # Also told at once; but that may be overtaken.
        step: Any = recovery.send([GRANTED])
        while isinstance(step, ProbePause):
            step = recovery.send(None)
        assert step == EngineCall("release", ("k", self.LIMIT, HOLDER, None))

    def test_one_whose_answer_is_lost_is_released_in_both_places(self) -> None:
        store, recovery, _ = self.begin()
        with contextlib.suppress(StopIteration):
            recovery.throw(LATE)
        assert store.local.renew("k", self.LIMIT, HOLDER, None)
        assert not self.release(store)
        assert store.local.renew("k", self.LIMIT, HOLDER, None) is None

    def test_one_that_was_released_while_its_answer_got_lost_is_let_go_of(self) -> None:
        store, recovery, _ = self.begin()
        self.release(store)
        step: Any = recovery.throw(LATE)
        while isinstance(step, ProbePause):
            step = recovery.send(None)
        assert step.verb == "release"

    def test_one_that_the_store_has_no_room_for_stays_here(self) -> None:
        store, recovery, _ = self.begin()
        with contextlib.suppress(StopIteration):
            recovery.send([DENIED])
        assert self.release(store)


def test_dropping_a_call_while_the_store_is_charged_drops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.guards.local_counts.MAX_LATER", 2)
    local = LocalCounts(ManualClock(), Fleet)
    for token in ("a", "b"):
        local.defer("settle", token, 0)
    told = []
    for one in local.waiting():
        told.append(one.args[0])
        if len(told) == 1:
            local.defer("settle", "c", 0)  # There is no room: the oldest is dropped.
    assert told == ["a", "b"]
    assert [one.args[0] for one in local.waiting()] == ["c"]


@pytest.mark.parametrize("error", [GeneratorExit(), ZeroDivisionError()])
def test_what_was_on_its_way_when_the_recovery_ended_is_still_owed(error: BaseException) -> None:
    """An event loop cancels its tasks when it ends; the next one goes on."""
    store = Store(admitted=3)
    recovery = store.recovery()
    assert is_merge(call_after_pause(recovery))
    with contextlib.suppress(type(error)):
        recovery.throw(error)
    again = call_after_pause(store.recovery())
    assert sorted(one.charges[0].key for one in again.args[0]) == ["key 0", "key 1", "key 2"]
