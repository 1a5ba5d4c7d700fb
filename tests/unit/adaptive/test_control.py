"""Nodes on one board, on one clock that stands still: they count by rule, choose, and agree."""

from __future__ import annotations

import asyncio
import time

from headgate.adaptive.control import AdaptiveControl, stored_proposal
from headgate.adaptive.monitor import OVERALL
from headgate.adaptive.selector import BACKOFF, BUCKET, WINDOW
from headgate.board import Board, MemoryStore, NodeIdentity, Report, Totals
from headgate.board.store import MAX_AGREED, BoardPull, BoardPush, ChoiceProposal, StoredChoice
from headgate.board.traffic import TrafficRates
from headgate.clock import ManualClock
from headgate.errors import EngineConnectionError


class Brittle(MemoryStore):
    """A store that can be away, and can lose an answer."""

    away = False
    deaf = False

    async def exchange(self, push: BoardPush) -> BoardPull:
        if self.away:
            raise EngineConnectionError("away", transient=True)
        return await super().exchange(push)

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        stored = await super().agree(proposal)
        if self.deaf:
            raise EngineConnectionError("the answer was lost", transient=True)
        return stored


class Node:
    """A board with a control, and traffic that a test makes up."""

    def __init__(self, store: MemoryStore, clock: ManualClock, name: str) -> None:
        self.control = AdaptiveControl()
        self.totals = Totals()
        self.board = Board(
            store,
            NodeIdentity(id=name, address=""),
            report=lambda: Report(self.totals),
            clock=clock,
            control=self.control,
        )

    def count(self, rule: str, requests: int, denied: int = 0) -> None:
        count = self.control.scope(rule)
        count.requests += requests
        count.denied += denied
        self.totals = Totals(self.totals.requests + requests, self.totals.denied + denied)

    def decides(self, rule: str = OVERALL) -> tuple[int, str]:
        return self.control.agreement.known(rule)[:2]


class Fleet:
    """Nodes that beat together, once a second."""

    def __init__(self, nodes: int) -> None:
        self.clock = ManualClock(1_800_000_000.05)
        self.store = Brittle(clock=self.clock)
        self.nodes = [Node(self.store, self.clock, f"node {i}") for i in range(nodes)]
        self.beat()

    def beat(self, *nodes: Node) -> None:
        async def all_beat() -> None:
            for node in nodes or self.nodes:
                await node.board.beat()

        asyncio.run(all_beat())

    def pass_seconds(self, seconds: int, *nodes: Node) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.beat(*nodes)


def test_uneven_load_leads_to_one_choice_by_rule_and_overall() -> None:
    fleet = Fleet(3)
    a, b, c = fleet.nodes
    for _ in range(12):
        a.count("login", 40, 38)
        b.count("login", 2)
        b.count("search", 3)
        fleet.pass_seconds(1)
    fleet.beat()
    for rule, algorithm in (("login", BACKOFF), ("search", WINDOW), (OVERALL, BACKOFF)):
        assert len({node.control.agreement.known(rule) for node in fleet.nodes}) == 1
        assert c.control.agreement.known(rule).algorithm == algorithm
    assert c.control.rates["login"] == TrafficRates(42.0, 1.0, 38 / 42)
    assert c.control.rates["search"] == TrafficRates(3.0, 1.0, 0.0)
    assert "denied" in c.control.deciding("login").reason


def test_a_choice_of_one_rule_leaves_the_others_alone() -> None:
    fleet = Fleet(2)
    for _ in range(12):
        fleet.nodes[0].count("uploads", 1_000)
        fleet.nodes[1].count("bursty", 0)
        fleet.pass_seconds(1)
    fleet.nodes[1].count("bursty", 200)
    fleet.pass_seconds(2)
    fleet.beat()  # The first node was too early to see it.
    assert fleet.nodes[0].control.rates["bursty"].burst_ratio == 10
    assert {node.control.agreement.known("bursty").algorithm for node in fleet.nodes} == {BUCKET}
    assert {node.control.agreement.known("uploads").algorithm for node in fleet.nodes} == {WINDOW}


