"""A clean run raises no alarm: thousands of histories of every algorithm that an exact engine could have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings, strategies as st

from headgate import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from tests.lab.histories import Shape, exact, held

if TYPE_CHECKING:
    from headgate import Limit

small = st.integers(1, 12)
windows_us = st.sampled_from([1_000, 20_000, 1_000_000]) | st.integers(1_000, 50_000)

LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "fixed_window": st.builds(FixedWindow, small, windows_us),
    "calendar_window": st.builds(CalendarWindow, small, st.just(Calendar("day", "Europe/Berlin"))),
    "sliding_window": st.builds(SlidingWindow, small, windows_us),
    "sliding_log": st.builds(SlidingLog, small, windows_us),
    "token_bucket": st.builds(TokenBucket, small, windows_us, st.integers(0, 20)),
    "exponential_backoff": st.builds(ExponentialBackoff, small, windows_us, st.integers(1, 4)),
    "adaptive": st.builds(Adaptive, small, windows_us),
}
THOUSANDS = settings(max_examples=10 * settings().max_examples)
HUNDREDS = settings(max_examples=3 * settings().max_examples)


@st.composite
def shapes(draw: st.DrawFn, verbs: tuple[str, ...] = ("check",)) -> Shape:
    """Busy and idle, narrow and overlapping, with answers that are lost."""
    return Shape(
        seed=draw(st.integers(0, 2**32)),
        callers=draw(st.integers(1, 6)),
        calls=draw(st.sampled_from([6, 30, 60])),
        pace_us=draw(st.sampled_from([0, 3, 200, 2_000, 30_000])),
        slow=draw(st.sampled_from([1, 8, 40])),
        lost=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        most_cost=draw(st.sampled_from([1, 1, 3])),
        keys=draw(st.sampled_from([1, 1, 3])),
        receipts=draw(st.booleans()),
        verbs=verbs,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
@THOUSANDS
@given(data=st.data())
def test_an_exact_engine_is_judged_exact(name: str, data: st.DataObject) -> None:
    """A thousand histories of each algorithm."""
    limit: Limit = data.draw(LIMITS[name])
    verdict = exact(limit, data.draw(shapes())).verdict()
    assert verdict.holds, verdict.findings


@pytest.mark.parametrize("name", LIMITS)
@given(data=st.data())
def test_peeks_and_forced_charges_raise_no_alarm(name: str, data: st.DataObject) -> None:
    limit: Limit = data.draw(LIMITS[name])
    shape = data.draw(shapes(("check", "check", "peek", "force")))
    verdict = exact(limit, shape).verdict()
    assert verdict.holds, verdict.findings


@pytest.mark.slow
@THOUSANDS
@given(
    limit=st.builds(Concurrency, st.integers(1, 5), st.sampled_from([1_000, 5_000, 1_000_000])),
    shape=shapes(),
)
def test_slots_held_within_the_limit_raise_no_alarm(limit: Concurrency, shape: Shape) -> None:
    verdict = held(limit, shape).verdict()
    assert verdict.holds, verdict.findings


@given(limit=LIMITS["sliding_window"] | LIMITS["fixed_window"], shape=shapes())
def test_windows_with_an_unknown_start_raise_no_alarm(limit: Limit, shape: Shape) -> None:
    shape.receipts = False
    book = exact(limit, shape)
    book.more["aligned"] = False
    verdict = book.verdict()
    assert verdict.holds, verdict.findings


# Calls that were carried out after the first that is left had begun, and are not in the history.
@example(
    TokenBucket(1, 1_000, 1),
    Shape(seed=0, callers=3, calls=60, pace_us=200, slow=40, receipts=False),
)
@example(
    FixedWindow(1, 1_000),
    Shape(seed=1, callers=6, calls=60, pace_us=200, slow=40, receipts=False),
)
# A bucket that was full when the history began, and that was not idle since.
@example(
    TokenBucket(1, 1_000, 2),
    Shape(seed=0, callers=1, calls=30, pace_us=200, slow=1, receipts=False),
)
@given(limit=st.one_of(*LIMITS.values()), shape=shapes())
def test_a_history_that_begins_in_the_middle_raises_no_alarm(limit: Limit, shape: Shape) -> None:
    """Keys had been used before, and nobody knows how much."""
    book = exact(limit, shape)
    book.operations = book.operations[len(book.operations) // 3 :]
    book.more["fresh"] = False
    verdict = book.verdict()
    assert verdict.holds, verdict.findings
