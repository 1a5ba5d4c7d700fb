"""Which servers of a Cluster rest, and for how long."""

from __future__ import annotations

from headgate.engines.redis.silence import NOBODY, REST_S, Silence

A, B = ("a", 1), ("b", 2)
PATIENCE_S = 0.025


class Watched:
    """A silence by a clock that the test moves, and what it has told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.silence = Silence(PATIENCE_S, lambda: self.now)
        self.told: list[tuple[str, bool]] = []
        self.silence.on_change = lambda one: self.told.append((one[0], self.silence.is_silent(one)))

    def lose(self, address: tuple[str, int]) -> None:
        self.silence.failed(address)
        self.now += PATIENCE_S
        self.silence.failed(address)


def test_a_server_rests_once_it_has_failed_for_as_long_as_a_decision_may_take() -> None:
    watched = Watched()
    watched.silence.failed(A)
    assert not watched.silence.rests(A)
    watched.now += PATIENCE_S
    watched.silence.failed(A)
    assert watched.silence.rests(A)
    assert not watched.silence.rests(B)


def test_an_answer_in_between_begins_anew() -> None:
    watched = Watched()
    watched.silence.failed(A)
    watched.silence.answered(A)
    watched.now += PATIENCE_S
    watched.silence.failed(A)
    assert not watched.silence.rests(A)


def test_one_caller_tries_when_it_has_rested() -> None:
    watched = Watched()
    watched.lose(A)
    watched.now += REST_S
    assert [watched.silence.rests(A) for _ in range(3)] == [False, True, True]
    watched.silence.answered(A)
    assert not watched.silence.rests(A)


def test_a_resting_server_and_its_return_are_reported_once() -> None:
    watched = Watched()
    watched.lose(A)
    watched.silence.failed(A)
    watched.silence.answered(A)
    watched.silence.answered(A)
    assert watched.told == [("a", True), ("a", False)]


def test_a_store_answers_in_part_as_long_as_not_all_of_those_who_answered_have_failed() -> None:
    watched = Watched()
    assert not watched.silence.in_part()
    watched.silence.answered(A)
    watched.silence.answered(B)
    watched.silence.failed(A)
    assert watched.silence.in_part()
    watched.silence.failed(B)
    assert not watched.silence.in_part()


def test_removed_servers_do_not_count() -> None:
    watched = Watched()
    watched.silence.answered(A)
    watched.silence.answered(B)
    watched.silence.keep([A])
    watched.silence.failed(A)
    assert not watched.silence.in_part()


def test_that_a_slot_has_a_server_again_is_no_answer() -> None:
    watched = Watched()
    watched.silence.answered(NOBODY)
    assert not watched.silence.in_part()
