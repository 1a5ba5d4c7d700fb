"""Sliding log, by example: 4 units in any span of a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.algorithms import NEVER, SlidingLog

if TYPE_CHECKING:
    from headgate.algorithms.sliding_log import Log

SECOND_US = 1_000_000
LIMIT = SlidingLog(4, SECOND_US)
T_US = 10 * SECOND_US


def two_then_one_then_one() -> Log:
    """4 of 4 used, at 0, 300 and 600 ms."""
    state: Log | None = None
    for at_us, cost in ((0, 2), (300_000, 1), (600_000, 1)):
        state, _ = LIMIT.take(state, T_US + at_us, cost)
    assert state is not None
    return state


def test_a_request_leaves_exactly_one_window_after_it_came() -> None:
    """The right end of the window is open."""
    state = two_then_one_then_one()
    assert LIMIT.used(state, T_US + 999_999) == 4
    assert LIMIT.used(state, T_US + 1_000_000) == 2
    assert LIMIT.used(state, T_US + 1_300_000) == 1
    assert LIMIT.used(state, T_US + 1_600_000) == 0


def test_retry_waits_for_as_many_as_the_cost_needs() -> None:
    """One or two fit when the first leaves, three when the second does, four after the last."""
    state = two_then_one_then_one()
    now_us = T_US + 700_000
    waits = [LIMIT.peek(state, now_us, cost)[2] for cost in (1, 2, 3, 4, 5)]
    assert waits == [300_000, 300_000, 600_000, 900_000, NEVER]


def test_a_peek_at_four_of_four_says_denied() -> None:
    """A peek evaluates its cost."""
    state = two_then_one_then_one()
    assert LIMIT.peek(state, T_US + 600_000, 1) == (False, 0, 400_000, 1_000_000, 0)


def test_a_request_is_one_entry_whatever_its_cost() -> None:
    """The memory of a key does not grow with costs."""
    state = two_then_one_then_one()
    assert LIMIT.encode(state) == (T_US, 2, T_US + 300_000, 1, T_US + 600_000, 1)


def test_requests_ahead_of_now_count_as_now() -> None:
    """The clock stepped back by an hour: they leave one window from now, not in an hour."""
    state, _ = LIMIT.take(None, T_US + 3_600 * SECOND_US, 4)
    state, denied = LIMIT.take(state, T_US, 1)
    assert denied == (False, 0, SECOND_US, SECOND_US, 0)
    assert state is not None
    assert LIMIT.encode(state) == (T_US, 4)


def test_asking_for_nothing_writes_nothing() -> None:
    """Not even when the clock stepped back: the log stays as it was."""
    state, _ = LIMIT.take(None, T_US, 1)
    same, answer = LIMIT.take(state, T_US - 500_000, 0)
    assert same == state
    assert answer == (True, 3, 0, SECOND_US + 500_000, 0)


def test_a_refund_lowers_the_request_it_belongs_to() -> None:
    """While that is in the window."""
    state, _ = LIMIT.take(None, T_US, 3)
    assert state is not None
    mark = LIMIT.mark(state)
    lowered, given = LIMIT.refund(state, mark, T_US + 999_999, 2, 0)
    assert (lowered, given) == (
        ([T_US, 1, T_US + 999_999, 0], 0, 4, 1),
        2,
    )  # The last tells the time.
    assert LIMIT.refund(state, mark, T_US + 1_000_000, 2, 0) == (state, 0)


def test_an_older_state_stays_valid() -> None:
    """A request that was evaluated and then not stored leaves no trace."""
    kept, _ = LIMIT.take(None, T_US, 1)
    LIMIT.take(kept, T_US + 1, 3)
    assert LIMIT.used(kept, T_US + 1) == 1
    assert LIMIT.take(kept, T_US + 2, 2)[1] == (True, 1, 0, SECOND_US, 0)


def test_a_long_log_does_not_keep_what_is_past() -> None:
    """After a thousand requests the list holds little more than the four that count."""
    state: Log | None = None
    for number in range(1_000):
        state, _ = LIMIT.take(state, T_US + number * SECOND_US // 4, 1)
    assert state is not None
    entries, start, end, total = state
    assert (end - start, total) == (8, 4)
    assert len(entries) < 200
