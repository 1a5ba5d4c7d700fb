"""Exponential backoff, by example: 16 units a minute, at level 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate.algorithms import NEVER, ExponentialBackoff

if TYPE_CHECKING:
    from headgate.algorithms.exponential_backoff import Backoff

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
LIMIT = ExponentialBackoff(16, MINUTE_US)
T_US = 100 * MINUTE_US
"""A boundary between two windows."""


def pressed(denials: int, now_us: int = T_US, limit: ExponentialBackoff = LIMIT) -> Backoff:
    """A key whose window is full, and that was denied so often since."""
    state, answer = limit.take(None, now_us, limit.limit)
    assert answer[0]
    for _ in range(denials):
        state, answer = limit.take(state, now_us, 1)
        assert not answer[0]
    assert state is not None
    return state


def level(state: Backoff, now_us: int) -> int:
    return LIMIT.peek(state, now_us, 1)[4]


@pytest.mark.parametrize(
    "reached, limit, retry_s", [(0, 16, 1), (1, 8, 2), (2, 4, 4), (3, 2, 8), (4, 1, 16), (5, 1, 32)]
)
def test_each_level_halves_the_limit_and_doubles_the_pace(
    reached: int, limit: int, retry_s: int
) -> None:
    """Ten denials in a row are one level."""
    state = pressed(10 * reached)
    assert LIMIT.limit_at(reached) == limit
    assert LIMIT.peek(state, T_US, 1)[2::2] == (retry_s * SECOND_US, reached)


def test_the_tenth_denial_is_one_level_up() -> None:
    """Not the ninth; and its own answer says so."""
    assert level(pressed(9), T_US) == 0
    _, tenth = LIMIT.take(pressed(9), T_US, 1)
    assert tenth == (False, 0, 2 * SECOND_US, 2 * MINUTE_US, 1)


def test_levels_end_at_the_fifth() -> None:
    """Another hundred denials change nothing but the time of the cool-down."""
    assert level(pressed(50), T_US) == 5
    assert level(pressed(150), T_US) == 5


def test_an_admission_breaks_the_run_of_denials() -> None:
    """Nine denials, one admission, nine denials: still level 0."""
    state, admitted = LIMIT.take(pressed(9), T_US + MINUTE_US, 16)
    for _ in range(9):
        state, _ = LIMIT.take(state, T_US + MINUTE_US, 1)
    assert admitted[0]
    assert state is not None
    assert level(state, T_US + MINUTE_US) == 0


def test_nothing_passes_in_the_cool_down_of_one_window() -> None:
    """It begins with the denial that led to the top, not at a boundary."""
    half_us = T_US + MINUTE_US // 2
    state = pressed(50, half_us)
    cooled_us = half_us + MINUTE_US
    assert LIMIT.peek(state, cooled_us - 1, 1)[:3] == (False, 0, 32 * SECOND_US)
    assert LIMIT.peek(state, cooled_us, 1)[:3] == (True, 1, 0)
    assert LIMIT.take(state, cooled_us - 1, 1)[1][0] is False
    assert LIMIT.take(state, cooled_us, 1)[1][0] is True


def test_a_window_without_a_denial_is_one_level_down() -> None:
    """The window of the denials itself does not count as quiet."""
    state = pressed(30)
    levels = [level(state, T_US + windows * MINUTE_US) for windows in range(6)]
    assert levels == [3, 3, 2, 1, 0, 0]


def test_a_window_with_a_denial_keeps_the_level() -> None:
    """One denial in each window is enough."""
    state: Backoff | None = pressed(30)
    for windows in (1, 2, 3):
        now_us = T_US + windows * MINUTE_US
        state, admitted = LIMIT.take(state, now_us, 2)
        state, denied = LIMIT.take(state, now_us, 1)
        assert (admitted[0], denied[0], denied[4]) == (True, False, 3)


def test_a_peek_is_not_counted_as_a_denial() -> None:
    """A hundred looks at a full window are no pressure."""
    state = pressed(9)
    for _ in range(100):
        assert LIMIT.peek(state, T_US, 1) == (False, 0, SECOND_US, 2 * MINUTE_US, 0)


def test_nothing_changes_while_it_cools_down() -> None:
    """The state is the very same, so an engine writes nothing for those who hammer on."""
    state = pressed(51)
    same, answer = LIMIT.take(state, T_US + SECOND_US, 1)
    assert not answer[0]
    assert same is state


def test_a_cost_that_can_never_fit_is_no_pressure() -> None:
    """It is the caller's mistake, and the level stays."""
    state = pressed(9)
    for _ in range(20):
        same, answer = LIMIT.take(state, T_US, 17)
        assert same is state
        assert answer == (False, 0, NEVER, 2 * MINUTE_US, 0)


