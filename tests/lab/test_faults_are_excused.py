"""Faults that a promise allows for raise no alarm; what they do not explain is still found."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from headgate import Concurrency, Limit, SlidingLog, TokenBucket
from headgate.lab.history import Fault
from tests.lab.histories import EPOCH_US, START_US, Book, Call, Shape, calls_of
from tests.lab.test_clean import HUNDREDS, LIMITS, shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("store_restart", "failover", "store_slow", "store_down")


class Lossy:
    """A store with a replica that is behind, and that faults happen to."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.past: list[tuple[int, dict[str, Any], dict[str, int]]] = [(0, {}, {})]
        self.states: dict[str, Any] = {}
        self.versions: dict[str, int] = {}

    def take(self, call: Call, now_us: int) -> tuple[Any, int]:
        after, answer = self.limit.take(self.states.get(call.key), now_us, call.cost)
        kept = after if after is None else self.limit.decode(self.limit.encode(after))
        self.states = {**self.states, call.key: kept}
        self.versions = {**self.versions, call.key: self.versions.get(call.key, 0) + 1}
        self.past.append((call.at, self.states, self.versions))
        return answer, self.versions[call.key]

    def fall_back_to(self, at: int) -> None:
        """Forget what came after that moment."""
        while len(self.past) > 1 and self.past[-1][0] > at:
            self.past.pop()
        _, self.states, self.versions = self.past[-1]


def faults_in(calls: list[Call], kinds: list[str], rng: random.Random) -> list[Fault]:
    """One after the other, from the first quarter of the calls on."""
    lasts = max(1, (calls[-1].at - START_US) // 8)
    at = START_US + 2 * lasts
    found = []
    for kind in kinds:
        begin = at + rng.randrange(lasts)
        heal = begin + rng.randrange(1, lasts + 1)
        found.append(Fault(kind, begin, heal, heal))
        at = heal + rng.randrange(1, lasts + 1)
    return found


def heal(store: Lossy, fault: Fault, lag_us: int | None, rng: random.Random) -> None:
    """What is left of a store after a fault."""
    if fault.fault == "store_restart":
        store.fall_back_to(-1)
    elif fault.fault == "failover":
        store.fall_back_to(fault.t0 - rng.randrange((10**9 if lag_us is None else lag_us) + 1))


def broken(limit: Limit, shape: Shape, kinds: list[str], lag_us: int | None) -> Book:
    """A history with these faults."""
    rng = random.Random(shape.seed)
    calls = calls_of(shape)
    book, store = Book(limit, receipts=shape.receipts), Lossy(limit)
    book.parameters = {"recovery_us": rng.choice([0, 1_000, 1_000_000])}
    book.parameters |= {} if lag_us is None else {"lag_us": lag_us}
    book.faults = faults_in(calls, kinds, rng)
    waiting, late = list(book.faults), list[Call]()
    for call in calls:
        while waiting and waiting[0].ends <= call.at:
            fault = waiting.pop(0)
            heal(store, fault, lag_us, rng)
            for one in late:  # What a stopped server was sent is worked off when it goes on.
                store.take(one._replace(at=fault.ends), fault.ends + EPOCH_US)
            late.clear()
        now_us = call.at + EPOCH_US
        if not waiting or waiting[0].t0 > call.at:
            answer, version = store.take(call, now_us)
            outcome = "info" if call.lost else "allow" if answer[0] else "deny"
            book.note(call, outcome, answer, ver=version, now_us=now_us)
        elif waiting[0].fault == "store_slow":
            late.append(call)
            book.note(call, "info")
        else:
            book.note(call, rng.choice(["fail", "info"]))
    return book


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in LIMITS if one != "adaptive"])
@HUNDREDS
@given(data=st.data())
def test_a_permitted_loss_of_the_store_raises_no_alarm(name: str, data: st.DataObject) -> None:
    """Restarts, failovers that lose what was not replicated, stops that are worked off late, outages, in a row."""
    limit: Limit = data.draw(LIMITS[name])
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    lag_us = data.draw(st.sampled_from([None, 0, 500, 20_000]))
    verdict = broken(limit, data.draw(shapes()), kinds, lag_us).verdict()
    assert verdict.holds, verdict.findings


