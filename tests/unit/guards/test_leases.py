"""Leases on a store that counts: never a unit more than the bound, and what is not spent goes back."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headgate import (
    CalendarWindow,
    Decision,
    EngineTimeout,
    FixedWindow,
    Limiter,
    MemoryEngine,
    SlidingWindow,
    TokenBucket,
    UsageError,
    leased,
)
from headgate.algorithms.calendar import Calendar
from headgate.charge import Charge
from headgate.clock import SURE_NS_PER_US
from headgate.decision import Context
from headgate.engines.base import Awaited
from headgate.engines.verbs import run
from headgate.guards import leases as leases_module
from headgate.guards.base import AskInstead, Guard, HitGuard
from headgate.guards.chores import ChoreThread, ChoreTimer
from headgate.guards.chunks import FEW_HITS, KeyChunk, LimitChunks
from headgate.guards.deny_cache import DenyCache
from headgate.guards.leases import Leases
from headgate.guards.shell import AsyncGuardedEngine, GuardedEngine
from headgate.guards.stack import guarded, guarded_async, leases_of, own_guards
from headgate.lab.checks.sweep import flowing
from headgate.lab.spans import Span
from headgate.testing import ManualClock
from tests.unit.guards.failing_engine import DOWN, FailingEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate import AsyncEngine, Engine, Limit
    from headgate.charge import ChargeSet

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
LIMITS: list[Limit] = [
    FixedWindow(1_000, MINUTE_US),
    CalendarWindow(1_000, Calendar("day")),
    SlidingWindow(1_000, MINUTE_US),
    TokenBucket(1_000, MINUTE_US),
]
each_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: type(limit).__name__)


class Store(MemoryEngine):
    """The shared store, which counts what it is asked, and fails when told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.questions = self.settled = 0
        self.fails_after: bool | None = None
        """Whether the next request fails, after it took effect or before."""

    def bind(self, limit: Limit, rule: str | None = None) -> Any:
        hit = super().bind(limit, rule)

        def counted(key: str, cost: int) -> Decision:
            self.questions += 1
            return hit(key, cost)

        return counted

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        self.settled += 1
        return super().settle(token, actual)

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        self.questions += 1
        fails_after, self.fails_after = self.fails_after, None
        if fails_after is False:
            raise EngineTimeout("the store is away", transient=True)
        decisions = super().decide(requests)
        if fails_after:
            raise EngineTimeout("no answer came", transient=True, indefinite=True)
        return decisions


class Node:
    """One node of a fleet: its leases around the store. Its chores are done when a test says so."""

    def __init__(self, store: Store) -> None:
        self.leases = Leases(store.clock)
        self.engine = GuardedEngine(cast("Engine", store), self.leases)
        self.store = store

    def hit(
        self, limit: Limit, key: str = "key", cost: int = 1, rule: str | None = None
    ) -> Decision:
        return self.engine.bind(limit.as_leased(), rule)(key, cost)

    def do_chores(self) -> None:
        for chore in self.leases.chores():
            run(chore(self.store))

    def warm_up(self, limit: Limit, hits: int = 60) -> int:
        """Hit a key a thousand times a second until a chunk is held; how many were admitted."""
        admitted = 0
        for _ in range(hits):
            admitted += bool(self.hit(limit))
            self.store.clock.advance(us=1_000)  # type: ignore[attr-defined]
        assert self.leases.totals().unspent
        return admitted


