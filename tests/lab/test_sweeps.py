"""The sweeps find what trying every span finds, and are fast enough for long histories."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from headgate import Concurrency, TokenBucket
from headgate.lab.checks.liveness import Tops, _backlogs
from headgate.lab.checks.slots import HeldSlots, _worst
from headgate.lab.checks.sweep import Added, Worst, flowing, widest
from headgate.lab.spans import Extra, Span, Sums, Times
from tests.lab.histories import START_US, Book, Call

if TYPE_CHECKING:
    from collections.abc import Sequence

moments = st.integers(0, 60)
spans = st.builds(
    lambda t0, lasts, cost: Span(t0, t0 + lasts, cost),
    moments,
    st.integers(0, 9),
    st.integers(1, 4),
)
several = st.lists(spans, min_size=1, max_size=14)
extras = st.lists(
    st.builds(
        lambda begin, lasts, units: Extra(begin, begin + lasts, units),
        moments,
        moments,
        st.integers(1, 9),
    ),
    max_size=3,
)


def inside(those: Sequence[Span], a: int, b: int) -> int:
    return sum(one.cost for one in those if a <= one.t0 and one.t1 <= b)


def added(those: Sequence[Extra], a: int, b: int) -> int:
    return sum(one.units for one in those if one.begin <= b and one.end >= a)


@given(several, extras, st.integers(1, 30), st.integers(1, 9))
def test_the_widest_span_is_the_worst_of_all_spans(
    those: list[Span], more: list[Extra], window: int, limit: int
) -> None:
    slow = max(
        inside(those, a, a + window - 1) - limit - added(more, a, a + window - 1)
        for a in {one.t0 for one in those}
    )
    extra = Added(more)
    assert widest(those, window, lambda a, b: limit + extra.to(a, b)).over == slow


@given(several, extras, st.integers(1, 9), st.integers(1, 9), st.integers(1, 20))
def test_the_worst_span_of_a_bucket_is_the_worst_of_all_spans(
    those: list[Span], more: list[Extra], burst: int, limit: int, window: int
) -> None:
    def over(a: int, b: int) -> int:
        given = inside(those, a, b) - added(more, a, b) - burst
        return -(-(given * window - limit * (b - a)) // window)

    pairs = [(a, b) for a in {x.t0 for x in those} for b in {x.t1 for x in those} if a <= b]
    found = flowing(those, burst, limit, window, more)
    assert found.over == max(over(a, b) for a, b in pairs)
    assert found.over <= 0 or over(found.begin, found.end) == found.over


@given(several, st.integers(1, 600), st.lists(moments, min_size=1, max_size=5))
def test_the_largest_backlog_is_that_of_the_worst_order(
    those: list[Span], emission: int, asked: list[int]
) -> None:
    points = sorted({*asked, *(one.t0 for one in those)})
    slow = [
        max(
            sum(one.cost for one in those if one.t0 <= x and one.t1 >= y) * emission - 256 * (x - y)
            for y in {x, *(one.t1 for one in those if one.t1 <= x), *(p for p in points if p <= x)}
        )
        for x in points
    ]
    assert _backlogs(those, points, emission) == slow


@given(several, moments, st.integers(0, 30))
def test_what_possibly_lies_in_a_span_is_all_that_meets_it(
    those: list[Span], a: int, lasts: int
) -> None:
    b = a + lasts
    assert Sums(those).meeting(a, b) == sum(
        one.cost for one in those if one.t0 <= b and one.t1 >= a
    )


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.data())
def test_the_largest_of_a_run_is_found(numbers: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(numbers) - 1))
    last = data.draw(st.integers(first + 1, len(numbers)))
    assert Tops(numbers).largest(first, last) == max(numbers[first:last])


@given(st.lists(st.tuples(moments, moments).map(sorted), max_size=6), moments, st.integers(0, 9))
def test_overlaps_of_merged_spans_match_a_linear_search(
    those: list[list[int]], a: int, lasts: int
) -> None:
    stretches = [(begin, end) for begin, end in those]
    met = any(begin <= a + lasts and a <= end for begin, end in stretches)
    assert Times(stretches).meet(a, a + lasts) == met


@given(several)
def test_the_most_slots_are_held_when_most_intervals_meet(those: list[Span]) -> None:
    held = [HeldSlots(one.t0, one.t1, one.cost, 0) for one in those if one.t1 > one.t0]
    slow = max(
        (sum(o.cost for o in held if o.begin <= at < o.end) for at in {h.begin for h in held}),
        default=0,
    )
    assert max(0, _worst(held, 0, Added(())).over) == slow


def test_an_excess_of_one_unit_is_found_wherever_it_is() -> None:
    """Exact in integers: a rate that does not divide the window, and times of sixteen digits."""
    limit = TokenBucket(7, 1_000_003, 3)
    for seed in range(40):
        rng = random.Random(seed)
        at, state = START_US, None
        those: list[Span] = []
        while len(those) < 200:
            at += rng.randrange(200_000)
            state, answer = limit.take(state, at, 1)
            if answer[0]:
                those.append(Span(at, at, 1))
        assert flowing(those, 3, 7, 1_000_003).over <= 0
        burst = [one.t0 for one in those]
        worst = max(
            1 + (j - i) - 3 - Fraction(7 * (burst[j] - burst[i]), 1_000_003)
            for i in range(len(burst))
            for j in range(i, min(i + 30, len(burst)))
        )
        place = rng.randrange(len(those))
        more = -int(worst) + 1
        planted = flowing([*those, those[place]._replace(cost=more + 3)], 3, 7, 1_000_003)
        assert planted.over > 0
        assert planted.begin <= those[place].t0 <= planted.end


@pytest.mark.slow
def test_a_hundred_thousand_operations_take_seconds() -> None:
    """Sorting, not trying every span: that would be ten thousand million of them."""
    rng = random.Random(1)
    at, those = START_US, []
    for _ in range(100_000):
        at += rng.randrange(100)
        those.append(Span(at, at + rng.randrange(500), 1))
    begun = time.process_time()
    assert isinstance(flowing(those, 10, 10_000, 1_000_000), Worst)
    assert isinstance(widest(those, 1_000_000, lambda _a, _b: 10_000), Worst)
    assert time.process_time() - begun < 20


def test_a_slot_that_expired_may_be_taken_by_another_and_one_that_was_renewed_may_not() -> None:
    book = Book(Concurrency(1, 1_000), receipts=False)

    def act(f: str, at: int, token: str) -> None:
        call = Call(START_US + at, START_US + at, START_US + at + 5, 1, 0, f=f, token=token)
        book.note(call, "allow")

    act("acquire", 0, "a")
    act("acquire", 1_010, "b")
    assert book.verdict().holds
    act("renew", 900, "a")
    verdict = book.verdict()
    assert verdict.counts == {"over-admission": 1}
    assert verdict.figures["over_limit"] == 1
