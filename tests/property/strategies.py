"""What the property tests are fed: limits of every kind, and stories of what happens to one key.

A story is a list of events, each after some move of the clock. Moves and costs are drawn around the
numbers at which things change (the window, the limit, one more, one less), because random numbers
would almost never hit them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hypothesis import settings, strategies as st

from headgate.algorithms import (
    NEVER,
    Adaptive,
    Answer,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    State,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES
from headgate.algorithms.base import MAX_EXACT, MAX_MEMBERS, MAX_WINDOW_US, MIN_WINDOW_US

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH_US: Final = 1_800_000_000_000_000
"""Around when the stories begin."""

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US


class Event(NamedTuple):
    """After the clock has moved by `move_us`, `verb` is called with `cost`."""

    verb: str
    move_us: int
    cost: int
    which: int
    """Which of the earlier takes a refund speaks of; which candidate of `adaptive` decides."""


class Story(NamedTuple):
    """What happens to one key under `limit`, from `start_us` on."""

    limit: Any
    start_us: int
    events: list[Event]


class Told(NamedTuple):
    """One event that has been played, and what came of it."""

    verb: str
    now_us: int
    cost: int
    before: State
    after: State
    answer: Answer


def times_as_many(factor: int) -> settings:
    """So many times the examples of the profile, for claims that need more of them."""
    return settings(max_examples=factor * settings().max_examples)


# Limits.

windows_us: Final = st.sampled_from(
    [MIN_WINDOW_US, 1_009, 1_000_000, 60_000_000, DAY_US, MAX_WINDOW_US]
) | st.integers(MIN_WINDOW_US, 10_000_000)


def counts(most: int) -> st.SearchStrategy[int]:
    """Small numbers, where most happens, and the largest that are possible."""
    small = st.sampled_from([0, 1, 2, 3, 10]) | st.integers(0, min(100, most))
    return small | small | st.sampled_from([most, most - 1, most // 3])


def _bucket_numbers() -> st.SearchStrategy[tuple[int, int, int]]:
    """Limit, window and burst; 0 stands for a burst as large as the limit."""

    def with_limit(window_us: int) -> st.SearchStrategy[tuple[int, int, int]]:
        return counts(window_us).flatmap(lambda limit: with_burst(limit, window_us))

    def with_burst(limit: int, window_us: int) -> st.SearchStrategy[tuple[int, int, int]]:
        most = limit and MAX_EXACT // -(-256 * window_us // limit)
        bursts = st.just(0) | st.integers(0, min(most, 3 * limit)) | st.just(most)
        return st.tuples(st.just(limit), st.just(window_us), bursts)

    return windows_us.flatmap(with_limit)


fixed_windows: Final = st.builds(FixedWindow, counts(MAX_EXACT), windows_us)
sliding_windows: Final = st.builds(SlidingWindow, counts(2**43), windows_us)
sliding_logs: Final = st.builds(SlidingLog, counts(MAX_MEMBERS), windows_us)
token_buckets: Final = _bucket_numbers().map(lambda numbers: TokenBucket(*numbers))
backoffs: Final = st.builds(
    ExponentialBackoff,
    counts(MAX_EXACT),
    windows_us,
    denials_per_level=st.sampled_from([1, 2, 3, 10]),
    max_level=st.sampled_from([1, 2, 5, 20]),
    retry_us=st.sampled_from([1_000, 1_000_000, 3_600_000_000]),
)
adaptives: Final = st.tuples(_bucket_numbers(), st.sampled_from(CANDIDATES)).map(
    lambda drawn: Adaptive(min(drawn[0][0], 2**43), *drawn[0][1:], chosen=drawn[1])
)
concurrencies: Final = st.builds(
    Concurrency,
    counts(MAX_MEMBERS),
    st.sampled_from([1_000, 30_000_000, DAY_US]) | st.integers(1_000, 10_000),
)

ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",  # Midnight is skipped when summer time begins.
    "Asia/Beirut",  # The same, and 23:00 comes twice in autumn.
    "Atlantic/Azores",  # Midnight comes twice.
    "America/St_Johns",  # Clocks were set back at 00:01, to the day before.
    "Antarctica/Casey",  # The same at 02:00, by three hours.
    "Antarctica/Vostok",  # Set back by seven hours in 1994.
    "Australia/Lord_Howe",  # Summer time is half an hour.
    "Asia/Kathmandu",  # Quarter hours.
    "Pacific/Apia",  # 30 December 2011 never came.
    "Pacific/Kiritimati",  # The largest offset there is.
    "America/New_York",
)
calendars: Final = st.one_of(
    st.builds(Calendar, st.just("day"), st.sampled_from(ZONES)),
    st.builds(Calendar, st.just("week"), st.sampled_from(ZONES), st.integers(1, 7)),
    st.builds(Calendar, st.just("month"), st.sampled_from(ZONES), st.integers(1, 31)),
)
calendar_windows: Final = st.builds(CalendarWindow, counts(MAX_EXACT), calendar=calendars)

TURNING_POINTS_US: Final = tuple(
    seconds * 1_000_000
    for seconds in (
        759_981_600,  # Vostok, 1994-02-01: back by seven hours.
        1_162_092_660,  # St John's, 2006-10-29: back from 00:01.
        1_267_714_800,  # Casey, 2010-03-05: back by three hours.
        1_325_239_200,  # Apia, 2011-12-30: from the 29th straight to the 31st.
        1_541_300_400,  # São Paulo, 2018-11-04: midnight is skipped.
        1_679_781_600,  # Beirut, 2023-03-26, and all of the European Union three hours later.
        1_793_494_800,  # Azores, 2026-11-01 and a week after the end of summer time in Europe.
        1_806_454_800,  # Berlin, 2027-03-31: a few days after it began.
    )
)

LIMITS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "fixed_window": fixed_windows,
    "calendar_window": calendar_windows,
    "sliding_window": sliding_windows,
    "sliding_log": sliding_logs,
    "token_bucket": token_buckets,
    "exponential_backoff": backoffs,
    "adaptive": adaptives,
    "concurrency": concurrencies,
}
"""Every algorithm, calendar windows apart."""


def span_us(limit: Limit) -> int:
    """The length of time by which this limit thinks."""
    return limit.ttl_us if isinstance(limit, Concurrency) else limit.window_us


def most_at_once(limit: Limit) -> int:
    """The largest cost that can ever fit."""
    return limit.burst if isinstance(limit, TokenBucket) else limit.limit


# Stories.


def starts_us(limit: Limit) -> st.SearchStrategy[int]:
    """On a boundary, beside one, or anywhere."""
    span = span_us(limit)
    if isinstance(limit, CalendarWindow):
        begins = st.sampled_from(TURNING_POINTS_US)
    else:
        begins = st.just(EPOCH_US - EPOCH_US % span)
    offsets = st.sampled_from([0, 1, span - 1]) | st.integers(0, span - 1)
    return st.builds(int.__add__, begins, offsets)


def moves_us(limit: Limit, *, back: bool = True) -> st.SearchStrategy[int]:
    """How far the clock moves between two events."""
    span = span_us(limit)
    if isinstance(limit, CalendarWindow):
        exact = st.sampled_from([0, 1, 59_999_999, HOUR_US, 23 * HOUR_US, DAY_US, 25 * HOUR_US])
    else:
        exact = st.sampled_from([0, 0, 1, span - 1, span, span + 1])
    anywhere = st.integers(0, span // 8) | st.integers(0, 3 * span)
    forwards = exact | anywhere
    if not back:
        return forwards
    return st.one_of(forwards, forwards, forwards, forwards.map(int.__neg__))


def costs(limit: Limit) -> st.SearchStrategy[int]:
    """From nothing to one more than can ever fit."""
    most = most_at_once(limit)
    edges = st.sampled_from(sorted({0, 1, most // 2, max(0, most - 1), most, most + 1}))
    return st.integers(0, min(most + 1, 4)) | edges | st.integers(0, most + 1)


def events(
    limit: Limit, *verbs: str, back: bool = True, least: int = 0, most: int = 25
) -> st.SearchStrategy[list[Event]]:
    """What happens to a key, one event after the other."""
    huge = st.sampled_from([MAX_EXACT, MAX_EXACT // 2])

    def event(verb: str) -> st.SearchStrategy[Event]:
        cost = st.one_of(costs(limit), costs(limit), huge) if verb == "force" else costs(limit)
        return st.builds(
            Event, st.just(verb), moves_us(limit, back=back), cost, st.integers(0, most)
        )

    return st.lists(st.sampled_from(verbs).flatmap(event), min_size=least, max_size=most)


def stories(
    limits: st.SearchStrategy[Any], *verbs: str, back: bool = True, most: int = 25
) -> st.SearchStrategy[Story]:
    """A limit, a moment, and what happens from then on."""
    return limits.flatmap(
        lambda limit: st.builds(
            Story,
            st.just(limit),
            starts_us(limit),
            events(limit, *verbs, back=back, most=most),
        )
    )


def told(story: Story, state: State = None) -> list[Told]:
    """Play a story of takes, peeks and forced charges."""
    played = []
    now_us = story.start_us
    for verb, move_us, cost, _ in story.events:
        now_us = max(1, now_us + move_us)
        before = state
        if verb == "peek":
            answer = story.limit.peek(state, now_us, cost)
        else:
            state, answer = getattr(story.limit, verb)(state, now_us, cost)
        played.append(Told(verb, now_us, cost, before, state, answer))
    return played


def answers(played: list[Told]) -> list[Answer]:
    """What was answered, in order."""
    return [one.answer for one in played]


def ending(story: Story) -> tuple[State, int]:
    """The state a story leaves behind, and when."""
    played = told(story)
    return (played[-1].after, played[-1].now_us) if played else (None, story.start_us)


def copied(limit: Limit, state: State) -> State:
    """An independent copy of a state, so that two stories can go on from it."""
    return None if state is None else limit.decode(limit.encode(state))


def stays_denied(answer: Answer) -> bool:
    """Whether no waiting helps."""
    return answer[2] == NEVER
