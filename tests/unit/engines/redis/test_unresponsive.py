"""Which servers of a Cluster rest, and for how long."""

from __future__ import annotations

from headgate.engines.redis.unresponsive import NO_ADDRESS, SKIP_S, UnresponsiveServers

A, B = ("a", 1), ("b", 2)
PATIENCE_S = 0.025


class Watched:
    """Unresponsive servers by a clock that the test moves, and the changes reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.unresponsive = UnresponsiveServers(PATIENCE_S, lambda: self.now)
        self.changes: list[tuple[str, bool]] = []
        self.unresponsive.on_change = lambda one: self.changes.append(
            (one[0], self.unresponsive.is_unresponsive(one))
        )

    def lose(self, address: tuple[str, int]) -> None:
        self.unresponsive.failed(address)
        self.now += PATIENCE_S
        self.unresponsive.failed(address)


def test_a_server_rests_once_it_has_failed_for_as_long_as_a_decision_may_take() -> None:
    watched = Watched()
    watched.unresponsive.failed(A)
    assert not watched.unresponsive.skips(A)
    watched.now += PATIENCE_S
    watched.unresponsive.failed(A)
    assert watched.unresponsive.skips(A)
    assert not watched.unresponsive.skips(B)


def test_an_answer_in_between_restarts_the_count() -> None:
    watched = Watched()
    watched.unresponsive.failed(A)
    watched.unresponsive.answered(A)
    watched.now += PATIENCE_S
    watched.unresponsive.failed(A)
    assert not watched.unresponsive.skips(A)


def test_one_caller_tries_when_it_has_rested() -> None:
    watched = Watched()
    watched.lose(A)
    watched.now += SKIP_S
    assert [watched.unresponsive.skips(A) for _ in range(3)] == [False, True, True]
    watched.unresponsive.answered(A)
    assert not watched.unresponsive.skips(A)


def test_a_resting_server_and_its_return_are_reported_once() -> None:
    watched = Watched()
    watched.lose(A)
    watched.unresponsive.failed(A)
    watched.unresponsive.answered(A)
    watched.unresponsive.answered(A)
    assert watched.changes == [("a", True), ("a", False)]


def test_a_store_answers_in_part_as_long_as_not_all_of_those_who_answered_have_failed() -> None:
    watched = Watched()
    assert not watched.unresponsive.in_part()
    watched.unresponsive.answered(A)
    watched.unresponsive.answered(B)
    watched.unresponsive.failed(A)
    assert watched.unresponsive.in_part()
    watched.unresponsive.failed(B)
    assert not watched.unresponsive.in_part()


def test_removed_servers_do_not_count() -> None:
    watched = Watched()
    watched.unresponsive.answered(A)
    watched.unresponsive.answered(B)
    watched.unresponsive.keep_only([A])
    watched.unresponsive.failed(A)
    assert not watched.unresponsive.in_part()


def test_that_a_slot_has_a_server_again_is_no_answer() -> None:
    watched = Watched()
    watched.unresponsive.answered(NO_ADDRESS)
    assert not watched.unresponsive.in_part()
