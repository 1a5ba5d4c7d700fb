"""Concurrency, by example: 2 slots, each free again 30 seconds after it was last renewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate.algorithms import NEVER, Concurrency

if TYPE_CHECKING:
    from headgate.algorithms._holders import Holders

SECOND_US = 1_000_000
LIMIT = Concurrency(2)
T_US = 100 * SECOND_US


def held_by(*tokens: str) -> Holders:
    """Slots taken one second after the other."""
    state: Holders | None = None
    for number, token in enumerate(tokens):
        state, answer = LIMIT.hold(state, T_US + number * SECOND_US, 1, token)
        assert answer[0]
    assert state is not None
    return state


def test_a_third_holder_waits_for_the_first_to_expire() -> None:
    """Unless somebody lets go before."""
    state = held_by("a", "b")
    now_us = T_US + 10 * SECOND_US
    _, denied = LIMIT.hold(state, now_us, 1, "c")
    assert denied == (False, 0, 20 * SECOND_US, 21 * SECOND_US, 0)
    assert LIMIT.hold(state, T_US + 30 * SECOND_US - 1, 1, "c")[1][0] is False
    assert LIMIT.hold(state, T_US + 30 * SECOND_US, 1, "c")[1][0] is True


def test_a_slot_that_was_let_go_is_free_at_once() -> None:
    """And only that one."""
    state = LIMIT.release(held_by("a", "b"), T_US + 10 * SECOND_US, "a")
    assert LIMIT.peek(state, T_US + 10 * SECOND_US, 1)[:2] == (True, 1)


@pytest.mark.parametrize("token", ["a", "stranger"])
def test_releasing_twice_or_with_another_token_frees_nothing(token: str) -> None:
    """Slots belong to tokens, not to whoever asks."""
    state = LIMIT.release(held_by("a", "b"), T_US + 10 * SECOND_US, "a")
    assert LIMIT.release(state, T_US + 10 * SECOND_US, token) is state
    assert LIMIT.used(state, T_US + 10 * SECOND_US) == 1


def test_a_holder_that_renews_stays() -> None:
    """For another 30 seconds from then on."""
    state, renewed = LIMIT.renew(held_by("a", "b"), T_US + 20 * SECOND_US, "a")
    assert renewed
    assert LIMIT.used(state, T_US + 31 * SECOND_US) == 1
    assert LIMIT.used(state, T_US + 50 * SECOND_US - 1) == 1
    assert LIMIT.used(state, T_US + 50 * SECOND_US) == 0


def test_an_expired_slot_cannot_be_renewed() -> None:
    """It may be another's by now."""
    state = held_by("a")
    assert LIMIT.renew(state, T_US + 30 * SECOND_US, "a") == (state, False)


def test_a_token_that_holds_already_takes_no_second_slot() -> None:
    """Asking again renews what it holds."""
    state, again = LIMIT.hold(held_by("a"), T_US + 10 * SECOND_US, 1, "a")
    assert again == (True, 1, 0, 30 * SECOND_US, 0)
    assert LIMIT.used(state, T_US + 10 * SECOND_US) == 1


def test_a_holder_that_wants_more_waits_only_for_the_others() -> None:
    """Of three slots, b and c hold one each: a, which holds the third, gets two when b expires."""
    limit = Concurrency(3)
    state: Holders | None = None
    for number, token in enumerate("bac"):
        state, _ = limit.hold(state, T_US + number * SECOND_US, 1, token)
    _, denied = limit.hold(state, T_US + 10 * SECOND_US, 2, "a")
    assert denied == (False, 0, 20 * SECOND_US, 22 * SECOND_US, 0)
    assert limit.hold(state, T_US + 30 * SECOND_US, 2, "a")[1][0] is True


def test_a_cost_over_the_limit_never_fits() -> None:
    """However many let go."""
    assert LIMIT.hold(None, T_US, 3, "a") == (None, (False, 2, NEVER, 0, 0))


def test_takes_without_a_token_hold_slots_of_their_own() -> None:
    """Two in the same microsecond are two, and each can be given back."""
    state, _ = LIMIT.take(None, T_US, 1)
    assert state is not None
    first = LIMIT.mark(state)
    state, _ = LIMIT.take(state, T_US, 1)
    assert LIMIT.used(state, T_US) == 2
    state, given = LIMIT.refund(state, first, T_US, 1, 0)
    assert given == 1
    assert LIMIT.used(state, T_US) == 1
    assert LIMIT.refund(state, first, T_US, 1, 0) == (state, 0)


def test_holders_ahead_of_now_count_as_now() -> None:
    """The clock stepped back by an hour: they expire in 30 seconds, not in an hour."""
    early_us = T_US - 3_600 * SECOND_US
    state, denied = LIMIT.hold(held_by("a", "b"), early_us, 1, "c")
    assert denied == (False, 0, 30 * SECOND_US, 30 * SECOND_US, 0)
    assert LIMIT.used(state, early_us + 30 * SECOND_US) == 0
