"""Token bucket, by example: 10 units a second, 10 at once."""

from __future__ import annotations

import pytest

from headgate.algorithms import NEVER, TokenBucket
from headgate.algorithms.base import MAX_WINDOW_US

SECOND_US = 1_000_000
LIMIT = TokenBucket(10, SECOND_US)
T_US = 100_000 * SECOND_US


def test_a_burst_at_once_and_then_a_steady_rate() -> None:
    """One unit flows back every 100 ms."""
    state, burst = LIMIT.take(None, T_US, 10)
    state, denied = LIMIT.take(state, T_US, 1)
    state, later = LIMIT.take(state, T_US + 250_000, 2)
    assert burst == (True, 0, 0, SECOND_US, 0)
    assert denied == (False, 0, 100_000, SECOND_US, 0)
    assert later == (True, 0, 0, 950_000, 0)


def test_a_peek_at_ten_of_ten_says_denied() -> None:
    """A peek evaluates its cost."""
    state, _ = LIMIT.take(None, T_US, 10)
    assert LIMIT.peek(state, T_US, 1) == (False, 0, 100_000, SECOND_US, 0)
    assert LIMIT.peek(state, T_US + 100_000, 1) == (True, 1, 0, 900_000, 0)


def test_an_idle_key_gives_a_burst_and_no_more() -> None:
    """However long it was idle."""
    bucket = TokenBucket(10, SECOND_US, burst=3)
    state, _ = bucket.take(None, T_US, 1)
    state, answer = bucket.take(state, T_US + 3_600 * SECOND_US, 3)
    assert answer == (True, 0, 0, 300_000, 0)
    assert bucket.take(state, T_US + 3_600 * SECOND_US, 4)[1] == (False, 0, NEVER, 300_000, 0)


def test_the_rate_is_never_rounded_in_favour_of_the_caller() -> None:
    """Three a second: a unit takes a third of a second, rounded up to 1/256 of a microsecond."""
    bucket = TokenBucket(3, SECOND_US)
    state, _ = bucket.take(None, T_US, 3)
    assert bucket.emission == 85_333_334
    assert bucket.peek(state, T_US, 1) == (False, 0, 333_334, 1_000_001, 0)


def test_a_clock_that_steps_back_costs_nothing_and_freezes_nothing() -> None:
    """What flowed back stays so, and the rest goes on flowing from the new time."""
    state, _ = LIMIT.take(None, T_US, 10)
    state, _ = LIMIT.take(state, T_US + 500_000, 1)
    early_us = T_US - 3_600 * SECOND_US
    state, answer = LIMIT.take(state, early_us, 5)
    assert answer == (False, 4, 100_000, 600_000, 0)
    assert LIMIT.peek(state, early_us + 100_000, 5) == (True, 5, 0, 500_000, 0)


def test_a_limit_of_zero_denies_everything() -> None:
    """And is no error."""
    assert TokenBucket(0, SECOND_US).take(None, T_US, 1) == (None, (False, 0, NEVER, 0, 0))


def test_a_refund_gives_back_only_what_has_not_flowed_back() -> None:
    """Reserve 10, wait until all is back, take 5, refund 10: there are still only 5."""
    state, before = LIMIT.watch(LIMIT.take(None, T_US, 10)[0])
    assert (before, LIMIT.low(state)) == (0, LIMIT.capacity)
    state, _ = LIMIT.take(state, T_US + 5 * SECOND_US, 5)
    assert LIMIT.low(state) == 0
    after, given = LIMIT.refund(state, None, T_US + 5 * SECOND_US, 10, LIMIT.low(state))
    _, answer = LIMIT.take(after, T_US + 5 * SECOND_US, 10)
    assert given == 0
    assert answer == (False, 5, 500_000, 500_000, 0)


def test_an_early_refund_gives_back_what_is_left_of_its_take() -> None:
    """Half of the 10 have flowed back after half a second; the other 5 can be given back."""
    state, _ = LIMIT.watch(LIMIT.take(None, T_US, 10)[0])
    after, given = LIMIT.refund(state, None, T_US + 500_000, 10, LIMIT.low(state))
    assert given == 5 * LIMIT.emission
    assert LIMIT.peek(after, T_US + 500_000, 10) == (True, 10, 0, 0, 0)


def test_a_low_water_mark_is_the_smallest_backlog_before_any_take() -> None:
    """It falls with the backlog, never rises, and says nothing about what was before it."""
    state, _ = LIMIT.watch(LIMIT.take(None, T_US, 10)[0])
    state, _ = LIMIT.take(state, T_US + 300_000, 3)
    assert LIMIT.low(state) == 7 * LIMIT.emission
    assert LIMIT.low(LIMIT.charge(state, T_US + 400_000, 1)) == 7 * LIMIT.emission
    assert LIMIT.low(LIMIT.force(state, T_US + 700_000, 3)[0]) == 6 * LIMIT.emission
    again, before = LIMIT.watch(state)
    assert (before, LIMIT.low(again)) == (7 * LIMIT.emission, LIMIT.capacity)
    assert LIMIT.unwatch(again) == LIMIT.unwatch(state)


