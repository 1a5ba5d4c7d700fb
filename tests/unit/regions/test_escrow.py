"""Escrow: rights add up to the limit, whoever holds them, whatever is lost or repeated."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from headgate.regions import escrow
from headgate.regions.escrow import (
    Counted,
    EscrowAccount,
    KeyWindow,
    Look,
    RecordGrant,
    RightsAsk,
    RightsGrant,
    StoreEpoch,
    TakeOff,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

EPOCH = StoreEpoch("first", 0)
WINDOW = KeyWindow("api", "ann", "fixed_window:60000000", 90, 60_000_000, 120_000_000)
NOW = 61_000_000


def shares_of(window: KeyWindow) -> Mapping[str, int]:
    return dict.fromkeys(("east", "north", "west"), window.limit // 3)


def account(region: str = "east", epoch: StoreEpoch = EPOCH) -> EscrowAccount:
    ids = count()
    return EscrowAccount(region, shares_of, epoch, lambda: f"{region} {next(ids)}")


def run(steps: Generator[Any, Any, Any], *answers: Any) -> tuple[list[Any], Any]:
    """What an account wants from its store when it is answered like this, and what comes of it."""
    wanted, answer = [], None
    told = iter(answers)
    while True:
        try:
            wanted.append(steps.send(answer))
        except StopIteration as end:
            return wanted, end.value
        answer = next(told)


def counted(
    left: int, *, allowed: bool = True, start_us: int = 60_000_000, epoch: StoreEpoch = EPOCH
) -> Counted:
    return Counted(allowed, left, start_us, epoch)


def ask(giver: str = "west", left: int = 0, **other: Any) -> RightsAsk:
    return RightsAsk("ask 1", "east", "first", giver, WINDOW, left)._replace(**other)


class TestRights:
    def test_a_region_has_its_share(self) -> None:
        assert account().rights(WINDOW) == 30

    def test_a_grant_adds_to_it_in_its_own_window_only(self) -> None:
        east = account()
        run(east.take_in(RightsGrant(ask(), 15, 15), NOW), 15)
        assert east.rights(WINDOW) == 45
        assert east.rights(WINDOW._replace(start_us=120_000_000, end_us=180_000_000)) == 30
        assert east.rights(WINDOW._replace(key="bob")) == 30

    def test_a_change_of_the_limit_keeps_what_was_granted(self) -> None:
        east = account()
        run(east.take_in(RightsGrant(ask(), 15, 15), NOW), 15)
        assert east.rights(WINDOW._replace(limit=30)) == 25

    def test_what_another_node_was_granted_is_learnt_from_the_store(self) -> None:
        east = account()
        east.set_recorded_total(WINDOW, "first", 12)
        east.set_recorded_total(WINDOW, "first", 7)  # An older answer that came later.
        assert east.rights(WINDOW) == 42
        east.set_recorded_total(WINDOW, "of another store", 40)
        assert east.rights(WINDOW) == 42

    def test_a_new_store_has_no_share_of_windows_that_were_under_way(self) -> None:
        began_us = 100_000_000
        east = account(epoch=StoreEpoch("second", began_us))
        assert east.rights(WINDOW) == 0
        assert east.rights(WINDOW._replace(start_us=120_000_000, end_us=180_000_000)) == 30

    def test_a_new_store_may_be_a_little_behind_the_one_before(self) -> None:
        began_us = WINDOW.start_us - escrow.CLOCK_MARGIN_US
        assert account(epoch=StoreEpoch("second", began_us)).rights(WINDOW) == 0
        assert account(epoch=StoreEpoch("second", began_us - 1)).rights(WINDOW) == 30


class TestAdmission:
    def test_what_the_store_allows_is_admitted(self) -> None:
        assert account().admits(WINDOW, 30, counted(4))
        assert not account().admits(WINDOW, 30, counted(0, allowed=False))

    def test_a_window_that_turned_meanwhile_has_only_its_own_rights(self) -> None:
        """45 were asked with, and the next window has 30: what it has used tells whether that fits."""
        east = account()
        run(east.take_in(RightsGrant(ask(), 15, 15), NOW), 15)
        assert east.admits(WINDOW, 45, counted(15, start_us=120_000_000))
        assert not east.admits(WINDOW, 45, counted(14, start_us=120_000_000))

    def test_what_a_new_store_allows_is_not_admitted(self) -> None:
        east = account()
        assert not east.admits(WINDOW, 30, counted(29, epoch=StoreEpoch("second", NOW)))
        assert east.rights(WINDOW) == 0

    def test_an_answer_of_the_store_before_changes_nothing(self) -> None:
        east = account()
        second = StoreEpoch("second", NOW)
        east.set_epoch(second)
        assert not east.admits(WINDOW, 30, counted(3))
        assert east.epoch == second


class TestAsking:
    def test_no_region_is_asked_while_there_are_enough_rights(self) -> None:
        assert account().ask(WINDOW, 8, NOW) is None

    def test_the_richest_is_asked(self) -> None:
        east = account()
        first = east.ask(WINDOW, 7, NOW)
        assert first is not None
        run(east.take_in(RightsGrant(first, 10, 5), NOW), 10)
        second = east.ask(WINDOW, 2, NOW)
        assert second is not None
        assert {first.giver, second.giver} == {"north", "west"}

    def test_one_is_asked_at_a_time_until_it_takes_too_long(self) -> None:
        east = account()
        first = east.ask(WINDOW, 0, NOW)
        assert first is not None
        assert east.ask(WINDOW, 0, NOW + escrow.PATIENCE_US - 1) is None
        second = east.ask(WINDOW, 0, NOW + escrow.PATIENCE_US)
        assert second is not None
        assert second.giver != first.giver

    def test_a_grant_that_comes_late_counts(self) -> None:
        east = account()
        late = east.ask(WINDOW, 0, NOW)
        assert late is not None
        assert east.ask(WINDOW, 0, NOW + escrow.PATIENCE_US) is not None
        run(east.take_in(RightsGrant(late, 10, 10), NOW), 10)
        assert east.rights(WINDOW) == 40

    def test_regions_with_nothing_to_give_are_asked_less_and_less_often(self) -> None:
        east, now_us, asked_at = account(), NOW, []
        while now_us < NOW + 10_000_000:
            asked = east.ask(WINDOW, 0, now_us)
            if asked is not None:
                run(east.take_in(RightsGrant(asked, 0, 0), now_us))
                asked_at.append(now_us)
            now_us += 10_000
        assert len(asked_at) < 25

    def test_what_is_over_is_forgotten(self) -> None:
        east = account()
        east.ask(WINDOW, 0, NOW)
        east.forget(WINDOW.end_us + 3_000_000)
        assert not east._holdings


class TestGiving:
    def test_half_of_the_difference_is_taken_off_before_it_is_granted(self) -> None:
        wanted, grant = run(account("west").answer(ask(left=4), NOW), counted(30), counted(17))
        assert wanted == [Look(WINDOW, 30), TakeOff(WINDOW, 30, 13)]
        assert grant == RightsGrant(ask(left=4), 13, 17)

    def test_the_last_unit_is_given_to_a_region_with_none(self) -> None:
        _, grant = run(account("west").answer(ask(), NOW), counted(1), counted(0))
        assert grant.units == 1

    def test_nothing_is_taken_off_for_a_region_with_more(self) -> None:
        wanted, grant = run(account("west").answer(ask(left=9), NOW), counted(9))
        assert wanted == [Look(WINDOW, 30)]
        assert grant.units == 0

    def test_what_could_not_be_taken_off_is_not_given(self) -> None:
        """Others took units between looking and taking."""
        _, grant = run(account("west").answer(ask(), NOW), counted(30), counted(10, allowed=False))
        assert grant.units == 0

    def test_the_same_ask_gets_the_same_answer(self) -> None:
        west = account("west")
        _, grant = run(west.answer(ask(), NOW), counted(30), counted(15))
        wanted, again = run(west.answer(ask(), NOW))
        assert (wanted, again) == ([], grant)

    def test_a_window_that_is_not_the_stores_own_has_nothing_to_give(self) -> None:
        for start_us in (0, 120_000_000):
            wanted, grant = run(account("west").answer(ask(), NOW), counted(30, start_us=start_us))
            assert len(wanted) == 1
            assert grant.units == 0
            assert grant.left == (30 if start_us == 0 else 0)  # It will have some.

    def test_a_window_that_turned_before_the_taking_off_gives_nothing(self) -> None:
        _, grant = run(
            account("west").answer(ask(), NOW), counted(30), counted(15, start_us=120_000_000)
        )
        assert grant.units == 0

    def test_a_store_that_came_back_empty_between_the_steps_gives_nothing(self) -> None:
        second = StoreEpoch("second", NOW)
        west = account("west")
        _, grant = run(west.answer(ask(), NOW), counted(30), counted(15, epoch=second))
        assert grant.units == 0
        _, grant = run(west.answer(ask(), NOW), counted(0, epoch=second))
        assert grant.units == 0

    def test_an_ask_to_another_region_is_not_answered(self) -> None:
        assert run(account("north").answer(ask(), NOW)) == ([], None)
        assert run(account("east").answer(ask(giver="east"), NOW)) == ([], None)


class TestTakingIn:
    def test_a_grant_counts_as_the_store_has_it_on_record(self) -> None:
        """Twice is what the store says it is, not what was sent."""
        east, grant = account(), RightsGrant(ask(), 15, 15)
        for _ in range(2):
            wanted, _ = run(east.take_in(grant, NOW), 15)
            assert wanted == [RecordGrant(grant)]
        assert east.rights(WINDOW) == 45

    def test_a_grant_to_the_store_before_is_refused(self) -> None:
        east = account(epoch=StoreEpoch("second", 0))
        assert run(east.take_in(RightsGrant(ask(), 15, 15), NOW)) == ([], None)
        assert east.rights(WINDOW) == 30

    def test_a_store_that_came_back_empty_meanwhile_refuses_it(self) -> None:
        east = account()
        run(east.take_in(RightsGrant(ask(), 15, 15), NOW), None)
        assert east.rights(WINDOW) == 30

    def test_a_grant_to_another_region_is_refused(self) -> None:
        assert run(account("north").take_in(RightsGrant(ask(), 15, 15), NOW)) == ([], None)
