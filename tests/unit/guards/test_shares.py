"""Shares: together, nodes admit no more than the limit."""

from __future__ import annotations

import itertools

import pytest

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms import CalendarWindow, Limit
from headgate.algorithms.calendar import Calendar
from headgate.charge import Charge, ChargeSet
from headgate.guards.local_counts import LocalCounts
from headgate.guards.never import capacity
from headgate.guards.shares import Fleet, share_of
from headgate.testing import ManualClock

MINUTE_US = 60_000_000
NODES = tuple(f"node-{number}" for number in range(7))


def fleets(known: int, nodes: int | None = None) -> list[Fleet]:
    members = NODES[:known]
    return [Fleet(nodes or known, members, me) for me in members]


def limits(number: int) -> list[Limit]:
    return [
        FixedWindow(number, MINUTE_US),
        SlidingWindow(number, MINUTE_US),
        SlidingLog(number, MINUTE_US),
        TokenBucket(number, MINUTE_US),
        ExponentialBackoff(number, MINUTE_US),
        Adaptive(number, MINUTE_US),
        Concurrency(number),
        CalendarWindow(number, Calendar("day", "UTC")),
    ]


def admitted(limit: Limit, seconds: int) -> int:
    """How much an unused key is given at once, and then over some time."""
    clock, state, count = ManualClock(), None, 0
    for _ in range(seconds + 1):
        while True:
            state, answer = limit.take(state, clock.now_us(), 1)
            if not answer[0]:
                break
            count += 1
        clock.advance(1)
    return count


@pytest.mark.parametrize(
    "number, nodes", list(itertools.product([0, 1, 3, 7, 10, 100], [1, 2, 3, 7]))
)
def test_all_shares_together_are_no_more_than_the_limit(number: int, nodes: int) -> None:
    for limit in limits(number):
        for key in map(str, range(20)):
            shares = [share_of(limit, fleet, key) for fleet in fleets(nodes)]
            assert sum(map(capacity, shares)) <= number
            if number >= nodes:
                assert {share.limit for share in shares if share.window_us == limit.window_us} <= {
                    number // nodes
                }
            else:
                assert sum(map(capacity, shares)) == number  # As many owners as units.


@pytest.mark.parametrize("burst, nodes", [(10, 3), (30, 7), (2, 5), (100, 4)])
def test_buckets_refill_no_faster_together_than_the_limit(burst: int, nodes: int) -> None:
    limit = TokenBucket(10, MINUTE_US, burst)
    parts = sum(admitted(share_of(limit, fleet, "k"), 120) for fleet in fleets(nodes))
    assert parts <= admitted(limit, 120)
    assert parts >= burst // nodes * nodes + 20 - nodes  # And not much slower.


def test_owners_are_spread_over_keys() -> None:
    owned = [sum(fleet.owns(f"key-{n}", 2) for n in range(700)) for fleet in fleets(7)]
    assert sum(owned) == 2 * 700
    assert min(owned) > 120


def test_an_unknown_node_owns_nothing() -> None:
    limit = FixedWindow(3, MINUTE_US)
    assert share_of(limit, Fleet(5), "k").limit == 0
    assert share_of(limit, Fleet(5, NODES[:4], "stranger"), "k").limit == 0


def test_unnamed_nodes_take_part_in_the_ranking() -> None:
    limit = FixedWindow(2, MINUTE_US)
    keys = [f"key-{number}" for number in range(200)]
    for key in keys:
        assert sum(share_of(limit, fleet, key).limit for fleet in fleets(3, nodes=7)) <= 2
    given = sum(share_of(limit, fleet, key).limit for fleet in fleets(3, nodes=7) for key in keys)
    assert 0 < given < 2 * len(keys)


def test_a_bucket_over_the_longest_window_is_divided_by_its_units() -> None:
    year_us = 366 * 86_400_000_000
    share = share_of(TokenBucket(100, year_us), Fleet(3, NODES[:3], NODES[0]), "k")
    assert share == TokenBucket(33, year_us, 33)


@pytest.mark.parametrize("limit", limits(60), ids=lambda limit: type(limit).__name__)
def test_what_was_spent_of_a_share_stays_spent_when_another_node_comes(limit: Limit) -> None:
    """Between two outages, too short after each other for anything to come back."""
    fleet = [Fleet(2, NODES[:2], NODES[0])]
    local = LocalCounts(ManualClock(), lambda: fleet[0])
    admitted = []
    for nodes in (2, 3, 4, 3, 1):
        fleet[0] = Fleet(nodes, NODES[:nodes], NODES[0])
        request = ChargeSet((Charge("key", limit),))
        admitted.append(sum(local.decide(request).allowed for _ in range(100)))
        while local.next_debts(100):
            pass
        local.end_outage()
    assert admitted[:4] == [30, 0, 0, 0]
    assert sum(admitted) <= 60
