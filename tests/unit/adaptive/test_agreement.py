"""Nodes that share a store agree: first by hand, then whatever the network and the store do to them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from headgate.adaptive.agreement import Agreement, Proposal, from_bytes, to_bytes
from headgate.adaptive.monitor import OVERALL
from headgate.adaptive.selector import (
    BACKOFF,
    BUCKET,
    DEFAULT_THRESHOLDS,
    FIRST_CHOICE,
    WINDOW,
    Choice,
)
from headgate.board.traffic import TrafficRates

SECOND_US = 1_000_000
CALM, BURST, ABUSE = (
    TrafficRates(5.0, 1.0, 0.0),
    TrafficRates(9.0, 5.0, 0.0),
    TrafficRates(90.0, 1.0, 0.9),
)


class Store:
    """What the real ones do: keep, or refuse and say what there is."""

    def __init__(self) -> None:
        self.agreed: dict[str, Choice] = {}

    def agree(self, proposal: Proposal) -> Choice:
        stored = self.agreed.get(proposal.scope, FIRST_CHOICE)
        if stored.epoch != proposal.expected_epoch:
            return stored
        self.agreed[proposal.scope] = proposal.choice
        return proposal.choice


def beat(
    node: Agreement, store: Store, rates: TrafficRates, now_us: int, scope: str = OVERALL
) -> None:
    node.update_all(store.agreed)
    for proposal in node.proposals({scope: rates}, now_us):
        node.update(proposal.scope, store.agree(proposal))


def test_who_comes_second_takes_the_winners_choice() -> None:
    store, a, b = Store(), Agreement(), Agreement()
    a.update_all(store.agreed)
    b.update_all(store.agreed)
    (first,) = a.proposals({OVERALL: BURST}, SECOND_US)
    (second,) = b.proposals({OVERALL: ABUSE}, SECOND_US)
    b.update(OVERALL, store.agree(second))
    a.update(OVERALL, store.agree(first))
    assert a.deciding() == b.deciding() == second.choice
    assert a.deciding().algorithm == BACKOFF


def test_a_node_without_the_store_keeps_its_choice_and_restores_it_to_an_empty_store() -> None:
    store, a, b = Store(), Agreement(), Agreement()
    beat(a, store, BURST, SECOND_US)
    beat(b, store, BURST, 2 * SECOND_US)
    before = a.deciding()
    assert before == b.deciding()
    assert before.algorithm == BUCKET
    store.agreed.clear()
    beat(b, store, BURST, 3 * SECOND_US)
    assert a.deciding() is before  # It has heard nothing.
    assert b.deciding() == store.agreed[OVERALL] == before._replace(epoch=2)
    beat(a, store, BURST, 4 * SECOND_US)
    assert a.deciding() == b.deciding()


def test_two_choices_under_one_epoch_are_settled_by_the_store() -> None:
    """Which takes a store that forgets while the node that knew most is away."""
    store, a, b = Store(), Agreement(), Agreement()
    beat(a, store, BURST, 10 * SECOND_US)
    beat(b, store, BURST, 10 * SECOND_US)
    beat(a, store, ABUSE, 20 * SECOND_US)  # Epoch 2, of which b has not heard,
    store.agreed.clear()
    beat(b, store, BURST, 21 * SECOND_US)  # and never will: now this is epoch 2.
    assert (a.deciding().epoch, b.deciding().epoch) == (2, 2)
    assert a.deciding() != b.deciding()
    beat(a, store, BURST, 22 * SECOND_US)
    assert a.deciding() == b.deciding() == store.agreed[OVERALL]


def test_a_pin_survives_traffic_and_a_store_that_forgets() -> None:
    store, a, b = Store(), Agreement(), Agreement()
    beat(a, store, BURST, SECOND_US)
    stale = b.pin_proposal(OVERALL, BACKOFF, 2 * SECOND_US, "ann", "attack")
    b.update(OVERALL, store.agree(stale))
    assert b.deciding().algorithm == BUCKET  # It was too late, and now knows better.
    b.update(OVERALL, store.agree(b.pin_proposal(OVERALL, BACKOFF, 2 * SECOND_US, "ann", "attack")))
    assert b.deciding().reason == "pinned by ann: attack"
    store.agreed.clear()
    for second in range(3, 30):
        beat(b, store, CALM, second * SECOND_US)
        beat(a, store, CALM, second * SECOND_US)
    assert a.deciding() == b.deciding()
    assert (a.deciding().algorithm, a.deciding().pinned_by) == (BACKOFF, "ann")
    proposal = a.unpin_proposal(OVERALL, 30 * SECOND_US)
    assert proposal is not None
    a.update(OVERALL, store.agree(proposal))
    assert a.unpin_proposal(OVERALL, 30 * SECOND_US) is None
    beat(b, store, CALM, 40 * SECOND_US)
    assert b.deciding().algorithm == WINDOW


def test_a_rule_has_its_own_choice_and_follows_the_overall_one_until_it_has() -> None:
    store, node = Store(), Agreement()
    beat(node, store, BURST, SECOND_US)
    assert node.deciding("login").algorithm == BUCKET
    beat(node, store, ABUSE, 2 * SECOND_US, "login")
    assert node.deciding("login").algorithm == BACKOFF
    assert node.deciding("search").algorithm == BUCKET
    node.update(OVERALL, store.agree(node.pin_proposal(OVERALL, WINDOW, 3 * SECOND_US, "ann")))
    assert (
        node.deciding("login").algorithm == WINDOW
    )  # A person's choice for all goes before traffic,
    node.update("login", store.agree(node.pin_proposal("login", BUCKET, 3 * SECOND_US, "ben")))
    assert node.deciding("login").algorithm == BUCKET  # and one for the rule before that.
    node.keep_only([])
    assert node.known("login") is FIRST_CHOICE


@pytest.mark.parametrize("choice", [FIRST_CHOICE, Choice(3, BACKOFF, 7, "why “so”", "ann")])
def test_a_choice_is_stored_and_read_back(choice: Choice) -> None:
    assert from_bytes(choice.epoch, to_bytes(choice)) == choice


@pytest.mark.parametrize("blob", [b"", b"{}", b"[1]", b'["gcra",1,"",""]', b"\xff", b"7"])
def test_what_is_not_understood_is_a_sliding_window_under_its_epoch(blob: bytes) -> None:
    assert from_bytes(9, blob)[:2] == (9, WINDOW)


class Turn(NamedTuple):
    """What happens next, after some time: a node beats, as far as the network lets it."""

    node: int
    wait_us: int
    rates: TrafficRates
    luck: str
    """`fine`, `away` (the store is not reached), `deaf` (proposals arrive, answers do not), `slow` (a proposal arrives
    after somebody else's turn), `empty` (the store has lost everything)."""


turns = st.lists(
    st.builds(
        Turn,
        st.integers(0, 4),
        st.sampled_from([0, 200_000, SECOND_US, 5 * SECOND_US]),
        st.sampled_from([CALM, BURST, ABUSE]),
        st.sampled_from(["fine", "fine", "fine", "away", "deaf", "slow", "empty"]),
    ),
    max_size=60,
)


class World:
    """Five nodes, their store, and all that can go wrong between them."""

    def __init__(self) -> None:
        self.store = Store()
        self.nodes = [Agreement() for _ in range(5)]
        self.now_us = 1_800_000_000 * SECOND_US
        self.late: list[tuple[Agreement, Proposal]] = []
        self.switched_us: list[int] = []

    def play(self, turn: Turn) -> None:
        self.now_us += turn.wait_us
        node = self.nodes[turn.node]
        if turn.luck == "away":
            return
        if turn.luck == "empty":
            self.store.agreed.clear()
        node.update_all(self.store.agreed)
        for proposal in node.proposals({OVERALL: turn.rates}, self.now_us):
            if turn.luck == "slow":
                self.late.append((node, proposal))
            else:
                self.propose(node, proposal, deaf=turn.luck == "deaf")
        if turn.luck == "fine" and self.late:
            self.propose(*self.late.pop(0), deaf=False)

    def propose(self, node: Agreement, proposal: Proposal, *, deaf: bool) -> None:
        stored = self.store.agree(proposal)
        if stored == proposal.choice:
            self.switched_us.append(self.now_us)
        if not deaf:
            node.update(proposal.scope, stored)

    def calm(self) -> None:
        """Everybody reaches the store twice."""
        for node in self.nodes * 2:
            beat(node, self.store, CALM, self.now_us)


@given(turns=turns)
def test_whatever_happens_nodes_agree_again_and_epochs_never_go_back(turns: list[Turn]) -> None:
    world = World()
    for turn in turns:
        before = [node.deciding() for node in world.nodes]
        world.play(turn)
        after = [node.deciding() for node in world.nodes]
        assert all(new.epoch >= old.epoch for new, old in zip(after, before, strict=True))
        if turn.luck == "away":
            assert after == before
    world.calm()
    assert len({node.deciding() for node in world.nodes}) == 1
    assert world.nodes[0].deciding() == world.store.agreed.get(OVERALL, FIRST_CHOICE)


@given(turns=turns)
def test_while_the_store_remembers_an_epoch_means_one_choice(turns: list[Turn]) -> None:
    world, meanings = World(), dict[int, Choice]()
    for turn in turns:
        world.play(turn._replace(luck="deaf") if turn.luck == "empty" else turn)
        for node in world.nodes:
            chosen = node.deciding()
            assert meanings.setdefault(chosen.epoch, chosen) == chosen


@given(turns=turns)
def test_all_nodes_together_switch_at_most_once_per_dwell(turns: list[Turn]) -> None:
    """Each sees other traffic, and proposals are carried out at once or not at all."""
    world = World()
    for turn in turns:
        world.play(turn._replace(luck="deaf") if turn.luck in {"empty", "slow"} else turn)
    gaps = [after - before for before, after in pairwise(world.switched_us)]
    assert all(gap >= DEFAULT_THRESHOLDS.dwell_us for gap in gaps)


def test_a_choice_for_a_removed_rule_is_not_sent_again() -> None:
    store, node = Store(), Agreement()
    beat(node, store, BURST, SECOND_US, "old")
    node.keep_only(["new"])
    node.update_all(store.agreed)
    store.agreed.clear()
    beat(node, store, BURST, 2 * SECOND_US, "new")
    assert set(store.agreed) == {"new"}
