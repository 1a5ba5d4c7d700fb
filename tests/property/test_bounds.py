"""Never more than was promised, in any interval, whatever an adversary does.

Each algorithm states a bound on what it admits. Here schedules are played against it that try to break
that bound, and the sums are taken over every interval that begins and ends with an admission: if one
is too large, so is the sum over one of those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, strategies as st, target

from headgate.algorithms import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES
from headgate.charge import Charge, ChargeSet
from headgate.engines.memory import MemoryEngine
from headgate.testing import ManualClock
from tests.property.strategies import LIMITS, Event, Story, examples, stories, told, windows_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.decision import Decision

YEAR_US = 365 * 86_400_000_000


class Use(NamedTuple):
    """So many units were really used then."""

    at_us: int
    cost: Fraction | int


def admitted(story: Story) -> list[Use]:
    """What a story of takes was given."""
    return [Use(one.now_us, one.cost) for one in told(story) if one.answer[0] and one.cost]


def intervals(uses: list[Use]) -> Iterator[tuple[int, int, Fraction | int]]:
    """Every interval from one use to another: its ends, and what was used in it, ends included."""
    uses = sorted(uses)
    for first, begin in enumerate(uses):
        total: Fraction | int = 0
        for end in uses[first:]:
            total += end.cost
            yield begin.at_us, end.at_us, total


def per_window(uses: list[Use], window_us: int) -> list[Fraction | int]:
    """What was used in each aligned window."""
    windows = groupby(sorted(uses), key=lambda use: use.at_us // window_us)
    return [sum(use.cost for use in window) for _, window in windows]


few = st.integers(1, 20)


@given(story=stories(st.builds(FixedWindow, few, windows_us), "take", back=False))
def test_a_fixed_window_admits_at_most_its_limit_per_window(story: Story) -> None:
    """By the definition of its windows, which are aligned to the epoch."""
    worst = max(per_window(admitted(story), story.limit.window_us), default=0)
    target(float(worst - story.limit.limit))
    assert worst <= story.limit.limit


@given(story=stories(LIMITS["calendar_window"], "take", back=False))
def test_a_calendar_window_admits_at_most_its_limit_per_period(story: Story) -> None:
    """However long the period is."""
    periods = groupby(admitted(story), key=lambda use: story.limit.bounds_us(use.at_us))
    for (start_us, end_us), uses in periods:
        period = list(uses)
        assert sum(use.cost for use in period) <= story.limit.limit
        assert start_us <= period[0].at_us <= period[-1].at_us < end_us


@given(story=stories(st.builds(SlidingLog, few, windows_us), "take", back=False))
def test_a_sliding_log_admits_at_most_its_limit_in_any_span_of_a_window(story: Story) -> None:
    """A span of exactly one window holds one of its ends, not both."""
    window_us = story.limit.window_us
    spans = [used for begin, end, used in intervals(admitted(story)) if end - begin < window_us]
    assert max(spans, default=0) <= story.limit.limit


@given(story=stories(st.builds(SlidingWindow, few, windows_us), "take", back=False))
def test_a_sliding_window_admits_less_than_twice_its_limit_in_any_span_of_a_window(
    story: Story,
) -> None:
    """At most limit · (1 + f) in a span that ends at fraction f of a window, and so less than twice."""
    limit, window_us = story.limit.limit, story.limit.window_us
    uses = admitted(story)
    assert max(per_window(uses, window_us), default=0) <= limit
    for begin_us, end_us, used in intervals(uses):
        if end_us - begin_us < window_us:
            assert used <= limit * (1 + Fraction(end_us % window_us, window_us))
            assert used < 2 * limit


def test_an_adversary_gets_19_of_10_out_of_a_sliding_window() -> None:
    """All of one window at its end, then what fades in the next: the bound is reached."""
    limit = SlidingWindow(10, 1_000)
    state, last = limit.take(None, 999, 10)
    uses = [Use(999, 10)]
    for now_us in range(1_000, 1_999):
        state, answer = limit.take(state, now_us, 1)
        uses += [Use(now_us, 1)] * answer[0]
    assert last == (True, 0, 0, 1_001, 0)
    assert max(used for begin, end, used in intervals(uses) if end - begin < 1_000) == 19


@given(story=stories(st.builds(ExponentialBackoff, few, windows_us), "take", back=False))
def test_backoff_admits_at_most_its_limit_per_window(story: Story) -> None:
    """And less at every level above the first."""
    assert max(per_window(admitted(story), story.limit.window_us), default=0) <= story.limit.limit


# Token bucket: reservations that are given back in part, and a line of callers that wait.

buckets = st.builds(
    TokenBucket, few, st.integers(1_000, 10_000_000), st.integers(0, 20)
) | st.builds(TokenBucket, st.integers(300, 1_000), st.integers(1_000, 1_100), st.integers(1, 9))


@dataclass
class Booking:
    """Units that were taken, or booked ahead, and of which some may not be used after all."""

    start_us: int
    cost: int
    token: str | None = None
    place: Decision | None = None
    unused: int = 0


@dataclass
class Played:
    """One key of the memory engine, and what was really used of it."""

    limit: Any
    start_us: int
    bookings: list[Booking] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock(self.start_us / 1_000_000)
        self.engine = MemoryEngine(clock=self.clock)

    def play(self, event: Event) -> None:
        self.clock.advance(us=event.move_us)
        getattr(self, event.verb)(event)

    def take(self, event: Event) -> None:
        self.names += 1
        charge, token = Charge("key", self.limit, event.cost), f"{self.names}"
        (decision,) = self.engine.decide([ChargeSet((charge,), reserve_us=YEAR_US, token=token)])
        if decision and event.cost:
            self.bookings.append(Booking(self.clock.now_us(), event.cost, token))

    def line_up(self, event: Event) -> None:
        wait_us = event.which * self.limit.window_us // 4
        charge = Charge("key", self.limit, event.cost)
        (decision,) = self.engine.decide([ChargeSet((charge,), wait_us=wait_us)])
        if decision and event.cost:
            start_us = self.clock.now_us() + decision.retry_after_us
            self.bookings.append(Booking(start_us, event.cost, place=decision))

    def leave_line(self, event: Event) -> None:
        """Somebody who waits gives up; what stays charged is not used all the same."""
        waiting = [one for one in self.bookings if one.start_us > self.clock.now_us()]
        if waiting:
            one = waiting[event.which % len(waiting)]
            self.bookings.remove(one)
            assert one.place is not None
            self.engine.leave_line(one.place)

    def refund(self, event: Event) -> None:
        """Settle a reservation for less."""
        open_ones = [one for one in self.bookings if one.token is not None]
        if open_ones:
            one = open_ones[event.which % len(open_ones)]
            token, one.token = one.token, None
            one.unused = min(event.cost, one.cost)
            assert token is not None
            assert self.engine.settle(token, one.cost - one.unused)

    def uses(self) -> list[Use]:
        """What was really used, and when."""
        return [Use(one.start_us, one.cost - one.unused) for one in self.bookings]

    def excess(self) -> Fraction:
        """By how much the busiest interval exceeds burst + rate · time; never more than 0."""
        rate = Fraction(self.limit.limit, self.limit.window_us)
        return max(
            (
                used - self.limit.burst - rate * (end_us - begin_us)
                for begin_us, end_us, used in intervals(self.uses())
            ),
            default=Fraction(-1),
        )


@pytest.mark.parametrize(
    "verbs",
    [
        ("take",),
        ("take", "take", "refund"),
        ("take", "line_up", "line_up"),
        ("line_up", "line_up", "leave_line"),
        ("take", "line_up", "line_up", "leave_line", "refund", "refund"),
    ],
    ids=" ".join,
)
@examples(1.5)
@given(data=st.data())
def test_a_token_bucket_admits_at_most_burst_plus_rate_times_time(
    verbs: tuple[str, ...], data: st.DataObject
) -> None:
    """In every interval, counting what was really used: not what was given back, and not too early."""
    story = data.draw(stories(buckets, *verbs, back=False))
    played = Played(story.limit, story.start_us)
    for event in story.events:
        played.play(event)
    target(float(played.excess()))
    assert played.excess() <= 0


@given(story=stories(st.builds(Concurrency, few), "take", "take", "hold", "release", back=False))
def test_never_more_slots_are_held_than_there_are(story: Story) -> None:
    """At every moment, counting each holder until it lets go or expires."""
    limit, now_us, state = story.limit, story.start_us, None
    held: dict[str, tuple[int, int]] = {}
    for number, (verb, move_us, cost, which) in enumerate(story.events):
        now_us += move_us
        token = f"holder {which % 3}" if verb != "take" else f"taken {number}"
        if verb == "release":
            state = limit.release(state, now_us, token)
            held.pop(token, None)
            continue
        state, answer = limit.hold(state, now_us, cost, token)
        if answer[0] and cost:
            held[token] = (now_us + limit.ttl_us, cost)
        in_use = sum(cost for ends_us, cost in held.values() if ends_us > now_us)
        assert in_use == limit.used(state, now_us)
        assert in_use <= max(limit.limit, 0)


adaptives = st.builds(Adaptive, few, st.integers(1_000, 10_000_000), st.integers(0, 40))


@given(story=stories(adaptives, "take", back=False))
def test_every_candidate_of_adaptive_keeps_its_bound_over_all_admissions(
    story: Story,
) -> None:
    """What the others admitted counts for it too, so switching wins nothing."""
    one, state, now_us = story.limit, None, story.start_us
    choices = [Adaptive(one.limit, one.window_us, one.burst, chosen) for chosen in CANDIDATES]
    uses: list[Use] = []
    for event in story.events:
        now_us += event.move_us
        chosen = choices[event.which % 3]
        state, answer = chosen.take(state, now_us, event.cost)
        if not answer[0] or not event.cost:
            continue
        uses.append(Use(now_us, event.cost))
        if chosen.chosen == TokenBucket.name:
            rate = Fraction(one.limit, one.window_us)
            for begin_us, end_us, used in intervals(uses):
                assert end_us < now_us or used <= one.burst + rate * (now_us - begin_us)
        else:
            assert per_window(uses, one.window_us)[-1] <= one.limit


@pytest.mark.parametrize("name", ["sliding_log", "token_bucket"])
@given(data=st.data(), steps_us=st.lists(st.integers(0, 5_000), min_size=30, max_size=30))
def test_a_clock_that_steps_back_admits_no_extra_unit(
    name: str, data: st.DataObject, steps_us: list[int]
) -> None:
    """The bound holds in the time that really passed, however the clock was set back meanwhile."""
    kinds: dict[str, Any] = {"sliding_log": SlidingLog, "token_bucket": TokenBucket}
    limits = st.builds(kinds[name], few, st.integers(1_000, 3_000))
    story = data.draw(stories(limits, "take", back=False))
    limit, state, behind_us, now_us = story.limit, None, 0, story.start_us
    uses: list[Use] = []
    for event, step_us in zip(story.events, steps_us, strict=False):
        now_us += event.move_us
        behind_us += step_us if step_us % 4 == 0 else 0
        state, answer = limit.take(state, now_us - behind_us, event.cost)
        uses += [Use(now_us, event.cost)] * answer[0]
    rate = Fraction(limit.limit, limit.window_us) if name == "token_bucket" else 0
    for begin_us, end_us, used in intervals(uses):
        if end_us - begin_us < limit.window_us:
            assert used <= limit.limit + rate * (end_us - begin_us)