def stepping(limit: Limit, shape: Shape, step_us: int, flips: int) -> Book:
    """A store whose clock is off by a step for a while, or goes to and fro between the two."""
    calls = calls_of(shape)
    book = Book(limit, receipts=shape.receipts)
    lasts = calls[-1].at - START_US
    begin, end = START_US + lasts // 4, START_US + 3 * lasts // 4
    book.faults = [Fault("clock_step", begin, end, end, step_us=step_us)]
    states: dict[str, Any] = {}
    versions: dict[str, int] = {}
    for call in calls:
        now_us = call.at + EPOCH_US
        if begin <= call.at < end and not (call.at - begin) * flips // max(1, end - begin) % 2:
            now_us += step_us
        states[call.key], answer = limit.take(states.get(call.key), now_us, call.cost)
        versions[call.key] = versions.get(call.key, 0) + 1
        outcome = "info" if call.lost else "allow" if answer[0] else "deny"
        book.note(call, outcome, answer, ver=versions[call.key], now_us=now_us)
    return book


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in LIMITS if one != "adaptive"])
@HUNDREDS
@given(data=st.data())
def test_a_permitted_clock_step_raises_no_alarm(name: str, data: st.DataObject) -> None:
    """Forth or back, once or to and fro, by no more than a key's own time is believed."""
    limit: Limit = data.draw(LIMITS[name])
    most = min(limit.window_us, 60_000_000)
    step_us = data.draw(st.integers(1, most)) * data.draw(st.sampled_from([1, -1]))
    shape = data.draw(shapes())
    verdict = stepping(limit, shape, step_us, data.draw(st.integers(1, 6))).verdict()
    assert verdict.holds, verdict.findings


FAST = TokenBucket(5, 1_000_000, 1)
"""A bucket that holds one unit, and may owe many more."""


def _set_back(step_us: int, acts: Sequence[tuple[int, str]]) -> Book:
    """What a store answers whose clock was ahead by a step, and is set right after one second."""
    book = Book(FAST, receipts=False)
    heal = START_US + 1_000_000
    book.faults = [Fault("clock_step", START_US, heal, heal, step_us=step_us)]
    state: Any = None
    for after_us, verb in acts:
        at = START_US + after_us
        call = Call(at, at, at, 1, 0, f="force" if verb == "force" else "check")
        if verb == "fail":
            book.note(call, "fail")
            continue
        now_us = at + EPOCH_US + (step_us if at < heal else 0)
        state, answer = getattr(FAST, verb)(state, now_us, 1)
        book.note(call, "allow" if answer[0] else "deny")
    return book


def test_a_debt_that_stood_still_with_its_key_may_deny_until_it_has_drained() -> None:
    """Ten units drain in two seconds, and did not in the 0.9 s that the key's time was ahead."""
    charged = [(999_900 + n, "force") for n in range(10)]
    assert _set_back(900_000, [*charged, (1_000_100, "take"), (3_800_000, "take")]).verdict().holds
    denied = _set_back(900_000, [*charged, (1_000_100, "take")])
    denied.note(Call(0, START_US + 6_000_000, START_US + 6_000_000, 1, 0), "deny")
    assert denied.verdict().counts == {"false denial": 1}


def test_a_call_that_failed_did_not_read_a_state_that_is_ahead() -> None:
    """So the state is cut later than that, and what it holds drains from then on."""
    acts = [(999_999, "take"), (1_000_100, "fail"), (2_250_000, "take"), (2_350_000, "take")]
    assert _set_back(5_000_000, acts).verdict().holds


def _admitted(limit: Limit, many: int, **fields: Any) -> Book:
    book = Book(limit, receipts=False)
    for number in range(many):
        at = START_US + number
        book.note(Call(at, at, at, 1, 0), "allow", **fields)
    return book


BUCKET = TokenBucket(1, 3_600_000_000, 12)