def test_a_limit_of_one_stays_one_and_a_limit_of_zero_stays_zero() -> None:
    """Halving stops at 1, so that a caller who slows down is heard again."""
    assert [ExponentialBackoff(1, MINUTE_US).limit_at(level) for level in (0, 1, 5)] == [1, 1, 1]
    assert [ExponentialBackoff(0, MINUTE_US).limit_at(level) for level in (0, 1, 5)] == [0, 0, 0]


def test_the_numbers_can_be_set() -> None:
    """Two denials a level, two levels, a quarter of a second."""
    limit = ExponentialBackoff(8, MINUTE_US, denials_per_level=2, max_level=2, retry_us=250_000)
    assert limit.peek(pressed(2, limit=limit), T_US, 1)[2::2] == (500_000, 1)
    assert limit.peek(pressed(4, limit=limit), T_US, 1)[2::2] == (1_000_000, 2)
    assert limit.peek(pressed(4, limit=limit), T_US, 1)[:2] == (False, 0)


def test_a_run_longer_than_a_level_now_needs_still_leads_up() -> None:
    """The number was lowered from 10 to 5 while the key had been denied 7 times in a row."""
    state = pressed(7)
    lowered = ExponentialBackoff(16, MINUTE_US, denials_per_level=5)
    assert lowered.identity == LIMIT.identity
    assert lowered.take(state, T_US, 1)[1][4] == 1


def test_every_level_is_forgiven_in_the_end() -> None:
    """One window for each, after the one with the denials; a run of denials needs one as well."""
    assert LIMIT.idle_at_us(pressed(0)) == T_US + MINUTE_US
    assert LIMIT.idle_at_us(pressed(3)) == T_US + 2 * MINUTE_US
    assert LIMIT.idle_at_us(pressed(30)) == T_US + 4 * MINUTE_US


def test_a_key_that_was_given_everything_back_is_idle_at_once() -> None:
    """It means the same as one that was never used."""
    state = pressed(0)
    state_then, given = LIMIT.refund(state, LIMIT.mark(state), T_US, 16, 0)
    assert given == 16
    assert state_then is not None
    assert LIMIT.idle_at_us(state_then) == 0


def test_an_admission_at_a_level_says_when_all_is_forgiven() -> None:
    """At level 3 two of sixteen pass a minute; three quiet windows are left after this one."""
    state, admitted = LIMIT.take(pressed(30), T_US + MINUTE_US, 2)
    assert admitted == (True, 0, 0, 3 * MINUTE_US, 3)
    assert LIMIT.take(state, T_US + MINUTE_US, 1)[1] == (False, 0, 8_000_000, 4 * MINUTE_US, 3)


@pytest.mark.parametrize(
    "data",
    [
        (T_US, 16, 0, 21, 1, 0),
        (T_US, 16, 0, 10**15, 1, 0),
        (T_US, 16, 0, 3, 2, 0),
        (T_US, -1, 0, 3, 1, 0),
        (T_US, 16, 0, 3, 1),
    ],
)
def test_a_state_that_no_limit_can_have_led_to_is_refused(data: tuple[int, ...]) -> None:
    """A level of 10**15 would ask for a pace that no memory can hold."""
    with pytest.raises(ValueError, match=r"level|denied|backoff state|not enough values"):
        LIMIT.decode(data)