def burst(fleet: Fleet, *nodes: Node) -> None:
    fleet.nodes[0].count("r", 200)
    fleet.pass_seconds(2, *nodes)


def test_a_node_that_cannot_reach_the_board_keeps_its_choice_and_catches_up() -> None:
    fleet = Fleet(3)
    burst(fleet)
    assert {node.decides("r") for node in fleet.nodes} == {(1, BUCKET)}
    away = fleet.nodes[2]
    fleet.pass_seconds(20, *fleet.nodes[:2])
    assert away.decides("r") == (1, BUCKET)
    assert fleet.nodes[0].decides("r") == (2, WINDOW)
    fleet.beat()
    assert {node.decides("r") for node in fleet.nodes} == {(2, WINDOW)}


def test_a_store_outage_changes_nothing_and_an_empty_store_gets_the_choices_again() -> None:
    fleet = Fleet(2)
    burst(fleet)
    fleet.store.away = True
    fleet.pass_seconds(30)
    assert {node.decides("r") for node in fleet.nodes} == {(1, BUCKET)}
    fleet.store.away = False
    fleet.store._agreed.clear()
    fleet.store._agreed_revision = -1
    fleet.pass_seconds(2)
    assert len({node.decides("r") for node in fleet.nodes}) == 1
    fleet.pass_seconds(8)
    assert {node.decides("r")[1] for node in fleet.nodes} == {WINDOW}


def test_a_lost_answer_is_received_with_the_next_beat() -> None:
    fleet = Fleet(2)
    fleet.store.deaf = True
    burst(fleet, fleet.nodes[0])
    fleet.store.deaf = False
    fleet.pass_seconds(1)
    assert {node.decides("r") for node in fleet.nodes} == {(1, BUCKET)}


def test_a_person_pins_through_any_node() -> None:
    fleet = Fleet(2)
    burst(fleet)
    first, second = fleet.nodes
    proposal = first.control.agreement.pin_proposal("r", BACKOFF, fleet.clock.now_us(), "ann")
    stored = asyncio.run(fleet.store.agree(stored_proposal(proposal)))
    first.control.process_answer("r", stored)
    fleet.pass_seconds(30)
    assert {node.decides("r") for node in fleet.nodes} == {(2, BACKOFF)}
    assert second.control.deciding("r").pinned_by == "ann"


def test_a_store_holds_choices_for_a_bounded_number_of_scopes() -> None:
    store = MemoryStore(clock=ManualClock())

    async def fill() -> None:
        for i in range(3 * MAX_AGREED):
            await store.agree(ChoiceProposal(f"rule {i}", 0, StoredChoice(1, b"")))
            assert len(store._agreed) <= MAX_AGREED

    asyncio.run(fill())


def test_traffic_adds_nothing_to_the_store() -> None:
    fleet = Fleet(2)
    for _ in range(3):
        for node in fleet.nodes:
            node.count("r", 10)
        fleet.pass_seconds(1)
    for _ in range(50):
        for node in fleet.nodes:
            node.count("r", 100_000)
        fleet.pass_seconds(1)
    assert [len(scopes) for scopes in fleet.store._scopes.values()] == [1, 1]
    assert {len(one["r"].counts) for one in fleet.store._scopes.values()} == {24}


def test_watching_a_hundred_busy_rules_on_three_nodes_takes_less_than_a_hundredth_of_a_core() -> (
    None
):
    """By CPU time, and the best of many beats: a busy machine only ever adds."""
    fleet = Fleet(3)
    took = []
    for _ in range(20):
        for node in fleet.nodes:
            for rule in range(100):
                node.count(f"rule {rule}", 7, 1)
        fleet.clock.advance(1)
        began = time.process_time()
        fleet.beat(fleet.nodes[0])
        took.append(time.process_time() - began)
        fleet.beat(*fleet.nodes[1:])
    assert len(fleet.nodes[0].control.rates) == 101
    assert min(took[12:]) < 0.01