@pytest.fixture(autouse=True)
def _no_chores_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChoreThread, "start", lambda _: None)
    monkeypatch.setattr(ChoreTimer, "start", lambda _: None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return Store(clock)


@pytest.fixture
def node(store: Store) -> Node:
    return Node(store)


def used(store: Store, limit: Limit, key: str = "key") -> int:
    return store.usage(key, limit).used


@each_limit
def test_a_busy_key_is_answered_from_chunks_and_what_is_left_goes_back(
    store: Store, node: Node, limit: Limit
) -> None:
    sources = [node.hit(limit).source for _ in range(300)]
    assert sources.count("lease") > 290
    assert store.questions < 15
    held = node.leases.totals()
    assert used(store, limit) == 300 + held.unspent

    node.engine.finish()
    assert used(store, limit) == 300
    after = node.leases.totals()
    assert (after.chunks, after.unspent, after.taken - after.returned) == (
        0,
        0,
        300 - sources.count("engine"),
    )


@each_limit
def test_alone_a_node_is_admitted_all_of_the_limit_and_no_more(node: Node, limit: Limit) -> None:
    """At one moment, so that nothing flows back; a chunk is at most an eighth of what is left."""
    admitted, largest = 0, 0
    for _ in range(1_200):
        before = node.leases.totals().taken
        admitted += bool(node.hit(limit))
        largest = max(largest, node.leases.totals().taken - before)
    assert admitted == limit.limit
    assert 1 < largest <= limit.limit // 8


@each_limit
def test_remaining_units_are_reported_as_the_store_would_to_a_single_node(
    node: Node, clock: ManualClock, limit: Limit
) -> None:
    other = Store(clock)
    exact = other.bind(limit)
    for _ in range(500):
        told, expected = node.hit(limit), exact("key", 1)
        assert told.answer[:3] == expected.answer[:3]
        assert (
            told.reset_after >= expected.reset_after
        )  # A bucket has to let flow back what is held, too.


@each_limit
def test_a_chunk_is_not_used_at_its_deadline(
    store: Store, node: Node, clock: ManualClock, limit: Limit
) -> None:
    """The deadline counts from before the chunk was asked for, a tenth less than its length."""
    node.warm_up(limit)
    (chunk,) = node.leases._limits[limit.as_leased(), None].by_key.values()
    length_us = min(3 * SECOND_US, limit.window_us // 20)
    assert chunk.until_ns - chunk.sent_ns == length_us * SURE_NS_PER_US
    left = chunk.left
    clock.advance(us=chunk.until_ns // 1000 - clock.now_us() - 1)
    assert node.hit(limit).source == "lease"
    assert chunk.left == left - 1
    clock.advance(us=1)
    questions = store.questions
    node.hit(limit)
    assert store.questions == questions + 1


def test_a_chunk_that_the_store_answers_late_is_used_for_less_time(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, node = FixedWindow(1_000, MINUTE_US), Node(store)
    node.warm_up(limit, 20)
    decide = Store.decide

    def slowly(self: Store, requests: Sequence[ChargeSet]) -> list[Decision]:
        clock.advance(0.3)
        decisions = decide(self, requests)
        clock.advance(0.3)
        return decisions

    monkeypatch.setattr(Store, "decide", slowly)
    (chunk,) = node.leases._limits[limit.as_leased(), None].by_key.values()
    chunk.hold(0)
    asked_ns = clock.ticks()
    assert node.hit(limit).source == "lease"
    assert chunk.until_ns == asked_ns + 3 * SECOND_US * SURE_NS_PER_US


@pytest.mark.parametrize("limit", LIMITS[:3], ids=lambda limit: type(limit).__name__)
def test_a_chunk_is_not_used_past_the_window_that_it_was_charged_in(
    store: Store, clock: ManualClock, limit: Limit
) -> None:
    """Also where the windows of a sliding one meet: each of them holds no more than its limit."""
    node = Node(store)
    bounds_us = limit.bounds_us(clock.now_us()) if isinstance(limit, FixedWindow) else (0, 0)
    end_us = bounds_us[1] or -(-(clock.now_us() + 1) // MINUTE_US) * MINUTE_US
    clock.advance(us=end_us - clock.now_us() - 200_000)
    node.warm_up(limit)
    (chunk,) = node.leases._limits[limit.as_leased(), None].by_key.values()
    assert chunk.until_ns <= end_us * 1000
    clock.advance(us=end_us - clock.now_us())
    questions = store.questions
    node.hit(limit)
    assert store.questions == questions + 1


@each_limit
def test_chunks_that_are_over_or_idle_go_back(
    store: Store, node: Node, clock: ManualClock, limit: Limit
) -> None:
    admitted = node.warm_up(limit)
    node.do_chores()
    assert node.leases.totals().unspent  # It is in use.
    for _ in range(3):
        clock.advance(us=1_000)
        node.do_chores()
    assert not node.leases.totals().unspent
    assert admitted - 2 <= used(store, limit) <= admitted  # To a bucket a unit has flown back.
    assert node.leases.chore_pause() is not None
    clock.advance(60)
    for _ in range(40):
        node.do_chores()
    assert node.leases.chore_pause() is None  # Nothing is left to look after.


def test_a_rule_with_another_limit_gives_back_what_is_held_of_the_old_one(
    store: Store, node: Node
) -> None:
    old, new = FixedWindow(1_000, MINUTE_US), FixedWindow(500, MINUTE_US)
    for _ in range(100):
        node.hit(old, rule="a")
    assert node.leases.totals().unspent
    node.hit(new, rule="a")
    node.do_chores()
    assert store.usage("key", new, "a").used == 101


def test_a_reset_drops_what_is_held_of_the_key(store: Store, node: Node) -> None:
    limit = FixedWindow(100, MINUTE_US)
    assert sum(bool(node.hit(limit)) for _ in range(50)) == 50
    node.engine.reset("key", limit.as_leased())
    node.do_chores()
    assert used(store, limit) == 0
    assert sum(bool(node.hit(limit)) for _ in range(200)) == 100


@pytest.mark.parametrize("took_effect", ["it took effect", ""])
def test_units_of_a_chunk_without_an_answer_go_back(
    store: Store, node: Node, took_effect: str
) -> None:
    limit = FixedWindow(1_000, MINUTE_US)
    for _ in range(9):
        node.hit(limit)
    node.leases._limits[limit.as_leased(), None].by_key["key"].hold(0)
    spent = used(store, limit)
    store.fails_after = bool(took_effect)
    with pytest.raises(EngineTimeout):
        node.hit(limit)
    node.do_chores()
    assert used(store, limit) == spent
    assert node.hit(limit).source == "lease"  # And the next one asks again.


def test_a_chunk_that_does_not_fit_any_more_becomes_a_hit(store: Store, node: Node) -> None:
    limit = FixedWindow(100, MINUTE_US)
    node.hit(limit)
    store.bind(limit)("key", 98)  # Somebody else.
    assert node.hit(limit).allowed
    assert node.hit(limit).allowed is False
    assert used(store, limit) == 100


def test_two_nodes_share_a_limit_and_neither_is_left_out(store: Store) -> None:
    limit = SlidingWindow(1_000, MINUTE_US)
    nodes = [Node(store), Node(store)]
    admitted = [0, 0]
    for _ in range(1_500):
        for place, node in enumerate(nodes):
            admitted[place] += bool(node.hit(limit))
            node.do_chores()
    assert sum(admitted) == 1_000
    assert min(admitted) > 400


@each_limit
def test_large_costs_come_out_of_chunks_too(store: Store, node: Node, limit: Limit) -> None:
    admitted = 0
    for _ in range(200):
        admitted += 7 * bool(node.hit(limit, cost=7))
        node.do_chores()
    node.engine.finish()
    assert used(store, limit) == admitted
    assert limit.limit - 2 * 7 < admitted <= limit.limit
    assert store.questions < 170


@pytest.mark.parametrize("cost", [-1, True, 1.5, "1", None])
def test_an_invalid_cost_is_refused_as_by_the_store(node: Node, cost: Any) -> None:
    node.warm_up(LIMITS[0])
    with pytest.raises(UsageError, match="cost"):
        node.hit(LIMITS[0], cost=cost)


@pytest.mark.parametrize("key", ["", None, 5, ["key"], b"key", "\ud800"])
def test_an_invalid_key_is_refused_as_by_the_store(node: Node, key: Any) -> None:
    with pytest.raises(UsageError, match="key"):
        node.hit(LIMITS[0], key=key)


def test_a_cost_of_nothing_takes_nothing(store: Store, node: Node) -> None:
    admitted = node.warm_up(LIMITS[0])
    unspent = node.leases.totals().unspent
    assert node.hit(LIMITS[0], cost=0).allowed
    assert node.leases.totals().unspent == unspent
    assert used(store, LIMITS[0]) == admitted + unspent


def test_quiet_keys_are_asked_for_one_by_one(node: Node, clock: ManualClock) -> None:
    limit = FixedWindow(1_000, MINUTE_US)
    for _ in range(20):
        assert node.hit(limit).source == "engine"
        clock.advance(1)
    assert node.leases.totals().taken == 0


def test_a_key_that_wastes_small_chunks_is_not_leased_for_a_while(
    node: Node, clock: ManualClock
) -> None:
    limit = FixedWindow(100_000, MINUTE_US)
    leased_bursts = 0
    for _ in range(40):
        taken = node.leases.totals().taken
        for _ in range(10):
            node.hit(limit)
        leased_bursts += node.leases.totals().taken > taken
        clock.advance(7.5)
        node.do_chores()
    assert 0 < leased_bursts <= 10


@pytest.mark.parametrize("kind", [FixedWindow, SlidingWindow, TokenBucket])
def test_a_dozen_hits_a_second_are_enough_to_be_leased(
    store: Store, node: Node, clock: ManualClock, kind: Any
) -> None:
    """At random times, as they come: the store is then asked for a third of them at most."""
    chance = random.Random(12)
    for _ in range(600):
        assert node.hit(kind(100_000, MINUTE_US))
        clock.advance(chance.expovariate(12))
        node.do_chores()
    assert store.questions < 200


def test_hits_that_come_rarely_cost_as_much_as_without_leases(
    store: Store, node: Node, clock: ManualClock
) -> None:
    """At random times, one to six in a second; a chunk is as dear as four hits, and so is giving it back."""
    for rate in range(1, 7):
        chance = random.Random(rate)
        asked, settled = store.questions, store.settled
        taken = node.leases.totals().taken
        for _ in range(200):
            assert node.hit(FixedWindow(100_000, MINUTE_US), f"key {rate}")
            clock.advance(chance.expovariate(rate))
            node.do_chores()
        chunks = (node.leases.totals().taken - taken) / 6  # None is smaller.
        dear = store.questions - asked + 3 * chunks + 4 * (store.settled - settled)
        assert dear <= 1.1 * 200


def test_what_many_keys_did_not_spend_goes_back_in_few_calls(
    store: Store, node: Node, clock: ManualClock
) -> None:
    limit = FixedWindow(10_000, MINUTE_US)
    for number in range(100):
        for _ in range(10):
            node.hit(limit, f"key {number}")
    assert node.leases.totals().chunks == 100
    clock.advance(3)
    chores = node.leases.chores()
    assert len(chores) == 4
    for chore in chores:
        run(chore(store))
    assert [used(store, limit, f"key {number}") for number in range(100)] == [10] * 100


def test_a_store_that_is_away_is_asked_once_for_a_hit_that_is_denied_without_it(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for the hit after asking for a chunk would take a second deadline."""
    store = FailingEngine(clock=clock)
    said = replace(store.describe(), shared=True)
    monkeypatch.setattr(store, "describe", lambda: said)
    limiter = Limiter(store, on_error="closed")
    limit = TokenBucket(60_000, MINUTE_US).as_leased()
    for _ in range(FEW_HITS):
        assert limiter.hit("key", limit)
        clock.advance(us=1_000)
    asked, store.error = store.asked, DOWN
    decision = limiter.hit("key", limit)
    assert (decision.allowed, decision.source, store.asked - asked) == (False, "closed", 1)
    store.error = None
    limiter.close()


class Refusing(Guard):
    """Denies every hit while it is told to, as a ban does."""

    refuses = False

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard:
        def before(key: str, _cost: int) -> Decision | None:
            context = Context("ban", rule=rule)
            return Decision(key, limit, (False, 0, 1, 0, 0), context) if self.refuses else None

        return HitGuard(before)


def in_a_stack(store: Store, ban: Refusing, shell: str) -> tuple[Any, Leases]:
    """A hit of a leased limit through all guards of a store, and its leases."""
    leases = Leases(store.clock)
    guards = [ban, DenyCache(store.clock), leases]
    limit = TokenBucket(1_000, MINUTE_US).as_leased()
    if shell == "blocking":
        return guarded(cast("Engine", store), guards).bind(limit), leases
    slow = cast("AsyncEngine", SlowStore(store, random.Random(1)))
    bound: Any = guarded_async(slow, guards).bind(limit)

    def hit(key: Any, cost: int) -> Decision:
        answer = bound(key, cost)
        return answer if isinstance(answer, Decision) else asyncio.run(_awaited(answer))

    return hit, leases


async def _awaited(answer: Any) -> Decision:
    decision: Decision = await answer
    return decision


@pytest.mark.parametrize("shell", ["blocking", "async"])
def test_a_chunk_answers_before_a_denial_that_is_remembered_but_not_before_a_ban(
    store: Store, shell: str
) -> None:
    ban = Refusing()
    hit, leases = in_a_stack(store, ban, shell)
    for _ in range(50):
        assert hit("key", 1)
    assert not hit("key", 951)
    assert hit("key", 951).source == "cache"
    (chunk,) = leases._limits[TokenBucket(1_000, MINUTE_US).as_leased(), None].by_key.values()
    chunk.hold(960)  # As if they had come since.
    assert hit("key", 951).source == "lease"
    ban.refuses = True
    assert hit("key", 1).source == "ban"
    assert chunk.left == 9


@pytest.mark.parametrize("shell", ["blocking", "async"])
@pytest.mark.parametrize("key", [["key"], None, b"key"])
def test_an_invalid_key_is_refused_by_the_whole_stack(store: Store, shell: str, key: Any) -> None:
    hit, _ = in_a_stack(store, Refusing(), shell)
    with pytest.raises(UsageError, match="key"):
        hit(key, 1)


def test_a_limit_that_had_to_make_room_is_leased_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "MAX_LIMITS", 2)
    first = FixedWindow(1_000, MINUTE_US)
    hit = node.engine.bind(first.as_leased())
    for _ in range(50):
        hit("key", 1)
    for number in range(2_000, 2_004):
        node.hit(FixedWindow(number, MINUTE_US), key="other")
    sources = [hit("key", 1).source for _ in range(50)]
    assert sources[-1] == "lease"
    node.engine.finish()
    assert used(node.store, first) == 100


def test_other_limits_and_calls_go_to_the_store(store: Store, node: Node) -> None:
    exact = FixedWindow(1_000, MINUTE_US)
    assert node.leases.for_limit(exact, None) is None
    node.warm_up(exact)
    questions = store.questions
    charges = [Charge("key", exact.as_leased()), Charge("other", exact.as_leased())]
    limiter = Limiter(node.engine)
    assert limiter.decide(charges).source == "engine"
    assert limiter.check("key", exact.as_leased()).source == "engine"
    assert store.questions == questions + 2


def test_many_keys_take_bounded_memory(
    node: Node, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(leases_module, "MAX_BYTES", 100_000)
    limit = FixedWindow(1_000, MINUTE_US)
    for number in range(2_000):
        node.hit(limit, key=f"key {number} {'x' * 100}")
    chunks = node.leases._limits[limit.as_leased(), None]
    assert chunks.size() < 102_000
    clock.advance(60)
    for _ in range(100):
        node.hit(limit, key="busy")  # Room is made for those that are in use.
    assert chunks.size() < 1_000
    assert node.leases.totals().taken


def test_many_limits_take_bounded_memory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MAX_LIMITS", 4)
    for number in range(1_000, 1_020):
        limit = FixedWindow(number, MINUTE_US)
        for _ in range(100):
            node.hit(limit, key=str(number))
        hits = node.store.questions
        node.hit(FixedWindow(1_000, MINUTE_US), key="first")
        assert node.store.questions <= hits + 1
    assert len(node.leases._limits) <= 4
    node.do_chores()
    totals = node.leases.totals()
    assert sum(
        used(node.store, FixedWindow(n, MINUTE_US), str(n)) for n in range(1_000, 1_020)
    ) == (2_000 + totals.unspent)


def test_a_forked_child_does_not_spend_what_its_parent_holds(node: Node) -> None:
    node.warm_up(LIMITS[0])
    read, write = os.pipe()
    child = os.fork()
    if not child:
        totals = node.leases.totals()
        os.write(
            write,
            f"{totals.unspent} {node.hit(LIMITS[0]).source} {len(node.leases.last_chores())}".encode(),
        )
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"0 engine 0"
    assert node.leases.totals().unspent


def in_child(work: Callable[[], str]) -> str:
    """What this returns in a forked child; only the parent goes on from here."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        return told.read()


def test_a_hit_that_a_fork_interrupts_spends_nothing_of_its_parents_in_the_child(
    node: Node,
) -> None:
    """As when the handler of a signal forks while a hit has just found its chunk."""
    node.warm_up(LIMITS[0])
    (chunk,) = node.leases._limits[LIMITS[0].as_leased(), None].by_key.values()
    assert chunk.left
    assert in_child(lambda: f"{chunk.left} {chunk.until_ns} {chunk.take_several(1)}") == "0 0 None"
    assert chunk.left


@pytest.mark.parametrize("fails", [False, True])
def test_a_chunk_that_is_asked_for_during_a_fork_is_the_parents(
    monkeypatch: pytest.MonkeyPatch,
    node: Node,
    fails: bool,  # noqa: FBT001
) -> None:
    decide, told = node.store.decide, ""

    def asked(batch: Sequence[ChargeSet]) -> list[Decision]:
        nonlocal told
        decisions = decide(batch)
        if batch[0].reserve_us and not told:
            told = in_child(lambda: rest_of_hit(decisions))
        return decisions

    def rest_of_hit(decisions: list[Decision]) -> str:
        """What the child has to give back, and holds, at the end of the hit that its parent began."""
        requests[-1].failed() if fails else requests[-1].answered(decisions[0])
        return f"{len(node.leases.last_chores())} {node.leases.totals().taken}"

    ask_for = node.leases._ask_for

    def noted(*args: Any) -> Any:
        requests.append(ask_for(*args))
        return requests[-1]

    requests: list[AskInstead] = []
    monkeypatch.setattr(node.leases, "_ask_for", noted)
    monkeypatch.setattr(node.store, "decide", asked)
    node.warm_up(LIMITS[0])
    assert told == "0 0"
    assert node.leases.totals().taken


@pytest.mark.parametrize("of, step", [(LimitChunks, "_usable_us"), (KeyChunk, "hold")])
def test_a_chunk_that_comes_during_a_fork_is_the_parents(
    monkeypatch: pytest.MonkeyPatch, node: Node, clock: ManualClock, of: type, step: str
) -> None:
    """As when the handler of a signal forks while the answer of the store is being recorded."""
    original, forked = getattr(of, step), list[int]()

    def forks(*args: Any) -> Any:
        if not forked:
            forked.append(os.fork())
        return original(*args)

    monkeypatch.setattr(of, step, forks)
    read, write = os.pipe()
    try:
        while not forked:
            node.hit(LIMITS[0])
            clock.advance(us=1_000)
        if not forked[0]:
            clock.advance(us=10 * SECOND_US)
            returned = len(node.leases.chores()) + len(node.leases.last_chores())
            os.write(write, str(returned).encode())
    finally:
        if forked and not forked[0]:
            os._exit(0)
    os.close(write)
    os.waitpid(forked[0], 0)
    with os.fdopen(read) as told:
        assert told.read() == "0"
    assert node.leases.totals().unspent


def test_a_chunk_that_replaces_another_one_during_a_sweep_is_swept_later(
    node: Node, clock: ManualClock
) -> None:
    node.warm_up(LIMITS[0])
    chunks = node.leases._limits[LIMITS[0].as_leased(), None]

    class Filled(dict[str, Any]):
        def items(self) -> Any:
            """What there was before another thread reset the key and hit it again."""
            before = list(super().items())
            if not replaced:
                replaced.append(True)
                node.engine.reset("key", LIMITS[0].as_leased())
                node.warm_up(LIMITS[0])
            return before

    replaced: list[bool] = []
    chunks._filled = Filled(chunks._filled)
    node.leases.sweep()
    assert replaced
    assert node.leases.totals().unspent
    clock.advance(60)
    node.leases.sweep()
    assert chunks._filled == {}
    assert not chunks.by_key["key"].left


def test_no_key_is_watched_in_chunks_that_are_being_retired(node: Node) -> None:
    """Whoever adds a key under the lock has it returned; whoever comes later is told that nothing may be added."""
    node.warm_up(LIMITS[0])
    chunks = node.leases._limits[LIMITS[0].as_leased(), None]
    with chunks._lock:
        retiring = threading.Thread(target=chunks.retire)
        retiring.start()
        retiring.join(0.05)
        retired_at_once = chunks.retired
    retiring.join()
    assert (retired_at_once, chunks.retired) == (False, True)
    assert chunks.watch("other", 8, 100) == 0
    assert chunks.by_key == {}


def test_threads_spend_no_unit_twice() -> None:
    """They are interrupted all the time; the limit passes exactly, and so does what is charged."""
    interval = sys.getswitchinterval()
    limit = FixedWindow(20_000, 24 * 60 * MINUTE_US)
    engine = MemoryEngine()
    nodes = [GuardedEngine(engine, Leases(engine.clock)) for _ in range(2)]
    admitted = [0] * 8
    over = threading.Event()

    def call(number: int) -> None:
        hit = nodes[number % 2].bind(limit.as_leased())
        while not over.is_set():
            admitted[number] += bool(hit("key", 1))

    def tidy() -> None:
        while not over.is_set():
            for one in nodes:
                for chore in one.guard.chores():
                    run(chore(engine))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    threads.append(threading.Thread(target=tidy))
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        over.wait(1.5)
        over.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for one in nodes:
        one.finish()
    assert sum(admitted) == engine.usage("key", limit).used <= 20_000
    assert sum(admitted) > 1_000


class SlowStore(Awaited):
    """It answers a few turns of the loop later, and does what it is asked in between."""

    def __init__(self, engine: MemoryEngine, chance: random.Random) -> None:
        super().__init__(engine)
        self._chance = chance

    @property
    def nowait(self) -> None:
        return None

    def bind(self, limit: Limit, rule: str | None = None) -> Any:
        hit = self._engine.bind(limit, rule)

        async def later(key: str, cost: int) -> Decision:
            return hit(key, cost)

        return later

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        decisions = self._engine.decide(requests)
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        return decisions


def test_callers_that_are_cancelled_at_any_moment_take_nothing_with_them() -> None:
    """What is charged in the end was told to somebody: a chunk that its caller did not wait for is given back."""
    limit = FixedWindow(1_000_000, 24 * 60 * MINUTE_US)
    engine, chance = MemoryEngine(clock=ManualClock(1_800_000_000.0)), random.Random(4)
    leases = Leases(engine.clock)
    guarded = AsyncGuardedEngine(cast("AsyncEngine", SlowStore(engine, chance)), leases)
    hit: Any = guarded.bind(limit.as_leased())
    told = cancelled = 0

    async def call() -> None:
        nonlocal told, cancelled
        answer = hit("key", 1)
        try:
            decision = answer if isinstance(answer, Decision) else await answer
        except asyncio.CancelledError:
            cancelled += 1
            raise
        told += decision.allowed

    async def call_some() -> None:
        tasks = [asyncio.ensure_future(call()) for _ in range(8)]
        for _ in range(chance.randrange(1, 6)):
            await asyncio.sleep(0)
        for task in tasks:
            if chance.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        chunk = leases._limits[limit.as_leased(), None].by_key.get("key")
        if chunk is not None and chunk.left and chance.random() < 0.7:
            leases._give_back([over for over in [chunk.close()] if over])
            chunk.rests_until_ns = 0  # So that one is asked for.

    async def main() -> None:
        for _ in range(400):
            await call_some()
        await guarded.finish()

    asyncio.run(main())
    assert cancelled > 30
    assert told == engine.usage("key", limit).used


def excess(limit: Limit, admitted: list[tuple[int, int]], more: int) -> int:
    """By how much the worst span holds more than the limit gives and `more`; `admitted` is when, and how many."""
    if isinstance(limit, TokenBucket):
        spans = [Span(at_us, at_us, cost) for at_us, cost in admitted]
        return flowing(spans, limit.burst + more, limit.limit, limit.window_us).over
    windows = Counter[int]()
    for at_us, cost in admitted:
        windows[at_us // limit.window_us] += cost
    worst = max(windows.values()) - limit.limit
    if isinstance(limit, SlidingWindow):
        # A span that ends at a fraction f of a window holds up to L·(1 + f).
        begin = inside = 0
        for end_us, cost in admitted:
            inside += cost
            while admitted[begin][0] <= end_us - limit.window_us:
                inside -= admitted[begin][1]
                begin += 1
            allowance = limit.limit * (limit.window_us + end_us % limit.window_us)
            worst = max(worst, inside - -(-allowance // limit.window_us))
    return worst - more


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "limit",
    [
        FixedWindow(600, SECOND_US),
        SlidingWindow(600, SECOND_US),
        TokenBucket(600, SECOND_US),
        TokenBucket(600, SECOND_US, 100),
    ],
    ids=repr,
)
def test_nodes_that_do_anything_at_any_time_never_exceed_the_bound(limit: Limit, seed: int) -> None:
    """Windows hold their limit; a bucket what it may, and what flows back to it in a lease."""
    clock, chance = ManualClock(1_800_000_000.0), random.Random(seed)
    store = Store(clock)
    nodes = [Node(store) for _ in range(3)]
    admitted: list[tuple[int, int]] = []
    taken = 0
    for _ in range(6_000):
        node = chance.choice(nodes)
        match chance.randrange(300):
            case 0 | 1:
                clock.advance(us=chance.randrange(100_000))
            case 2:
                taken += node.leases.totals().taken
                nodes[nodes.index(node)] = Node(store)  # It was killed.
            case 3:
                node.engine.finish()
            case 4 | 5:
                store.fails_after = chance.random() < 0.5
            case number if number < 20:
                node.do_chores()
            case _:
                clock.advance(us=chance.randrange(1_500))
                cost = chance.choice((1, 1, 1, 2, 5))
                with suppress(EngineTimeout):
                    if node.hit(limit, cost=cost):
                        admitted.append((clock.now_us(), cost))
    flows_us = limit.window_us // 20 if isinstance(limit, TokenBucket) else 0
    assert excess(limit, admitted, -(-limit.limit * flows_us // limit.window_us)) <= 0
    assert sum(cost for _, cost in admitted) > limit.limit
    assert taken + sum(node.leases.totals().taken for node in nodes) > limit.limit


def test_a_url_that_names_a_shared_store_has_leases_behind_its_deny_cache() -> None:
    limiter = Limiter("redis://127.0.0.1:1")
    assert leases_of(limiter.engine) is not None
    assert [type(guard).__name__ for guard in own_guards(limiter.engine.unguarded)] == [
        "DenyCache",
        "Leases",
    ]
    assert leases_of(Limiter(limiter.engine).engine) is leases_of(limiter.engine)
    assert leases_of(Limiter(limiter.engine.unguarded).engine) is not None
    assert leases_of(Limiter().engine) is None
    limiter.close()


def test_where_there_is_nothing_to_save_a_leased_limit_is_exact() -> None:
    limiter = Limiter()
    limit = limiter.limit("key", "3/minute", consistency="leased", mode="immediate")
    assert [limit.hit().source for _ in range(3)] == ["engine"] * 3
    assert not limit.hit()


@pytest.mark.parametrize(
    "rate, algorithm, words",
    [
        ("4/second", "sliding_log", "sliding_log cannot be leased"),
        ("4/second", "exponential_backoff", "exponential_backoff cannot be leased"),
        ("4/second", "adaptive", "adaptive cannot be leased"),
        ("4/500 ms", None, "a window of at least a second, not 500000 us"),
        ("4/second; 100/minute", None, "several limits cannot be leased together"),
    ],
)
def test_what_cannot_be_leased_is_refused(rate: str, algorithm: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        leased(rate, algorithm)
    with pytest.raises(UsageError, match=words):
        Limiter().limit("key", rate, algorithm=algorithm, consistency="leased")


def test_a_leased_limit_is_another_value_than_the_exact_one() -> None:
    exact, made = SlidingWindow(5, MINUTE_US), leased("5/minute")
    assert made != exact
    assert made == exact.as_leased() == pickle.loads(pickle.dumps(made))  # noqa: S301
    assert repr(made) == "SlidingWindow(limit=5, window_us=60000000).as_leased()"
    assert (made.identity, made.leased, exact.leased) == (exact.identity, True, False)


def test_a_consistency_that_there_is_not_is_refused() -> None:
    wrong: Any = "eventual"
    with pytest.raises(UsageError, match="across regions, not 'eventual'"):
        Limiter().limit("key", "3/minute", consistency=wrong)