def test_a_state_with_a_low_water_mark_answers_as_without() -> None:
    plain, _ = LIMIT.take(None, T_US, 4)
    state, _ = LIMIT.watch(plain)
    for now_us in (T_US, T_US + 1, T_US + SECOND_US):
        for cost in (0, 1, 6, 7, 11):
            assert LIMIT.take(state, now_us, cost)[1] == LIMIT.take(plain, now_us, cost)[1]
            assert LIMIT.peek(state, now_us, cost) == LIMIT.peek(plain, now_us, cost)
            assert LIMIT.force(state, now_us, cost)[1] == LIMIT.force(plain, now_us, cost)[1]
    assert LIMIT.used(state, T_US) == 4
    assert LIMIT.idle_at_us(state) == LIMIT.idle_at_us(plain)
    assert LIMIT.encode(state) == LIMIT.encode(plain)


ONE_BY_ONE = TokenBucket(1, SECOND_US)


def line(*costs: int) -> tuple[list[int], list[int]]:
    """Let as many line up at `T_US`; return the states after each, and when each may start."""
    state: int | None = None
    states, starts = [], []
    for cost in costs:
        state, answer = ONE_BY_ONE.line_up(state, T_US, cost, 10 * SECOND_US)
        assert answer[0]
        assert state is not None
        states.append(state)
        starts.append(answer[2])
    return states, starts


def test_who_waits_is_served_in_the_order_of_arrival() -> None:
    """The first at once, and then one a second."""
    assert line(1, 1, 1, 1)[1] == [0, SECOND_US, 2 * SECOND_US, 3 * SECOND_US]


def test_who_would_wait_too_long_is_denied() -> None:
    """And is told how long it would have been."""
    states, _ = line(1, 1)
    state, denied = ONE_BY_ONE.line_up(states[-1], T_US, 1, 2 * SECOND_US - 1)
    assert state is states[-1]
    assert denied == (False, 0, 2 * SECOND_US, 2 * SECOND_US, 0)


def test_who_is_willing_to_wait_just_long_enough_is_let_in() -> None:
    """Not a microsecond more is needed."""
    states, _ = line(1, 1)
    _, allowed = ONE_BY_ONE.line_up(states[-1], T_US, 1, 2 * SECOND_US)
    assert allowed == (True, 0, 2 * SECOND_US, 3 * SECOND_US, 0)


def test_the_last_in_line_gives_its_slot_back() -> None:
    """The next to come gets it."""
    states, _ = line(1, 1, 1)
    before, last = states[1], states[2]
    assert before is not None
    assert last is not None
    state = ONE_BY_ONE.leave_line(last, last, before, T_US)
    assert state == before
    assert ONE_BY_ONE.line_up(state, T_US, 1, 10 * SECOND_US)[1][2] == 2 * SECOND_US


def test_a_slot_is_not_given_back_from_under_what_came_after_it() -> None:
    """Those behind have been told when to start: closing the gap would let two start at once."""
    first, second, third = line(1, 1, 1)[0]
    assert first is not None
    assert second is not None
    assert third is not None
    assert ONE_BY_ONE.leave_line(third, second, first, T_US) is None
    forced, _ = ONE_BY_ONE.force(second, T_US, 1)
    assert forced is not None
    assert ONE_BY_ONE.leave_line(forced, second, first, T_US) is None


def test_starts_keep_their_distance_when_a_unit_takes_no_whole_microsecond() -> None:
    """700,000 a second are 1.43 us each; starts are whole microseconds, and so 2 apart, not 1."""
    bucket = TokenBucket(700_000, SECOND_US, burst=1)
    state, starts = None, []
    for _ in range(4):
        state, answer = bucket.line_up(state, T_US, 1, SECOND_US)
        starts.append(answer[2])
    assert starts == [0, 2, 4, 6]


def test_a_line_longer_than_can_be_counted_is_denied() -> None:
    """A unit a year: the second in line would start where the backlog is no longer exact."""
    bucket = TokenBucket(1, MAX_WINDOW_US)
    state, _ = bucket.take(None, T_US, 1)
    after, answer = bucket.line_up(state, T_US, 1, MAX_WINDOW_US)
    assert after is state
    assert answer == (False, 0, MAX_WINDOW_US, MAX_WINDOW_US, 0)


@pytest.mark.parametrize("cost, used", [(25, 25), (0, 0)])
def test_a_forced_charge_is_a_debt_that_drains_like_any_other(cost: int, used: int) -> None:
    """It is not refused, and nothing is forgiven."""
    state, answer = LIMIT.force(None, T_US, cost)
    assert answer == (True, max(0, 10 - cost), 0, cost * 100_000, 0)
    assert LIMIT.used(state, T_US) == used
