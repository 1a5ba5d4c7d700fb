"""The simulator of regions: thousands of seeds keep every promise, and planted defects do not get through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow
from headgate.lab.region_simulator import merge, run, split
from headgate.lab.region_simulator.campaign import simulate_regions
from headgate.lab.region_simulator.escrow import EscrowStore
from headgate.lab.region_simulator.merge import MergeRegion, simulate_merge
from headgate.lab.region_simulator.run import simulate_escrow
from headgate.lab.region_simulator.split import simulate_split
from headgate.regions.counters import Charged, Growth, Replica, charges
from headgate.regions.escrow import EscrowAccount, KeyWindow, Look, RightsGrant, StoreEpoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.regions.counters import CounterTotal

PARTS = 2
SEEDS = 2_000
"""In parts, so that they can run at the same time."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_seeds_keep_every_promise(part: int) -> None:
    """Slow: each part must have been in every rare situation."""
    summary = simulate_regions(range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS))
    assert summary.broken == {}
    assert summary.seeds == SEEDS // PARTS
    assert summary.missed() == []
    assert set(summary.faults) == set(run.FAULTS)


def test_one_seed_is_one_run() -> None:
    first, again = simulate_escrow(7), simulate_escrow(7)
    assert (first.hits, first.reached, first.faults) == (again.hits, again.reached, again.faults)


def is_found(simulate: Callable[[int], Any] = simulate_escrow, seeds: int = 300) -> bool:
    """Whether one of so many seeds has a window with more than its limit."""
    return any(
        "admitted, and the limit" in words
        for seed in range(seeds)
        for words in simulate(seed).findings
    )


class TestPlantedDefects:
    """Each would be found by the seeds of one part of the test above."""

    def test_a_grant_that_is_counted_each_time_it_comes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = EscrowStore.record

        def each_time(self: EscrowStore, grant: RightsGrant) -> int | None:
            self.recorded.discard(grant.ask.id)
            return record(self, grant)

        monkeypatch.setattr(EscrowStore, "record", each_time)
        assert is_found()

    def test_rights_of_an_old_window_that_count_in_the_new_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = property(lambda self: (self.rule, self.key, self.identity, 0))
        monkeypatch.setattr(KeyWindow, "name", name)
        assert is_found()

    def test_a_store_that_comes_back_empty_under_its_old_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def same(self: EscrowStore) -> StoreEpoch:
            return StoreEpoch(self.region, 0)

        monkeypatch.setattr(EscrowStore, "new_epoch", same)
        assert is_found()

    def test_a_store_that_comes_back_empty_and_has_its_share_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headgate.regions.escrow.CLOCK_MARGIN_US", -10_000_000_000)
        assert is_found()

    def test_rights_that_are_sent_before_they_are_taken_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The giver only looks, and takes off nothing."""

        def tells_first(self: EscrowAccount, ask: Any, _now_us: int) -> Any:
            seen = yield Look(ask.window, self.rights(ask.window))
            return RightsGrant(ask, max(0, seen.left // 2), seen.left)

        monkeypatch.setattr(EscrowAccount, "answer", tells_first)
        assert is_found()

    def test_a_window_that_turns_while_the_store_is_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rights of the window before are taken for those of the next."""
        monkeypatch.setattr(
            EscrowAccount, "admits", lambda _self, _window, _rights, counted: counted.allowed
        )
        assert is_found()


class TestPlantedDefectsOfMerging:
    """Counters that would not meet, and are found."""

    def test_an_old_window_that_is_charged_to_the_new_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def all_of_it(grown: Any, _now_us: int) -> dict[Any, int]:
            charged: dict[Any, int] = {}
            for (rule, key, limit, _), _, units in grown:
                state = Charged(rule, key, limit)
                charged[state] = charged.get(state, 0) + units
            return charged

        monkeypatch.setattr(merge, "charges", all_of_it)
        assert are_apart()

    def test_a_log_that_takes_units_when_the_message_arrives(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def now(grown: Any, now_us: int) -> dict[Any, int]:
            charged: dict[Any, int] = {}
            for state, units in charges(grown, now_us).items():
                heard = state._replace(came_us=0)
                charged[heard] = charged.get(heard, 0) + units
            return charged

        monkeypatch.setattr(merge, "charges", now)
        assert are_apart("in its log")

    def test_a_log_that_takes_units_too_early(self, monkeypatch: pytest.MonkeyPatch) -> None:

        def sooner(grown: Any, now_us: int) -> dict[Any, int]:
            return {
                state._replace(came_us=state.came_us and state.came_us - 3_000_000): units
                for state, units in charges(grown, now_us).items()
            }

        monkeypatch.setattr(merge, "charges", sooner)
        assert are_apart("in its log")

    def test_an_actor_that_restarts_under_its_old_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its store comes back empty, and its node counts from 0 again, under the name that others know."""
        restart = MergeRegion.restart_empty

        def both(self: MergeRegion) -> None:
            restart(self)
            self.own.clear()

        monkeypatch.setattr(MergeRegion, "epoch", lambda self: self.name)
        monkeypatch.setattr(MergeRegion, "restart_empty", both)
        assert are_apart()

    def test_growth_that_is_charged_each_time_it_is_received(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def merge_as_told(
            _self: Replica, entries: list[CounterTotal], _now_us: int
        ) -> list[Growth]:
            return [Growth(*one) for one in entries]

        monkeypatch.setattr(Replica, "merge", merge_as_told)
        assert are_apart()


class TestPlantedDefectsOfSplitting:
    """Shares that would not add up, and are found."""

    def test_shares_that_are_rounded_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def up(limit: Any, regions: Any) -> Any:
            total = sum(regions.weights.values())
            units = -(-limit.limit * regions.weights[regions.here] // total)
            return FixedWindow(units, split.WINDOW_US)

        monkeypatch.setattr(split, "share_of", up)
        assert is_found(simulate_split)

    def test_a_region_that_has_the_whole_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(split, "share_of", lambda limit, _regions: limit)
        assert is_found(simulate_split)

    def test_a_share_that_is_not_admitted_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        take = FixedWindow.take

        def one_less(self: FixedWindow, state: Any, now_us: int, cost: int) -> Any:
            return take(FixedWindow(max(0, self.limit - 1), self.window_us), state, now_us, cost)

        monkeypatch.setattr(FixedWindow, "take", one_less)
        assert any("a share of" in one for n in range(100) for one in simulate_split(n).findings)


def are_apart(found: str = "has counted", seeds: int = 100) -> bool:
    """Whether one of so many seeds ends with a region that has counted something else than was admitted."""
    return any(found in words for seed in range(seeds) for words in simulate_merge(seed).findings)
