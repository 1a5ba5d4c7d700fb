"""Sliding window, by example: 10 units in a window of 1,000,000 microseconds."""

from __future__ import annotations

import time

import pytest

from headgate.algorithms import NEVER, SlidingWindow
from headgate.algorithms.sliding_window import MAX_LIMIT, Counters

WINDOW_US = 1_000_000
LIMIT = SlidingWindow(10, WINDOW_US)
T_US = 50 * WINDOW_US
"""A boundary between two windows."""


def eight_then_three() -> Counters:
    """8 units in the previous window, and 3 in the one from `T_US`."""
    state, _ = LIMIT.take(None, T_US - 1, 8)
    state, _ = LIMIT.take(state, T_US + 400_000, 3)
    assert state is not None
    return state


def test_the_previous_window_fades_as_the_current_one_runs() -> None:
    """40 % into the window, 60 % of 8 still count: 4.8 + 3 leaves room for 2."""
    state = eight_then_three()
    assert state == (T_US, 8, 3)
    assert LIMIT.peek(state, T_US + 400_000, 2) == (True, 2, 0, 1_600_000, 0)
    assert LIMIT.used(state, T_US + 400_000) == 8


def test_retry_names_the_microsecond_at_which_enough_has_faded() -> None:
    """3 more need 8 · weight + 3 + 3 <= 10, so a weight of one half."""
    state = eight_then_three()
    assert LIMIT.peek(state, T_US + 400_000, 3) == (False, 2, 100_000, 1_600_000, 0)
    assert LIMIT.peek(state, T_US + 499_999, 3) == (False, 2, 1, 1_500_001, 0)
    assert LIMIT.peek(state, T_US + 500_000, 3) == (True, 3, 0, 1_500_000, 0)


def test_a_full_window_has_to_become_the_previous_one_first() -> None:
    """10 units fade to 9 in the first tenth of the next window."""
    state, full = LIMIT.take(None, T_US, 10)
    state, denied = LIMIT.take(state, T_US, 1)
    assert full == (True, 0, 0, 2_000_000, 0)
    assert denied == (False, 0, 1_100_000, 2_000_000, 0)
    assert LIMIT.peek(state, T_US + 1_099_999, 1)[0] is False
    assert LIMIT.take(state, T_US + 1_100_000, 1)[1] == (True, 0, 0, 1_900_000, 0)


def test_after_two_windows_nothing_is_left() -> None:
    """And the state means the same as none."""
    state, _ = LIMIT.take(None, T_US, 10)
    assert state is not None
    assert LIMIT.idle_at_us(state) == T_US + 2_000_000
    assert LIMIT.peek(state, T_US + 2_000_000, 10) == (True, 10, 0, 0, 0)


def test_the_weight_is_never_rounded_in_favour_of_the_caller() -> None:
    """A window of a minute and 7 us has steps of 58 us; until a step is over it counts in full."""
    limit = SlidingWindow(10, 60_000_007)
    assert (limit.step_us, limit.steps) == (58, 1_034_483)
    state, _ = limit.take(None, 60_000_006, 10)
    middle_us = 60_000_007 + 30_000_004  # A little more than one half of the steps is left.
    allowed, remaining, retry_after_us, _, _ = limit.peek(state, middle_us, 5)
    assert (allowed, remaining) == (False, 4)
    assert 0 < retry_after_us <= 58
    assert limit.peek(state, middle_us + retry_after_us, 5)[0] is True


@pytest.mark.parametrize("limit", [1, 1_000, 2**43])
def test_finding_steps_takes_no_longer_for_windows_that_nothing_divides(limit: int) -> None:
    """Callers choose windows: a search over thousands of divisors would be theirs to start."""
    windows = [366 * 86_400_000_000 - 7 * number for number in range(200)]
    before = time.process_time()
    for window_us in windows:
        SlidingWindow(limit, window_us)
    assert (time.process_time() - before) / len(windows) < 0.000_5


@pytest.mark.parametrize(
    "seconds", [5, 300, 3_600, 43_200, 86_400, 2 * 86_400, 604_800, 30 * 86_400, 366 * 86_400]
)
def test_steps_divide_long_windows_too(seconds: int) -> None:
    limit = SlidingWindow(100, seconds * 1_000_000)
    assert limit.window_us % limit.step_us == 0
    assert 980_000 <= limit.steps <= 2**20


def test_steps_divide_ordinary_windows_so_that_retry_times_are_round() -> None:
    """A minute has a million steps of 60 us, and half of it is half of them."""
    limit = SlidingWindow(10, 60_000_000)
    assert (limit.step_us, limit.steps) == (60, 1_000_000)
    state, _ = limit.take(None, 0, 10)
    assert limit.peek(state, 0, 5) == (False, 0, 90_000_000, 120_000_000, 0)
    assert limit.peek(state, 90_000_000, 5)[0] is True


def test_a_peek_at_ten_of_ten_says_denied() -> None:
    """A peek evaluates its cost."""
    state, _ = LIMIT.take(None, T_US, 10)
    assert LIMIT.peek(state, T_US, 1) == (False, 0, 1_100_000, 2_000_000, 0)


def test_a_cost_over_the_limit_never_fits() -> None:
    """However long one waits."""
    assert LIMIT.take(None, T_US, 11) == (None, (False, 10, NEVER, 0, 0))


def test_windows_ahead_of_now_count_as_now() -> None:
    """The clock stepped back by a day: the two counters become one."""
    state = eight_then_three()
    early_us = T_US - 20 * WINDOW_US
    state_then, denied = LIMIT.take(state, early_us, 1)
    assert denied == (False, 0, 1_181_819, 2_000_000, 0)
    assert state_then == (early_us, 0, 11)


def test_a_refund_goes_into_the_window_that_was_charged() -> None:
    """Current, then previous, then nowhere."""
    state, _ = LIMIT.take(None, T_US, 6)
    assert state is not None
    mark = LIMIT.mark(state)
    assert LIMIT.refund(state, mark, T_US + 999_999, 4, 0) == ((T_US, 0, 2), 4)
    assert LIMIT.refund(state, mark, T_US + 1_000_000, 4, 0) == ((T_US + WINDOW_US, 2, 0), 4)
    assert LIMIT.refund(state, mark, T_US + 2_000_000, 4, 0) == (state, 0)


def test_counts_stop_where_the_arithmetic_would_stop_being_exact() -> None:
    """Even when two full windows are pulled into one by a clock that stepped back."""
    limit = SlidingWindow(MAX_LIMIT, 1_025)
    most = 2**51 // limit.steps
    state, _ = limit.force(None, 10_250, 2**53 - 1)
    state, _ = limit.force(state, 11_275, 2**53 - 1)
    assert state == (11_275, most, most)
    state, _ = limit.take(state, 0, 1)
    assert state == (0, 0, most)
    assert limit.decode(limit.encode(state)) == state
