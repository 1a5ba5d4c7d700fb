"""The recovery, step by step: when the breaker closes, and when it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate import Charge, EngineError, FixedWindow
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
    assert store.local.owes
    step = call_after_pause(recovery) if isinstance(step, ProbePause) else step
    assert len(step.args[0]) > 1  # Nothing has failed, so the rest goes along together as well.


def test_a_charge_that_fails_alone_is_made_again() -> None:
    store = Store()
    recovery = store.recovery()
    call_after_pause(recovery)
    recovery.throw(EngineError("CLUSTERDOWN", transient=True))
    assert is_merge(call_after_pause(recovery))
