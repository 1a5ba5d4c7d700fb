"""Fixed window, by example: 4 units a second."""

from __future__ import annotations

from headgate.algorithms import NEVER, FixedWindow

SECOND_US = 1_000_000
LIMIT = FixedWindow(4, SECOND_US)
T_US = 10 * SECOND_US
"""A boundary between two windows."""


def test_each_take_leaves_less_until_the_window_ends() -> None:
    """An answer is (allowed, remaining, retry, reset, level), in microseconds."""
    state, first = LIMIT.take(None, T_US + 200_000, 1)
    state, second = LIMIT.take(state, T_US + 300_000, 3)
    state, third = LIMIT.take(state, T_US + 400_000, 1)
    assert first == (True, 3, 0, 800_000, 0)
    assert second == (True, 0, 0, 700_000, 0)
    assert third == (False, 0, 600_000, 600_000, 0)
    assert state == (T_US, 4)


def test_a_peek_at_four_of_four_says_denied() -> None:
    """A peek evaluates its cost; it is not a look at whether the key is over its limit."""
    state, _ = LIMIT.take(None, T_US, 4)
    assert LIMIT.peek(state, T_US, 1) == (False, 0, SECOND_US, SECOND_US, 0)
    assert LIMIT.peek(state, T_US, 0) == (True, 0, 0, SECOND_US, 0)


def test_a_peek_at_an_unused_key_shows_all_of_it() -> None:
    """Nothing is used, so nothing has to be reset."""
    assert LIMIT.peek(None, T_US, 1) == (True, 4, 0, 0, 0)


def test_twice_the_limit_passes_around_a_boundary() -> None:
    """What this algorithm is known for, and why it is meant for quotas."""
    state, before = LIMIT.take(None, T_US - 1, 4)
    state, after = LIMIT.take(state, T_US, 4)
    assert (before[0], after[0]) == (True, True)
    assert LIMIT.used(state, T_US) == 4


def test_a_denial_consumes_nothing() -> None:
    """Three fit after two were refused."""
    state, _ = LIMIT.take(None, T_US, 1)
    state, denied = LIMIT.take(state, T_US, 4)
    state, allowed = LIMIT.take(state, T_US, 3)
    assert denied == (False, 3, SECOND_US, SECOND_US, 0)
    assert allowed == (True, 0, 0, SECOND_US, 0)


def test_a_cost_over_the_limit_never_fits() -> None:
    """However long one waits."""
    assert LIMIT.take(None, T_US, 5) == (None, (False, 4, NEVER, 0, 0))


def test_a_limit_of_zero_denies_everything() -> None:
    """And is no error."""
    assert FixedWindow(0, SECOND_US).take(None, T_US, 1) == (None, (False, 0, NEVER, 0, 0))


def test_a_window_ahead_of_now_counts_as_now() -> None:
    """The clock stepped back by an hour: no fresh allowance, and no hour without one."""
    state, _ = LIMIT.take(None, T_US + 3_600 * SECOND_US, 3)
    state, denied = LIMIT.take(state, T_US, 2)
    assert denied == (False, 1, SECOND_US, SECOND_US, 0)
    assert LIMIT.peek(state, T_US + SECOND_US, 4) == (True, 4, 0, 0, 0)


def test_a_forced_charge_may_exceed_the_limit() -> None:
    """Then even a cost of 0 does not fit, until the window ends."""
    state, forced = LIMIT.force(None, T_US, 6)
    assert forced == (True, 0, 0, SECOND_US, 0)
    assert LIMIT.used(state, T_US) == 6
    assert LIMIT.peek(state, T_US, 0) == (False, 0, SECOND_US, SECOND_US, 0)


def test_a_forced_charge_of_nothing_is_no_denial() -> None:
    """It asks for nothing and changes nothing, also on a key that is over its limit."""
    over, _ = LIMIT.force(None, T_US, 6)
    assert LIMIT.force(over, T_US, 0) == (over, (True, 0, 0, SECOND_US, 0))


def test_a_refund_reaches_its_own_window_only() -> None:
    """What the next window admitted is not touched."""
    state, _ = LIMIT.take(None, T_US, 4)
    assert state is not None
    mark = LIMIT.mark(state)
    in_time, given = LIMIT.refund(state, mark, T_US + SECOND_US - 1, 3, 0)
    assert (in_time, given) == ((T_US, 1), 3)
    state, _ = LIMIT.take(state, T_US + SECOND_US, 2)
    assert LIMIT.refund(state, mark, T_US + SECOND_US, 3, 0) == ((T_US + SECOND_US, 2), 0)
