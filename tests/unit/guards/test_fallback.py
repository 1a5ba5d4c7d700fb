"""The fallback: who answers when the store does not, what is counted, and what the store is told afterwards."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    AsyncLimiter,
    Charge,
    Concurrency,
    EngineError,
    FixedWindow,
    Limiter,
    MemoryEngine,
    RateLimitExceeded,
    Request,
    RuleSet,
    UsageError,
)
from headgate.charge import ChargeSet
from headgate.engines.base import Awaited
from headgate.guards.membership import Membership
from headgate.guards.stack import fallback_of, fallback_shell_of
from headgate.testing import ManualClock
from tests.servers.process import wait_until
from tests.unit.guards.failing_engine import DOWN, FailingEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE = FixedWindow(10, 60_000_000)
REFUSED = EngineError("NOPERM", transient=False)


class Outage:
    """A limiter on an engine that can be taken away."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.engine = FailingEngine(clock=self.clock)
        self.limiter = Limiter(self.engine, **{"on_error": "fallback", "nodes": 2, **options})

    def begin(self) -> None:
        """The store goes away, and that is noticed."""
        self.engine.error = DOWN
        for _ in range(2):
            with suppress(EngineError):
                self.limiter.hit("noticed", MINUTE)
        assert self.guard.breaker.is_open

    def end(self) -> None:
        """The store comes back, and has been told everything."""
        self.engine.error = None
        wait_until(lambda: not self.needed, "the store decides again")

    @property
    def guard(self) -> Any:
        return fallback_of(self.limiter.engine)

    @property
    def needed(self) -> bool:
        return bool(self.guard.breaker.is_open or self.guard.local.has_debts)

    def used(self, key: str, limit: FixedWindow = MINUTE) -> int:
        """What the store itself has counted."""
        return self.engine.usage(key, limit).used


@pytest.fixture
def outage() -> Iterator[Outage]:
    found = Outage()
    yield found
    found.engine.error = None
    found.limiter.engine.close()


def test_a_node_admits_its_share_and_charges_the_store_later(outage: Outage) -> None:
    outage.begin()
    decisions = [outage.limiter.hit("k", MINUTE) for _ in range(8)]
    assert [one.allowed for one in decisions] == [True] * 5 + [False] * 3
    assert {(one.source, one.degraded, one.limit) for one in decisions} == {("fallback", True, 10)}
    assert 0 < decisions[-1].retry_after <= 60
    outage.end()
    assert outage.used("k") == 5
    after = [outage.limiter.hit("k", MINUTE) for _ in range(8)]
    assert [one.allowed for one in after] == [True] * 5 + [False] * 3
    assert {one.source for one in after} == {"engine"}


def test_a_key_starts_with_the_units_of_the_stores_last_answer(outage: Outage) -> None:
    for _ in range(8):
        outage.limiter.hit("k", MINUTE)
    outage.begin()
    assert [outage.limiter.hit("k", MINUTE).allowed for _ in range(4)] == [True] * 2 + [False] * 2
    outage.end()
    assert outage.used("k") == 10


def test_remaining_units_are_ignored_after_their_window(outage: Outage) -> None:
    for _ in range(10):
        outage.limiter.hit("k", MINUTE)
    outage.begin()
    outage.clock.advance(60)
    assert [outage.limiter.hit("k", MINUTE).allowed for _ in range(6)] == [True] * 5 + [False]


def test_a_window_that_is_over_owes_nothing(outage: Outage) -> None:
    outage.begin()
    for _ in range(5):
        outage.limiter.hit("k", MINUTE)
    outage.clock.advance(60)
    outage.limiter.hit("k", MINUTE, cost=2)
    outage.end()
    assert outage.used("k") == 2


def test_every_window_has_a_fresh_share(outage: Outage) -> None:
    for _ in range(2):
        outage.begin()
        assert sum(outage.limiter.hit("k", MINUTE).allowed for _ in range(9)) == 5
        outage.end()
        outage.clock.advance(60)
    assert outage.used("k") == 0