@pytest.mark.parametrize(
    "engine, mode, parameters, fault, bound",
    [
        ("memory", "exact", {}, {}, 0),
        ("memory", "exact", {}, {"fault": "node_kill"}, 12),
        ("memory", "exact", {"state_file_us": 2}, {"fault": "node_kill"}, 3),
        ("redis", "exact", {}, {}, 0),
        ("redis", "exact", {}, {"fault": "store_restart"}, 12),
        ("redis", "exact", {}, {"fault": "store_kept"}, 0),
        ("redis", "exact", {}, {"fault": "node_kill"}, 0),
        ("redis", "exact", {}, {"fault": "failover"}, 12),
        ("redis", "exact", {"lag_us": 3}, {"fault": "failover"}, 4),
        ("redis", "exact", {}, {"fault": "other"}, 0),
        ("redis", "exact", {"on_error": "fallback", "nodes": 3}, {"fault": "store_down"}, 12),
        ("redis", "exact", {"on_error": "fallback", "nodes": 5}, {"fault": "store_down"}, 10),
        (
            "redis",
            "exact",
            {"on_error": "fallback", "nodes": 4},
            {"fault": "partition", "nodes": 1},
            3,
        ),
        (
            "redis",
            "exact",
            {"on_error": "fallback", "nodes": 20},
            {"fault": "partition", "nodes": 7},
            7,
        ),
        ("redis", "exact", {"on_error": "fallback", "nodes": 20}, {"fault": "store_down"}, 13),
        (
            "redis",
            "exact",
            {"on_error": "fallback", "nodes": 2, "nodes_unknown": True},
            {"fault": "store_down"},
            24,
        ),
        ("redis", "exact", {"on_error": "closed"}, {"fault": "store_down"}, 0),
        ("redis", "leased", {"nodes": 3, "chunk": 2}, {}, 6),
        ("redis", "leased", {"nodes": 3, "chunk": 2, "in_flight": 4}, {"fault": "node_stop"}, 10),
        ("redis", "cluster", {}, {}, 0),
        ("etcd", "exact", {}, {"fault": "failover"}, 0),
        ("etcd", "leased", {"unconfirmed": 5}, {"fault": "node_kill"}, 5),
        ("etcd", "leased", {"unconfirmed": 50}, {"fault": "node_kill"}, 12),
        ("regions", "split", {}, {}, 0),
        ("regions", "merge", {"regions": 3}, {}, 24),
        ("regions", "merge", {"regions": 3, "lag_us": 1}, {}, 4),
        ("regions", "merge", {"regions": 3}, {"fault": "partition"}, 24),
        ("regions", "merge", {"regions": 3, "lag_us": 1}, {"fault": "partition"}, 24),
        ("regions", "escrow", {"regions": 3}, {}, 0),
        ("other", "exact", {}, {}, 0),
        ("other", "safe", {}, {}, 0),
        ("redis", "exact", {}, {"fault": "clock_step", "step_us": 7_200_000_000}, 2),
        ("redis", "exact", {}, {"fault": "clock_step", "step_us": -7_200_000_000, "heal": None}, 0),
    ],
)
def test_a_bound_matches_the_table_exactly(
    engine: str, mode: str, parameters: dict[str, Any], fault: dict[str, Any], bound: int
) -> None:
    """So many units over the limit of 12 are no fault, and one more is."""
    for over, holds in ((bound, True), (bound + 1, False)):
        book = _admitted(BUCKET, 12 + over)
        book.engine, book.mode, book.parameters = engine, mode, parameters
        at = START_US + 11
        if fault:
            book.faults = [Fault(**{"t0": at, "t1": at, "heal": at, **fault})]
        verdict = book.verdict()
        assert verdict.figures["over_bound"] == (0 if holds else 1), verdict.figures
        assert verdict.holds is holds


@pytest.mark.parametrize(
    "lasts_us, recovery_us, nodes, bound",
    [
        (0, 0, 3, 12),
        (500_000, 0, 3, 12 + 6),
        (1_000_000, 0, 3, 12 + 12),
        (60_000_000, 0, 3, 12 + 12),
        (0, 500_000, 3, 12 + 4),
        (60_000_000, 500_000, 3, 12 + 12 + 4),
        (60_000_000, 500_000, 1, 12 + 12),
        (60_000_000, 500_000, 24, 12 + 12 + 6),
    ],
)
def test_a_bucket_refills_while_no_node_has_the_store_to_its_burst_and_no_more(
    lasts_us: int, recovery_us: int, nodes: int, bound: int
) -> None:
    """Twelve units a second. Shares of nodes that return later flow beside it, except that of the first to return."""
    for over, counts in ((bound, {}), (bound + 1, {"over-admission": 1})):
        book = _admitted(TokenBucket(12, 1_000_000, 12), 12 + over)
        book.parameters = {"on_error": "fallback", "nodes": nodes, "recovery_us": recovery_us}
        heal = START_US + (1_000 if lasts_us else 11)
        book.faults = [Fault("store_down", heal - lasts_us, heal, heal)]
        assert book.verdict().counts == counts


