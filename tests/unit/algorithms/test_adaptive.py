"""Adaptive, by example: 10 units a minute, and no fresh allowance when the choice changes."""

from __future__ import annotations

from itertools import permutations

import pytest

from headgate.algorithms import Adaptive
from headgate.algorithms.adaptive import CANDIDATES, Flat, split
from headgate.errors import UsageError

MINUTE_US = 60_000_000
T_US = 100 * MINUTE_US
CHOICES = {chosen: Adaptive(10, MINUTE_US, chosen=chosen) for chosen in CANDIDATES}


@pytest.mark.parametrize("before, after", list(permutations(CANDIDATES, 2)))
def test_a_switch_hands_out_no_fresh_allowance(before: str, after: str) -> None:
    """Ten were admitted by one candidate, and so none are left with another."""
    state, admitted = CHOICES[before].take(None, T_US, 10)
    state, denied = CHOICES[after].take(state, T_US, 1)
    assert (admitted[0], denied[0], denied[1]) == (True, False, 0)


@pytest.mark.parametrize("before, after", list(permutations(CANDIDATES, 2)))
def test_a_switch_forgets_nothing_in_the_middle_of_a_window(before: str, after: str) -> None:
    """Six were admitted by one candidate, and four are left with another."""
    state, _ = CHOICES[before].take(None, T_US, 6)
    assert CHOICES[after].peek(state, T_US, 4)[:3] == (True, 4, 0)
    assert CHOICES[after].peek(state, T_US, 5)[0] is False
    assert CHOICES[after].used(state, T_US) == 6


def test_switching_to_and_fro_admits_no_more_than_one_candidate_alone() -> None:
    """Sixty takes, each decided by the next candidate, in one moment."""
    state: Flat | None = None
    admitted = 0
    for number in range(60):
        state, answer = CHOICES[CANDIDATES[number % 3]].take(state, T_US, 1)
        admitted += answer[0]
    assert admitted == 10


def test_a_denied_request_charges_no_candidate() -> None:
    """The state is the very same; only backoff notes a denial, and only when it decides."""
    state, _ = CHOICES["sliding_window"].take(None, T_US, 10)
    assert state is not None
    for chosen in ("sliding_window", "token_bucket"):
        assert CHOICES[chosen].take(state, T_US, 1)[0] is state
    noted, _ = CHOICES["exponential_backoff"].take(state, T_US, 1)
    assert noted is not None
    assert split(noted)[:2] == split(state)[:2]
    assert split(noted)[2] == (T_US, 10, (1, 0, 1, 0))


def test_levels_of_backoff_show_only_while_it_decides() -> None:
    """They fade on while another candidate does."""
    state, answer = CHOICES["exponential_backoff"].take(None, T_US, 10)
    for _ in range(20):
        state, answer = CHOICES["exponential_backoff"].take(state, T_US, 1)
    assert answer[4] == 2
    assert CHOICES["token_bucket"].peek(state, T_US, 1)[4] == 0
    assert CHOICES["exponential_backoff"].peek(state, T_US + 2 * MINUTE_US, 1)[4] == 1


def test_a_refund_reaches_all_three() -> None:
    """Four of ten are given back, whoever is asked next."""
    chosen = CHOICES["token_bucket"]
    taken, _ = chosen.take(None, T_US, 10)
    assert taken is not None
    taken, _ = chosen.watch(taken)
    state, given = chosen.refund(taken, chosen.mark(taken), T_US, 4, chosen.low(taken))
    assert given == 4 * 6_000_000 * 256
    assert [limit.peek(state, T_US, 1)[1] for limit in CHOICES.values()] == [4, 4, 4]


def test_all_choices_share_one_state() -> None:
    """So the choice is not part of the identity."""
    assert {limit.identity for limit in CHOICES.values()} == {"adaptive:60000000"}


def test_an_unknown_candidate_is_refused() -> None:
    """The message lists those there are."""
    with pytest.raises(UsageError, match="sliding_window, token_bucket, exponential_backoff, not"):
        Adaptive(10, MINUTE_US, chosen="fixed_window")


def test_nothing_changes_while_its_backoff_cools_down() -> None:
    """An engine then writes nothing for those who hammer on."""
    limit = CHOICES["exponential_backoff"]
    state, _ = limit.take(None, T_US, 10)
    for _ in range(51):
        state, _ = limit.take(state, T_US, 1)
    same, answer = limit.take(state, T_US, 1)
    assert not answer[0]
    assert same is state