@pytest.mark.parametrize("key", ["k", "k" * 1_000])
def test_a_share_is_spent_once_however_often_the_store_goes_away(outage: Outage, key: str) -> None:
    """Also of a key that is too long to remember what the store had left of it."""
    admitted = []
    for cost in (2, 2, 1, 1):
        outage.begin()
        admitted.append(outage.limiter.hit(key, MINUTE, cost=cost).allowed)
        outage.end()
    assert admitted == [True, True, True, False]
    assert outage.used(key) == 5


def test_an_outage_starts_with_what_was_left_when_the_store_was_charged(outage: Outage) -> None:
    outage.begin()
    assert outage.limiter.hit("k", MINUTE, cost=2)
    MemoryEngine.decide(outage.engine, [ChargeSet((Charge("k", MINUTE, 7),))])  # By another node.
    outage.end()
    outage.begin()
    assert [outage.limiter.hit("k", MINUTE).allowed for _ in range(2)] == [True, False]


def test_the_share_does_not_change_within_an_outage() -> None:
    members = Membership(4)
    outage = Outage(nodes=members)
    outage.begin()
    assert outage.limiter.hit("k", FixedWindow(100, 60_000_000)).remaining == 24
    members.saw(map(str, range(10)))
    assert outage.limiter.hit("k", FixedWindow(100, 60_000_000)).remaining == 23
    outage.end()


def test_a_failure_that_opened_no_breaker_fixes_no_share_for_the_next_outage() -> None:
    """One call was late and denied here, so there was nothing to recover from. Much later there are more nodes."""
    members = Membership(2)
    outage = Outage(nodes=members)
    outage.engine.error = DOWN
    assert not outage.limiter.hit("k", MINUTE, cost=6)
    outage.engine.error = None
    assert outage.limiter.hit("k", MINUTE).source == "engine"
    members.saw("abcde")
    outage.begin()
    assert sum(outage.limiter.hit("other", MINUTE).allowed for _ in range(10)) == 2
    outage.end()
    outage.limiter.engine.close()


def test_a_cost_above_the_share_may_come_back(outage: Outage) -> None:
    outage.begin()
    above_share = outage.limiter.hit("k", MINUTE, cost=7)
    assert (above_share.allowed, above_share.retry_after) == (False, 1)
    above_limit = outage.limiter.hit("k", MINUTE, cost=11)
    assert (above_limit.allowed, above_limit.retry_after) == (False, math.inf)


@pytest.mark.parametrize(
    "on_error, allowed", [("open", [True] * 12), ("closed", [False] * 12)], ids=["open", "closed"]
)
def test_open_passes_and_closed_denies(on_error: str, allowed: list[bool]) -> None:
    outage = Outage(on_error=on_error)
    outage.begin()
    decisions = [outage.limiter.hit("k", MINUTE) for _ in range(12)]
    assert [one.allowed for one in decisions] == allowed
    assert {(one.source, one.degraded) for one in decisions} == {(on_error, True)}
    assert {one.retry_after for one in decisions} == {0.0 if on_error == "open" else 1.0}
    outage.end()
    assert outage.used("k") == 0


def test_raise_raises_at_once_while_the_breaker_is_open() -> None:
    outage = Outage(on_error="raise")
    outage.begin()
    asked = outage.engine.asked
    for _ in range(20):
        with pytest.raises(EngineError, match="was not called") as caught:
            outage.limiter.hit("k", MINUTE)
        assert (caught.value.transient, caught.value.indefinite) == (True, False)
    assert outage.engine.asked <= asked + 2  # A probe, perhaps.
    outage.end()
    assert outage.limiter.hit("k", MINUTE).source == "engine"