def _given_twice(second: str, apart_us: int) -> Book:
    """A node admits its share of 4 of 12, has the store again, and admits as much once more."""
    book = Book(SlidingLog(12, 1_000_000), receipts=False)
    book.parameters = {"on_error": "fallback", "nodes": 3, "recovery_us": 0}
    for place, (at, node) in enumerate(((START_US, "a"), (START_US + apart_us, second))):
        book.note(Call(at + 1, at, at + 2, 4, place), "allow", source="fallback", node=node)
        book.note(Call(at + 20, at + 15, at + 25, 1, 2), "allow", source="engine", node=node)
        book.faults.append(Fault("store_down", at, at + 10, at + 10))
    return book


def test_a_share_is_counted_through_all_outages_of_a_window() -> None:
    assert _given_twice("a", 500_000).verdict().counts == {"fallback share": 1}
    assert _given_twice("a", 1_000_000).verdict().holds
    assert _given_twice("b", 500_000).verdict().holds


@pytest.mark.parametrize("node, holds", [("a", True), (None, True), ("b", False)])
def test_a_node_that_was_killed_has_forgotten_what_it_spent(
    node: str | None, *, holds: bool
) -> None:
    book = _given_twice("a", 500_000)
    kill = START_US + 100_000
    book.faults.append(Fault("node_kill", kill, kill + 10, kill + 10, node=node))
    assert book.verdict().holds is holds


def test_a_fault_excuses_only_the_spans_that_meet_it() -> None:
    """A restart long before, or long after, explains nothing."""
    book = _admitted(BUCKET, 13)
    for away in (-10_000_000, 10_000_000):
        at = START_US + away
        book.faults = [Fault("store_restart", at, at, at)]
        book.parameters = {"recovery_us": 0}
        assert book.verdict().counts == {"over-admission": 1}


def test_admissions_by_the_open_policy_are_counted_but_not_judged() -> None:
    book = _admitted(BUCKET, 30, source="open")
    book.faults = [Fault("store_down", START_US, START_US + 40, START_US + 40)]
    book.parameters = {"on_error": "open"}
    verdict = book.verdict()
    assert verdict.holds
    assert verdict.figures["sources"] == {"open": 30}
    book.parameters = {"on_error": "closed"}
    assert book.verdict().counts == {"over-admission": 1}


def test_answers_are_late_when_more_than_one_in_a_thousand_is() -> None:
    book = _admitted(TokenBucket(1_000_000, 1_000_000), 2_000)
    book.parameters = {"deadline_us": 25_000}
    slow = Call(START_US, START_US, START_US + 30_001, 1, 0)
    book.note(slow, "allow")
    book.note(slow, "allow")
    assert (book.verdict().holds, book.verdict().figures["late"]) == (True, 2)
    book.note(slow, "allow")
    assert book.verdict().counts == {"late": 1}


@pytest.mark.parametrize(
    "given_by, released_at, found",
    [
        ("fallback", "node 0", {"false denial": 1}),
        ("fallback", "node 1", {}),
        ("engine", "node 1", {"false denial": 1}),
    ],
)
def test_only_the_node_that_gave_a_slot_without_the_store_can_release_it_early(
    given_by: str, released_at: str, found: dict[str, int]
) -> None:
    """One slot of ten seconds is released after 10 ms, and another one is refused two seconds later."""
    book = Book(Concurrency(1, 10_000_000), receipts=False)
    book.parameters = {"on_error": "fallback", "nodes": 2, "recovery_us": 1_000_000}
    book.faults = [Fault("store_down", START_US, START_US + 20_000, START_US + 20_000)]

    def call(f: str, at_us: int, token: str) -> Call:
        at_us += START_US
        return Call(at_us, at_us, at_us + 1_000, 1, 0, f=f, token=token)

    book.note(call("acquire", 0, "a"), "allow", source=given_by, node="node 0")
    book.note(call("release", 10_000, "a"), "allow", node=released_at)
    book.note(call("acquire", 2_000_000, "b"), "deny", source="engine", node="node 1")
    assert book.verdict().counts == found
