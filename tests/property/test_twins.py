"""Every algorithm gives the answers of its slow and obvious twin, field by field, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, note, strategies as st

from headgate.algorithms import Adaptive, Calendar
from headgate.algorithms.adaptive import CANDIDATES
from headgate.engines._watch import Watch
from tests.property.strategies import (
    LIMITS,
    TURNING_POINTS_US,
    ZONES,
    Event,
    Story,
    concurrencies,
    few_slots,
    quick_backoffs,
    stories,
    token_buckets,
)
from tests.property.twins import (
    AdaptiveTwin,
    CalendarTwin,
    ConcurrencyTwin,
    ExponentialBackoffTwin,
    SlidingLogTwin,
    SlidingWindowTwin,
    TokenBucketTwin,
    Twin,
    WindowTwin,
    aligned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.algorithms import Answer, State

TWINS: dict[str, Callable[[Any], Twin | AdaptiveTwin]] = {
    "fixed_window": lambda one: WindowTwin(one.limit, aligned(one.window_us), one.window_us),
    "calendar_window": lambda one: WindowTwin(
        one.limit, calendar_twin(one.calendar).bounds_us, 2 * one.window_us
    ),
    "sliding_window": lambda one: SlidingWindowTwin(one.limit, one.window_us),
    "sliding_log": lambda one: SlidingLogTwin(one.limit, one.window_us),
    "token_bucket": lambda one: TokenBucketTwin(one.limit, one.window_us, one.burst),
    "exponential_backoff": lambda one: ExponentialBackoffTwin(
        one.limit, one.window_us, one.denials_per_level, one.max_level, one.retry_us
    ),
    "adaptive": lambda one: AdaptiveTwin(one.limit, one.window_us, one.burst, one.chosen),
    "concurrency": lambda one: ConcurrencyTwin(one.limit, one.ttl_us),
}
assert TWINS.keys() == LIMITS.keys(), "an algorithm without a twin"


def calendar_twin(calendar: Calendar) -> CalendarTwin:
    return CalendarTwin(calendar.period, calendar.tz, calendar.anchor)


@dataclass
class Receipt:
    """A take that may still be given back."""

    mark: State
    twin_mark: Any
    left: int
    number: int


@dataclass
class Pair:
    """A limit with its state, and its twin, to which the same things happen."""

    limit: Any
    twin: Any
    now_us: int
    state: State = None
    receipts: list[Receipt] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)

    def play(self, event: Event) -> None:
        """Let the event happen to both, and compare all that can be seen."""
        self.now_us = max(1, self.now_us + event.move_us)
        note(f"{event.verb} {event.cost} at {self.now_us}, state {self.state}")
        fast, slow = getattr(self, event.verb)(event)
        assert fast == slow
        assert self.limit.used(self.state, self.now_us) == self.twin.used(self.now_us)

    def take(self, event: Event) -> tuple[Answer, Answer]:
        self.state, fast = self.limit.take(self.state, self.now_us, event.cost)
        slow = self.twin.take(self.now_us, event.cost)
        if fast[0] and event.cost:
            self.note(event.cost)
        return fast, slow

    def note(self, cost: int) -> None:
        """Something was taken that may be given back."""
        self.state, low = self.limit.watch(self.state)
        number = self.watch.begin(low)
        mark = self.limit.mark(self.state)
        self.receipts.append(Receipt(mark, self.twin.mark(), cost, number))

    def peek(self, event: Event) -> tuple[Answer, Answer]:
        fast = self.limit.peek(self.state, self.now_us, event.cost)
        return fast, self.twin.peek(self.now_us, event.cost)

    def force(self, event: Event) -> tuple[Answer, Answer]:
        self.state, fast = self.limit.force(self.state, self.now_us, event.cost)
        return fast, self.twin.force(self.now_us, event.cost)

    def refund(self, event: Event) -> tuple[int, int]:
        """Give back part of an earlier take, never more of it than was taken."""
        if not self.receipts:
            return 0, 0
        receipt = self.receipts[event.which % len(self.receipts)]
        cost = min(event.cost, receipt.left)
        receipt.left -= cost
        low = min(self.watch.low_since(receipt.number), self.limit.low(self.state))
        self.state, fast = self.limit.refund(self.state, receipt.mark, self.now_us, cost, low)
        self.watch.note_refund(receipt.number, fast)
        return fast, self.twin.refund(receipt.twin_mark, self.now_us, cost)


@pytest.mark.parametrize("name", TWINS)
@given(data=st.data())
def test_an_algorithm_equals_its_twin(name: str, data: st.DataObject) -> None:
    """Whatever happens to a key, allowed, remaining, retry, reset, level and count are the same."""
    story = data.draw(stories(LIMITS[name], "take", "take", "take", "peek", "force", "refund"))
    pair = Pair(story.limit, TWINS[name](story.limit), story.start_us)
    for event in story.events:
        pair.play(event)


@given(story=stories(quick_backoffs, "take", "take", "take", "take", "peek", "force", "refund"))
def test_backoff_under_pressure_equals_its_twin(story: Story) -> None:
    """Up to the top and down again, with cool-downs and admissions in between."""
    pair = Pair(story.limit, TWINS["exponential_backoff"](story.limit), story.start_us)
    for event in story.events:
        pair.play(event)


@given(data=st.data())
def test_adaptive_equals_its_twin_for_every_choice(data: st.DataObject) -> None:
    """The choice may change at any moment; the state is the same for all choices."""
    story = data.draw(stories(LIMITS["adaptive"], "take", "take", "peek", "force", "refund"))
    one = story.limit
    choices = [Adaptive(one.limit, one.window_us, one.burst, chosen) for chosen in CANDIDATES]
    twin = AdaptiveTwin(one.limit, one.window_us, one.burst, one.chosen)
    pair = Pair(one, twin, story.start_us)
    for event in story.events:
        pair.limit = choices[event.which % 3]
        twin.chosen = pair.limit.chosen
        pair.play(event)


@dataclass
class Line(Pair):
    """A bucket in front of which callers wait in line, and each knows the state before it came."""

    booked: list[tuple[State, State, int, int]] = field(default_factory=list)

    def line_up(self, event: Event) -> tuple[Answer, Answer]:
        """Wait for up to a few windows."""
        wait_us = event.which * self.limit.window_us // 8
        before = self.state
        self.state, fast = self.limit.line_up(before, self.now_us, event.cost, wait_us)
        slow = self.twin.line_up(self.now_us, event.cost, wait_us)
        if fast[0] and fast[2] and event.cost:
            starts_us = self.now_us + fast[2]
            self.booked.append((before, self.state, self.twin.mark(), starts_us))
        return fast, slow

    def leave_line(self, event: Event) -> tuple[State, State]:
        """The one who came last leaves, or, if something was taken since, tries to."""
        while self.booked:
            before, after, twin_mark, starts_us = self.booked.pop()
            if starts_us <= self.now_us:  # Its time has come, so it is used up, and no engine asks.
                continue
            put_back = self.limit.leave_line(self.state, after, before, self.now_us)
            assert (put_back is not None) == self.twin.leave_line(twin_mark, self.now_us)
            self.state = self.state if put_back is None else put_back
            break
        return self.peek(event)


@given(story=stories(token_buckets, "take", "line_up", "line_up", "leave_line", "peek", back=False))
def test_a_line_in_front_of_a_bucket_equals_its_twin(story: Story) -> None:
    """Who waits is told the same start, and who leaves gives back the same."""
    twin = TokenBucketTwin(story.limit.limit, story.limit.window_us, story.limit.burst)
    line = Line(story.limit, twin, story.start_us)
    for event in story.events:
        line.play(event)


@dataclass
class Holding(Pair):
    """Slots that are held under names."""

    def token(self, event: Event) -> str:
        return f"holder {event.which % 4}"

    def hold(self, event: Event) -> tuple[Answer, Answer]:
        token = self.token(event)
        self.state, fast = self.limit.hold(self.state, self.now_us, event.cost, token)
        return fast, self.twin.hold(self.now_us, event.cost, token)

    def renew(self, event: Event) -> tuple[bool, bool]:
        self.state, fast = self.limit.renew(self.state, self.now_us, self.token(event))
        return fast, self.twin.renew(self.now_us, self.token(event))

    def release(self, event: Event) -> tuple[Answer, Answer]:
        self.state = self.limit.release(self.state, self.now_us, self.token(event))
        self.twin.release(self.now_us, self.token(event))
        return self.peek(event)


@given(story=stories(few_slots | concurrencies, "take", "hold", "hold", "renew", "release", "peek"))
def test_holding_slots_equals_its_twin(story: Story) -> None:
    """Holders that renew, let go, come back or expire leave the same slots free."""
    holding = Holding(
        story.limit, ConcurrencyTwin(story.limit.limit, story.limit.ttl_us), story.start_us
    )
    for event in story.events:
        holding.play(event)


@given(
    period=st.sampled_from([("day", 1), ("week", 1), ("week", 7), ("month", 1), ("month", 31)]),
    zone=st.sampled_from(ZONES),
    around_us=st.sampled_from(TURNING_POINTS_US),
    offset_us=st.integers(-40, 40).map(lambda hours: hours * 3_600_000_000) | st.integers(),
)
def test_a_calendar_equals_its_twin(
    period: tuple[str, int], zone: str, around_us: int, offset_us: int
) -> None:
    """Also on the days on which clocks change."""
    calendar = Calendar(period[0], zone, period[1])
    at_us = max(86_400_000_000, min(around_us + offset_us, 4_000_000_000_000_000))
    assert calendar.bounds_us(at_us) == calendar_twin(calendar).bounds_us(at_us)