def test_every_call_has_an_answer(outage: Outage) -> None:
    limiter = outage.limiter
    limit = limiter.limit("k", "10/minute", mode="immediate")
    outage.begin()
    assert limiter.check("c", "10/minute").source == "fallback"
    assert limiter.check("c", "10/minute").remaining == 5
    assert limit.hit().source == "fallback"
    assert limit.acquire().source == "fallback"
    assert limiter.decide([Charge("a", "10/minute"), Charge("b", "4/minute")]).remaining == 1
    with limiter.limit("line", "5/second burst 10").reserve(3) as reserved:
        reserved.settle(1)
    while limit.hit():
        pass
    with pytest.raises(RateLimitExceeded):
        limit.acquire()
    decision = limiter.limit("queue", "100/second burst 2").acquire(timeout=1)
    assert decision.source == "fallback"
    outage.end()


def test_several_charges_are_taken_together_or_not_at_all(outage: Outage) -> None:
    outage.begin()
    small, large = FixedWindow(4, 60_000_000), FixedWindow(100, 60_000_000)
    pair = [Charge("a", small), Charge("b", large)]
    assert [outage.limiter.decide(pair).allowed for _ in range(4)] == [True] * 2 + [False] * 2
    assert outage.limiter.check("b", large).remaining == 48
    outage.end()
    assert (outage.used("a", small), outage.used("b", large)) == (2, 2)


def test_an_error_that_would_come_again_is_answered_but_does_not_stop_asking(
    outage: Outage,
) -> None:
    outage.engine.error = REFUSED
    assert [outage.limiter.hit("k", MINUTE).allowed for _ in range(8)] == [True] * 5 + [False] * 3
    assert not outage.guard.breaker.is_open
    outage.end()
    assert outage.used("k") == 5


