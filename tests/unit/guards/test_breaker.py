"""The breaker: when it opens, when it does not, and when it closes."""

from __future__ import annotations

import pytest

from headgate.errors import EngineBusy, EngineConnectionError, EngineError, EngineTimeout
from headgate.guards.breaker import FIRST_PAUSE_S, GOOD_PROBES, LAST_PAUSE_S, Breaker
from headgate.testing import ManualClock

DEADLINE = 0.025
LATE = EngineTimeout("late", transient=True, indefinite=True)
BROKEN = EngineConnectionError("broken", transient=True)
REFUSED = EngineError("WRONGTYPE", transient=False)


class Store:
    """A breaker, and calls that take their time."""

    def __init__(self, *, deadline: float = DEADLINE, keeps_deadline: bool = True) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock, deadline, keeps_deadline=keeps_deadline)
        self.changes: list[bool] = []
        self.breaker.on_change = lambda: self.changes.append(self.breaker.is_open)

    def opened(self) -> bool:
        return self.breaker.is_open

    def call(self, error: EngineError | None = None, seconds: float = 0.001) -> bool:
        """One call; whether the store was asked."""
        asked_ns = self.clock.ticks() if self.breaker.calm else self.breaker.ask()
        if not asked_ns:
            return False
        self.clock.advance(seconds)
        if error is None:
            if not self.breaker.calm:
                self.breaker.answered(asked_ns)
        else:
            self.breaker.failed(asked_ns, error)
        return True


def test_two_time_outs_open_it() -> None:
    store = Store()
    assert store.call()
    assert store.call(LATE, DEADLINE)
    assert not store.opened()
    store.clock.advance(1)  # However far apart, as long as nothing was answered in between.
    assert store.call(LATE, DEADLINE)
    assert store.opened()
    assert not store.call()
    assert store.breaker.openings == 1
    assert store.breaker.problem == "late"


def test_answers_between_time_outs_keep_it_closed() -> None:
    store = Store()
    for _ in range(100):
        assert store.call(LATE, DEADLINE)
        assert store.call()
        assert store.call()
    assert store.changes == []


@pytest.mark.parametrize("deadline", [DEADLINE, 1.0])
def test_it_opens_if_half_of_five_calls_time_out_within_four_deadlines(deadline: float) -> None:
    store = Store(deadline=deadline)
    for error in (LATE, None, LATE, None):
        assert store.call(error, deadline if error else 0.001)
    assert not store.opened()
    assert store.call(LATE, deadline)
    assert store.opened()


def test_time_outs_that_are_further_apart_than_four_deadlines_do_not_open_it() -> None:
    store = Store()
    for _ in range(50):
        assert store.call(LATE, DEADLINE)
        assert store.call()
        store.clock.advance(0.1)
    assert store.changes == []


def test_any_failure_after_a_time_out_opens_it() -> None:
    store = Store()
    assert store.call(LATE, DEADLINE)
    assert not store.opened()
    assert store.call(BROKEN)
    assert store.opened()


def test_an_error_that_took_the_whole_deadline_is_a_time_out() -> None:
    store = Store()
    assert store.call(BROKEN, DEADLINE)
    assert store.call(BROKEN, DEADLINE)
    assert store.opened()


def test_half_of_five_calls_within_100_ms_open_it() -> None:
    store = Store()
    for error in (BROKEN, None, BROKEN, None):
        store.call(error)
    assert not store.opened()
    store.call(BROKEN)
    assert store.opened()


def test_errors_that_are_rare_or_far_apart_do_not() -> None:
    store = Store()
    for _ in range(50):
        store.call(BROKEN)
        store.call()
        store.call()
    for _ in range(50):
        store.call(BROKEN)
        store.clock.advance(0.1)
    assert store.changes == []


def test_an_error_that_would_come_again_says_nothing_about_the_store() -> None:
    store = Store()
    for _ in range(50):
        assert store.call(REFUSED)
    assert store.changes == []


def test_an_error_about_some_keys_only_says_nothing_about_the_store() -> None:
    store = Store()
    hangs = EngineTimeout("the node that owns the key hangs", transient=True)
    hangs.partial = True
    for _ in range(20):
        store.call(hangs, DEADLINE)
    assert not store.opened()


def test_a_full_queue_of_this_process_says_nothing_about_the_store() -> None:
    store = Store()
    for _ in range(20):
        store.call(EngineBusy("100 requests already wait", transient=True))
    assert not store.opened()


def test_answers_that_come_too_late_open_it_but_the_first_may_have_had_to_connect() -> None:
    store = Store(keeps_deadline=False)
    store.call(seconds=1)
    store.call(seconds=1)
    assert not store.opened()
    store.call(seconds=1)
    assert store.opened()


def test_after_a_time_out_no_caller_queues_behind_the_trial_call() -> None:
    store = Store()
    store.call(LATE, DEADLINE)
    trial_ns = store.breaker.ask()
    assert trial_ns
    assert [store.call() for _ in range(10)] == [False] * 10
    store.breaker.answered(trial_ns)
    assert store.call()


def test_a_trial_whose_caller_went_away_is_followed_by_another() -> None:
    store = Store()
    store.call(LATE, DEADLINE)
    assert store.breaker.ask()
    assert not store.breaker.ask()
    store.clock.advance(DEADLINE)
    assert store.breaker.ask()


def test_it_closes_after_good_probes_in_a_row_only() -> None:
    store = Store()
    store.call(LATE, DEADLINE)
    store.call(LATE, DEADLINE)
    pattern = [True] * (GOOD_PROBES - 1) + [False]
    assert not any(store.breaker.probed(good=good) for good in pattern * 20)
    assert store.opened()
    assert [store.breaker.probed(good=True) for _ in range(GOOD_PROBES)][-1]
    store.breaker.close()
    assert store.call()
    assert store.changes == [True, False]


def test_the_pauses_between_probes_grow_to_a_bound_and_differ() -> None:
    breaker = Store().breaker
    assert 0 < breaker.pause_s() <= FIRST_PAUSE_S
    for _ in range(20):
        breaker.probed(good=False)
    pauses = {breaker.pause_s() for _ in range(20)}
    assert len(pauses) > 1
    assert LAST_PAUSE_S / 2 < max(pauses) <= LAST_PAUSE_S
    breaker.probed(good=True)
    assert breaker.pause_s() <= FIRST_PAUSE_S
