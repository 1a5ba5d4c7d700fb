"""Faults that a promise allows for raise no alarm, whatever they do to the history; what they do not explain is still found."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headgate import Limit, TokenBucket
from headgate.lab.history import Fault
from tests.lab.histories import EPOCH_US, START_US, Book, Call, Shape, calls_of
from tests.lab.test_clean import HUNDREDS, LIMITS, shapes

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
    """Restarts, failovers that lose what was not replicated, stops that are worked off late, outages; several of them in a row."""
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
        ("redis", "exact", {"on_error": "fallback", "nodes": 20}, {"fault": "store_down"}, 12),
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
