"""For one key, time never runs backwards: a clock that steps gives nothing but what the way forward gives.

`T` is how far ahead of now a key's time is believed (`Limit.max_lead_us`). While the clock stays within T of the latest
time that it has shown, a key is given no more than if it had gone from the first of its takes straight to that latest
time. If the clock steps back further, then each way forward counts once more. Whatever the clock did, a key is idle
again at most T later than if all of it had been taken just now.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from headgate import MemoryEngine
from headgate.algorithms import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES
from headgate.charge import Charge, ChargeSet
from headgate.testing import ManualClock
from tests.property.strategies import EPOCH_US, HOUR_US

SECOND_US: Final = 1_000_000
LIMITS: Final[dict[str, Limit]] = {
    "fixed_window": FixedWindow(10, SECOND_US),
    "fixed_window of an hour": FixedWindow(10, HOUR_US),
    "calendar": CalendarWindow(10, Calendar("day", "Europe/Berlin")),
    "sliding_window": SlidingWindow(10, SECOND_US),
    "sliding_window of an hour": SlidingWindow(10, HOUR_US),
    "sliding_log": SlidingLog(10, SECOND_US),
    "sliding_log of an hour": SlidingLog(10, HOUR_US),
    "token_bucket": TokenBucket(10, SECOND_US),
    "token_bucket with a burst": TokenBucket(10, HOUR_US, 15),
    "exponential_backoff": ExponentialBackoff(10, SECOND_US, denials_per_level=2, max_level=2),
    **{f"adaptive by {one}": Adaptive(10, SECOND_US, chosen=one) for one in CANDIDATES},
    "concurrency": Concurrency(10, SECOND_US),
}
BOUNDARY_US: Final = 1_800_054_000_000_000
"""Midnight in Berlin, and the start of an hour."""
assert CalendarWindow(1, Calendar("day", "Europe/Berlin")).bounds_us(BOUNDARY_US)[0] == BOUNDARY_US
assert BOUNDARY_US > EPOCH_US


def windows_begun(limit: Limit, from_us: int, to_us: int) -> int:
    """How many windows begin on the way."""
    if not isinstance(limit, CalendarWindow):
        return max(0, to_us // limit.window_us - from_us // limit.window_us)
    begun, start_us = 0, limit.bounds_us(from_us)[1]
    while start_us <= to_us:
        begun, start_us = begun + 1, limit.bounds_us(start_us)[1]
    return begun


def most(limit: Limit, ways: list[tuple[int, int]]) -> Fraction | int:
    """The most that a limit gives, from a first take on, over these ways forward."""
    if isinstance(limit, Adaptive):
        limit = limit.candidates[CANDIDATES.index(limit.chosen)]
    passed_us = sum(to_us - from_us for from_us, to_us in ways)
    if isinstance(limit, TokenBucket):
        return limit.burst + Fraction(limit.limit * passed_us, limit.window_us)
    if isinstance(limit, SlidingLog | Concurrency):
        span_us = limit.ttl_us if isinstance(limit, Concurrency) else limit.window_us
        return limit.limit * (1 + passed_us // span_us)
    return limit.limit * (1 + sum(windows_begun(limit, *way) for way in ways))


def longest_us(limit: Limit) -> int:
    """How long it takes at most until a key is idle of which all was taken just now."""
    if isinstance(limit, Adaptive):
        return max(map(longest_us, limit.candidates))
    if isinstance(limit, TokenBucket):
        return -(-limit.capacity // 256)
    if isinstance(limit, Concurrency):
        return limit.ttl_us
    windows = 2 if isinstance(limit, SlidingWindow) else 1
    if isinstance(limit, ExponentialBackoff):  # Each level takes a window, and so does a denial.
        windows += limit.max_level
    return windows * limit.window_us


steps: Final = st.sampled_from([1, 2_000, 900_000, -1, -2_000, -900_000]) | st.integers(
    -60_000_000, 60_000_000
)


@st.composite
def readings(draw: st.DrawFn, limit: Limit, *, within: bool) -> list[int]:
    """What the clock shows, one after the other, from around a boundary on."""
    lead_us = limit.max_lead_us
    edges = [
        1,
        -1,
        lead_us - 1,
        lead_us,
        lead_us + 1,
        -lead_us - 1,
        -lead_us,
        1 - lead_us,
        HOUR_US,
        -HOUR_US,
    ]
    moves = draw(st.lists(steps | st.sampled_from(edges), min_size=2, max_size=25))
    shown = [BOUNDARY_US + draw(st.sampled_from([-2_000, -1, 0, 1, 500_000]))]
    for move_us in moves:
        at_us = shown[-1] + move_us
        shown.append(max(at_us, max(shown) - lead_us) if within else at_us)
    return shown


def play(limit: Limit, shown: list[int], costs: list[int]) -> tuple[int, int]:
    """Take at each of these times; what was given, and which take was the first to be given something."""
    state: Any = None
    given, first = 0, -1
    for number, (now_us, cost) in enumerate(zip(shown, costs, strict=True)):
        state, answer = limit.take(state, now_us, cost)
        assert answer[3] <= longest_us(limit) + limit.max_lead_us
        if answer[0]:
            given += cost
            first = number if first < 0 else first
    return given, max(0, first)


def drawn_costs(data: st.DataObject, shown: list[int]) -> list[int]:
    return data.draw(
        st.lists(st.sampled_from([1, 3, 10, 10]), min_size=len(shown), max_size=len(shown))
    )


@pytest.mark.parametrize("name", LIMITS)
@given(data=st.data())
def test_flips_within_t_give_what_the_way_forward_gives_once(
    name: str, data: st.DataObject
) -> None:
    limit = LIMITS[name]
    shown = data.draw(readings(limit, within=True))
    given, first = play(limit, shown, drawn_costs(data, shown))
    assert given <= most(limit, [(shown[first], max(shown[first:]))])


@pytest.mark.parametrize("name", LIMITS)
@given(data=st.data())
def test_any_steps_give_what_each_way_forward_gives(name: str, data: st.DataObject) -> None:
    limit = LIMITS[name]
    shown = data.draw(readings(limit, within=False))
    given, first = play(limit, shown, drawn_costs(data, shown))
    ways = [(one_us, other_us) for one_us, other_us in pairwise(shown[first:]) if one_us < other_us]
    assert given <= most(limit, ways)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("flip_us", [1, 2_000, 900_000], ids=lambda us: f"{us}us")
def test_ten_flips_over_a_boundary_give_one_way_forward(name: str, flip_us: int) -> None:
    """The clock goes back and forth ten times, and at each end as much is asked for as there can be."""
    limit = LIMITS[name]
    shown = [BOUNDARY_US - flip_us, *10 * [BOUNDARY_US, BOUNDARY_US - flip_us]]
    given, _ = play(limit, [now_us for now_us in shown for _ in range(15)], 15 * len(shown) * [1])
    assert given <= most(limit, [(BOUNDARY_US - flip_us, BOUNDARY_US)])


@pytest.mark.parametrize("name", LIMITS)
@given(data=st.data())
def test_the_memory_engine_keeps_a_key_s_time_beside_others_that_come_and_go(
    name: str, data: st.DataObject
) -> None:
    """Also when idle states are swept while the clock is ahead, and when everything that was taken is given back."""
    limit = LIMITS[name]
    shown = data.draw(readings(limit, within=True))
    clock = ManualClock(shown[0] / 1_000_000)
    engine = MemoryEngine(clock=clock, max_keys=data.draw(st.sampled_from([1, 3, 100])))
    hit = engine.bind(limit)
    given: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for number, now_us in enumerate(shown):
        clock.advance(us=now_us - clock.now_us())
        key = data.draw(st.sampled_from(["a", "b", "new", "reserve"]))
        if key == "new":
            hit(f"new {number}", 1)
        elif key == "reserve" and not isinstance(limit, Concurrency):
            (held,) = engine.decide([ChargeSet((Charge("a", limit, 1),), reserve_us=HOUR_US)])
            if held.token is not None:
                engine.settle(held.token, 0)
        elif key in given:
            given[key] += [(number, 1) for _ in range(12) if hit(key, 1)]
    for takes in given.values():
        if takes:
            first = takes[0][0]
            assert len(takes) <= most(limit, [(shown[first], max(shown[first:]))])


def test_the_ways_are_what_they_say() -> None:
    """The bounds themselves, so that they cannot be too wide to fail."""
    way = (BOUNDARY_US - 1, BOUNDARY_US)
    told = {name: most(limit, [way]) for name, limit in LIMITS.items()}
    assert {name for name, given in told.items() if given == 20} == {
        "fixed_window", "fixed_window of an hour", "calendar", "sliding_window", "sliding_window of an hour",
        "exponential_backoff", "adaptive by sliding_window", "adaptive by exponential_backoff",
    }  # fmt: skip
    assert told["sliding_log"] == told["concurrency"] == 10
    assert told["token_bucket"] == 10 + Fraction(1, 100_000)