class TestReservations:
    def test_a_local_reservation_is_made_and_settled(self, outage: Outage) -> None:
        outage.begin()
        with outage.limiter.reserve([Charge("k", MINUTE, 4)]) as reserved:
            assert not outage.limiter.hit("k", MINUTE, cost=2)
            assert reserved.settle(1)
        assert outage.limiter.hit("k", MINUTE, cost=2)
        outage.end()
        assert outage.used("k") == 3

    def test_settling_after_the_merge_charges_only_the_cost_beyond_the_estimate(
        self, outage: Outage
    ) -> None:
        outage.begin()
        more = outage.limiter.reserve([Charge("more", MINUTE, 2)]).acquire()
        less = outage.limiter.reserve([Charge("less", MINUTE, 2)]).acquire()
        outage.end()
        assert outage.used("more") == outage.used("less") == 2
        assert more.settle(5)
        assert less.settle(0)
        wait_until(lambda: outage.used("more") == 5, "the rest is charged")
        assert outage.used("less") == 2

    def test_settling_after_the_merge_gives_back_what_was_not_used_of_the_share(
        self, outage: Outage
    ) -> None:
        outage.begin()
        reserved = outage.limiter.reserve([Charge("k", MINUTE, 4)]).acquire()
        outage.end()
        assert reserved.settle(1)
        outage.begin()
        assert [outage.limiter.hit("k", MINUTE, cost=2).allowed for _ in range(3)] == [
            True,
            True,
            False,
        ]

    def test_a_reservation_of_the_store_is_settled_when_it_is_back(self, outage: Outage) -> None:
        reserved = outage.limiter.reserve([Charge("k", MINUTE, 8)]).acquire()
        outage.begin()
        assert reserved.settle(3)
        outage.end()
        assert outage.used("k") == 3

    def test_several_reservations_are_settled_together_wherever_they_were_made(
        self, outage: Outage
    ) -> None:
        engine: Any = outage.limiter.engine

        def reserve(name: str) -> None:
            request = ChargeSet((Charge(name, MINUTE, 4),), reserve_us=60_000_000, token=name)
            assert engine.decide([request])[0]

        reserve("before")
        reserve("long before")
        engine.settle_each([("long before", 3)])
        assert outage.used("long before") == 3
        outage.begin()
        reserve("meanwhile")
        engine.settle_each([("before", 1), ("meanwhile", 2)])
        outage.end()
        assert (outage.used("before"), outage.used("meanwhile")) == (1, 2)

    def test_a_reservation_the_store_may_have_made_is_given_back(
        self, outage: Outage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its answer is lost, so the reservation is made here; the store's is settled by nobody."""
        carry_out = outage.engine.decide

        def lose_the_answer(requests: Any) -> Any:
            carry_out(requests)
            raise DOWN

        monkeypatch.setattr(outage.engine, "decide", lose_the_answer)
        reserved = outage.limiter.reserve([Charge("k", MINUTE, 4)]).acquire()
        monkeypatch.undo()
        assert reserved.settle(4)
        outage.end()
        assert outage.used("k") == 4

    def test_one_that_is_too_old_stays_charged(self, outage: Outage) -> None:
        outage.begin()
        request = ChargeSet((Charge("k", MINUTE, 4),), reserve_us=1_000_000)
        (decision,) = outage.limiter.engine.decide([request])
        outage.clock.advance(2)
        assert decision.token is not None
        assert not outage.limiter.engine.settle(decision.token, 0)
        outage.end()
        assert outage.used("k") == 4

    def test_those_that_nobody_settled_leave_room_for_others(
        self, outage: Outage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever made them has crashed; they are over, and so is their time to live."""
        monkeypatch.setattr("headgate.guards.local_counts.MAX_KEYS", 3)
        outage.begin()
        engine, charge = outage.limiter.engine, Charge("k", MINUTE)
        request = ChargeSet((charge,), reserve_us=1_000_000)
        for _ in range(3):
            engine.decide([request])
        outage.clock.advance(60)
        (decision,) = engine.decide([request])
        assert decision
        assert outage.guard.local.settle(decision.token, (0,))

    def test_open_reserves_nothing_and_closed_denies(self) -> None:
        outage = Outage(on_error="open")
        outage.begin()
        with outage.limiter.reserve([Charge("k", MINUTE, 4)]) as reserved:
            assert reserved.settle(2)
        outage.end()
        assert outage.used("k") == 0
        outage = Outage(on_error="closed")
        outage.begin()
        with pytest.raises(RateLimitExceeded):
            outage.limiter.reserve([Charge("k", MINUTE, 4)], timeout=0).acquire()
        outage.end()

    def test_each_charge_gets_its_own_cost_if_others_are_not_counted(self) -> None:
        rules = RuleSet.parse("""
rules:
  - {rule_id: free, identifier: ip_address, rate: 10/minute, on_error: open}
  - {rule_id: counted, identifier: ip_address, rate: 10/minute, on_error: fallback}
""")
        outage = Outage(rules=rules)
        outage.begin()
        charges = [Charge("k", MINUTE, 5, rule=rule) for rule in ("free", "counted")]
        with outage.limiter.reserve(charges, timeout=0) as reservation:
            assert reservation.settle(5, 2)
        assert not outage.limiter.decide([Charge("k", MINUTE, 4, rule="counted")])
        assert outage.limiter.decide([Charge("k", MINUTE, 3, rule="counted")])
        outage.end()
        assert outage.engine.usage("k", MINUTE, "counted").used == 5
        outage.limiter.close()


class TestSlots:
    def test_a_node_has_its_share_of_them(self, outage: Outage) -> None:
        outage.begin()
        slots = outage.limiter.concurrency("k", 4)
        with slots.slot(), slots.slot() as second:
            assert second.renew()
            with pytest.raises(RateLimitExceeded):
                slots.slot().acquire()
        with slots.slot():
            pass
        outage.end()
        assert slots.stats().remaining == 4

    def test_held_slots_move_to_the_store(self, outage: Outage) -> None:
        outage.begin()
        slots = outage.limiter.concurrency("k", 4)
        with slots.slot():
            outage.end()
            wait_until(lambda: slots.stats().remaining == 3, "the store knows of it")
        assert slots.stats().remaining == 4

    def test_a_slot_of_the_store_is_released_when_it_is_back(self, outage: Outage) -> None:
        slots = outage.limiter.concurrency("k", 4)
        held = slots.slot().acquire()
        outage.begin()
        held.release()
        outage.end()
        assert slots.stats().remaining == 4


class TestSlotsWithUnits:
    """Requests that hold slots and take units at the same time."""

    def test_they_have_one_share_with_requests_for_units_alone(self, outage: Outage) -> None:
        outage.begin()
        both = [Charge("k", MINUTE), Charge("s", Concurrency(100))]
        assert [bool(outage.limiter.decide(both)) for _ in range(3)] == [True] * 3
        assert [bool(outage.limiter.hit("k", MINUTE)) for _ in range(3)] == [True, True, False]
        assert not outage.limiter.decide(both)
        outage.end()
        assert outage.used("k") == 5

    @pytest.mark.parametrize("token", [None, "holder"])
    def test_they_are_had_together_or_not_at_all(self, outage: Outage, token: str | None) -> None:
        outage.begin()
        both = [Charge("k", MINUTE, 5), Charge("s", Concurrency(4)), Charge("other", MINUTE)]
        (first, second) = [
            outage.limiter.engine.decide([ChargeSet(tuple(both), token=token and f"{token}{n}")])[0]
            for n in range(2)
        ]
        assert [one.key for one in first.rules] == ["k", "s", "other"]
        assert (bool(first), bool(second), second.key) == (True, False, "k")
        assert (first.token, second.token) == (
            (None, None) if token is None else ("holder0", "holder1")
        )
        slots = outage.limiter.concurrency("s", 4)
        slots.slot().acquire()  # The second of two that are this node's share: none was kept.
        with pytest.raises(RateLimitExceeded):
            slots.slot().acquire()
        assert outage.limiter.decide([Charge("other", MINUTE, 4)])
        assert not outage.limiter.decide([Charge("x", MINUTE), Charge("s", Concurrency(4))])
        assert outage.limiter.hit("x", MINUTE, 5)
        outage.end()

    def test_what_was_reserved_of_both_goes_back(self, outage: Outage) -> None:
        outage.begin()
        for _ in range(3):
            charges = [Charge("s", Concurrency(4), 2), Charge("k", MINUTE, 5)]
            with outage.limiter.reserve(charges, timeout=0) as reservation:
                assert reservation.settle(0, 1)
            with outage.limiter.reserve([Charge("s", Concurrency(4), 2)], timeout=0) as slots:
                assert slots.settle(0)
            outage.clock.advance(60)
        outage.limiter.hit("k", MINUTE)
        outage.end()
        assert outage.used("k") == 1


class TestRules:
    RULES = RuleSet.parse("""
rules:
  - {rule_id: shared, identifier: ip_address, rate: 10/minute, algorithm: fixed_window,
     match: {path_pattern: /shared/*}}
  - {rule_id: closed, identifier: ip_address, rate: 10/minute, on_error: closed,
     match: {path_pattern: /*/closed}}
  - {rule_id: open, identifier: ip_address, rate: 10/minute, on_error: open,
     match: {path_pattern: /*/open}}
  - {rule_id: told, identifier: ip_address, rate: 10/minute, on_error: raise,
     match: {path_pattern: /*/told}}
  - {rule_id: shadow, identifier: ip_address, rate: 1/minute, shadow: true,
     match: {path_pattern: /*/shadow}}
""")

    @pytest.fixture
    def outage(self) -> Iterator[Outage]:
        found = Outage(rules=self.RULES)
        found.begin()
        yield found
        found.end()

    @staticmethod
    def decide(outage: Outage, path: str) -> Any:
        return outage.limiter.decide_request(Request("GET", path, ip="203.0.113.9"))

    def test_each_rule_follows_its_own_policy(self, outage: Outage) -> None:
        assert [self.decide(outage, "/shared/x").allowed for _ in range(7)] == [True] * 5 + [
            False
        ] * 2
        assert (self.decide(outage, "/x/closed").source, self.decide(outage, "/x/open").source) == (
            "closed",
            "open",
        )
        with pytest.raises(EngineError):
            self.decide(outage, "/x/told")

    def test_one_closed_rule_denies_the_request_and_nothing_is_counted(
        self, outage: Outage
    ) -> None:
        for _ in range(9):
            denied = self.decide(outage, "/shared/closed")
            assert (denied.allowed, denied.rule) == (False, "closed")
        assert self.decide(outage, "/shared/x").remaining == 4

    def test_an_open_rule_leaves_the_decision_to_the_others(self, outage: Outage) -> None:
        decisions = [self.decide(outage, "/shared/open") for _ in range(6)]
        assert [one.allowed for one in decisions] == [True] * 5 + [False]
        assert {one.rule: one.source for one in decisions[-1].rules} == {
            "shared": "fallback",
            "open": "open",
        }

    def test_a_shadow_denies_no_request(self, outage: Outage) -> None:
        for _ in range(4):
            decision = self.decide(outage, "/x/shadow")
            assert decision.allowed
            assert decision.degraded
        assert self.decide(outage, "/shared/shadow").source == "fallback"


def test_the_log_has_one_line_for_each_change_and_says_who_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage()
    outage.begin()
    for _ in range(50):
        outage.limiter.hit("k", MINUTE)
    outage.end()
    wait_until(lambda: len(caplog.records) > 1, "the log says that it is over")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "as one of 2" in caplog.records[0].message
    assert "decides again" in caplog.records[1].message


def test_an_unknown_number_of_nodes_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage(nodes=None)
    for _ in range(2):
        outage.begin()
        assert outage.limiter.hit("k", MINUTE).remaining in {9, 8}
        outage.end()
    assert caplog.text.count("the number of nodes that share the store is unknown") == 1


def test_an_unknown_number_of_nodes_is_logged_too_if_only_a_rule_uses_shares(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = """
    - {rule_id: share, identifier: ip_address, rate: 10/minute, match: {path_pattern: /}, on_error: fallback}
    """
    outage = Outage(nodes=None, on_error="raise", rules=RuleSet.parse(rules))
    outage.begin()
    assert "the number of nodes" not in caplog.text
    assert outage.limiter.decide_request(Request("GET", "/", ip="192.0.2.1")).source == "fallback"
    assert caplog.text.count("the number of nodes that share the store is unknown") == 1


def test_every_failure_is_reported(outage: Outage) -> None:
    told: list[EngineError] = []
    outage = Outage(on_failure=told.append)
    outage.begin()
    outage.end()
    assert len(told) == 2


@pytest.mark.parametrize("on_error", ["fallback", "open", "closed"])
def test_an_exception_in_on_failure_does_not_replace_the_answer(
    on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(error: EngineError) -> None:
        raise ValueError(f"cannot report {error}")

    outage = Outage(on_failure=broken, on_error=on_error)
    outage.begin()
    assert outage.limiter.hit("k", MINUTE).source == on_error
    assert caplog.text.count("on_failure raised ValueError") == 1
    outage.end()


def test_on_failure_must_be_a_function() -> None:
    with pytest.raises(UsageError, match="on_failure must be a function"):
        Outage(on_failure=3)


def test_namespaces_have_separate_counts() -> None:
    engine = FailingEngine(clock=ManualClock())
    limiters = [Limiter(engine, namespace=name, on_error="fallback", nodes=2) for name in "ab"]
    engine_of: list[Any] = [limiter.engine.unguarded for limiter in limiters]
    for one in engine_of:
        one.error = DOWN
    for limiter in limiters:
        assert [limiter.hit("k", MINUTE).allowed for _ in range(6)] == [True] * 5 + [False]
    for one in engine_of:
        one.error = None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("on_error", ["fallback", "raise", "open"])
def test_a_child_that_was_forked_in_an_outage_comes_back_by_itself(on_error: str) -> None:
    outage = Outage(on_error=on_error)
    outage.begin()
    outage.limiter.hit("k", MINUTE) if on_error != "raise" else None
    child = os.fork()
    if not child:  # Nothing here may end in pytest.
        code = 1
        try:
            outage.engine.error = None
            ends = time.monotonic() + 20
            while code and time.monotonic() < ends:
                with suppress(EngineError):
                    code = int(outage.limiter.hit("other", MINUTE).source != "engine")
                time.sleep(0.01)  # The recovery runs in real time.
            code = code or int(outage.used("k") != 0)  # The parent tells what it admitted.
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    outage.end()


def test_one_thread_recovers_however_many_callers_notice(outage: Outage) -> None:
    """Two at once would tell the store some things twice, and others not at all."""
    shell: Any = fallback_shell_of(outage.limiter.engine)
    driving: list[object] = []
    most: list[int] = []

    def drive(recovery: object) -> None:
        driving.append(recovery)
        most.append(len(driving))
        time.sleep(0.002)  # So that another one would be seen at the same time.
        driving.pop()

    shell._drive = drive
    outage.engine.error = DOWN
    for _ in range(20):
        threads = [threading.Thread(target=shell._recover) for _ in range(4)]
        outage.limiter.hit("k", MINUTE)
        for thread in threads:
            thread.start()
        for thread in threads:
            shell._wake()
            thread.join(0.001)
    outage.limiter.close()
    assert set(most) == {1}


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_a_thread_that_cannot_be_started_is_started_by_the_next_caller(
    outage: Outage, monkeypatch: pytest.MonkeyPatch, problem: type[BaseException]
) -> None:
    def refuse(*_: object) -> None:
        raise problem

    monkeypatch.setattr("headgate.guards.fallback_shell.start_new_thread", refuse)
    outage.engine.error = DOWN
    for _ in range(3):
        with suppress(KeyboardInterrupt):
            assert outage.limiter.hit("k", MINUTE).source == "fallback"
    monkeypatch.undo()
    outage.limiter.hit("k", MINUTE)
    outage.end()
    assert outage.limiter.hit("k", MINUTE).source == "engine"


class TestAwaited:
    def test_a_node_admits_its_share_and_charges_the_store_later(self) -> None:
        asyncio.run(self._a_node_admits_its_share())

    async def _a_node_admits_its_share(self) -> None:
        engine = FailingEngine(clock=ManualClock())
        async with AsyncLimiter(
            Awaited(engine, in_threads=True), on_error="fallback", nodes=2
        ) as limiter:
            engine.error = DOWN
            decisions = [await limiter.hit("k", MINUTE) for _ in range(8)]
            assert [one.allowed for one in decisions] == [True] * 5 + [False] * 3
            assert {one.source for one in decisions} == {"fallback"}
            async with limiter.concurrency("s", 2).slot():
                with pytest.raises(RateLimitExceeded):
                    await limiter.concurrency("s", 2).slot().acquire()
            async with limiter.reserve([Charge("r", MINUTE, 3)]) as reserved:
                assert await reserved.settle(2)
            engine.error = None
            guard: Any = fallback_of(limiter.engine)
            async with asyncio.timeout(20):
                while guard.breaker.is_open or guard.local.has_debts:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)  # The recovery runs in real time.
            assert engine.usage("k", MINUTE).used == 5
            assert engine.usage("r", MINUTE).used == 2
            assert (await limiter.hit("k", MINUTE)).source == "engine"

    def test_a_caller_that_is_cancelled_leaves_the_rest_alone(self) -> None:
        asyncio.run(self._a_caller_is_cancelled())

    async def _a_caller_is_cancelled(self) -> None:
        engine = FailingEngine(clock=ManualClock())
        async with AsyncLimiter(
            Awaited(engine, in_threads=True), on_error="fallback", nodes=2
        ) as limiter:
            tasks = [asyncio.ensure_future(limiter.hit("k", MINUTE)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await limiter.hit("other", MINUTE)).source == "engine"


def test_a_request_without_a_key_is_still_refused(outage: Outage) -> None:
    outage.begin()
    for key in ("", "x" * 9_000, 5):
        with pytest.raises(ValueError, match="key"):
            outage.limiter.hit(key, MINUTE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cost"):
        outage.limiter.hit("k", MINUTE, cost=-1)
    assert outage.limiter.engine.decide([ChargeSet((Charge("k", MINUTE, 0),))])[0].remaining == 5
