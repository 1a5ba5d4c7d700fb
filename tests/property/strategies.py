"""What the property tests are fed: limits of every kind, and stories of what happens to one key.

A story is a list of events, each after some move of the clock. Moves and costs are drawn around the
numbers at which things change (the window, the limit, one more, one less), because random numbers
would almost never hit them.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple, TypeVar

from hypothesis import settings, strategies as st

from headgate.algorithms import (
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
from headgate.algorithms.base import (
    MAX_EXACT,
    MAX_LEAD_US,
    MAX_MEMBERS,
    MAX_WINDOW_US,
    MIN_WINDOW_US,
)

T = TypeVar("T")

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


def examples(factor: float) -> settings:
    """More examples than the profile says, or fewer where each algorithm gets its own."""
    return settings(max_examples=round(factor * settings().max_examples))


# Limits.

windows_us: Final = st.sampled_from(
    [MIN_WINDOW_US, 1_009, 1_000_000, 60_000_000, DAY_US, MAX_WINDOW_US]
) | st.integers(MIN_WINDOW_US, 10_000_000)


def counts(most: int) -> st.SearchStrategy[int]:
    """Small numbers, where most happens, and the largest that are possible."""
    small = st.sampled_from([0, 1, 2, 3, 10]) | st.integers(0, min(100, most))
    return small | small | st.sampled_from([most, most - 1, most // 3])


def _bucket_numbers(most: int = MAX_EXACT) -> st.SearchStrategy[tuple[int, int, int]]:
    """Limit, window and burst; 0 stands for a burst as large as the limit."""

    def with_limit(window_us: int) -> st.SearchStrategy[tuple[int, int, int]]:
        return counts(min(most, window_us)).flatmap(lambda limit: with_burst(limit, window_us))

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
adaptives: Final = st.tuples(_bucket_numbers(2**43), st.sampled_from(CANDIDATES)).map(
    lambda drawn: Adaptive(*drawn[0], chosen=drawn[1])
)
concurrencies: Final = st.builds(
    Concurrency,
    counts(MAX_MEMBERS),
    st.sampled_from([1_000, 30_000_000, DAY_US]) | st.integers(1_000, 10_000),
)
few_slots: Final = st.builds(Concurrency, st.integers(1, 6))
quick_backoffs: Final = st.builds(
    ExponentialBackoff,
    st.integers(1, 5),
    windows_us,
    denials_per_level=st.integers(1, 3),
    max_level=st.integers(1, 4),
)
"""Those that reach the top, and a cool-down, after a few denials."""

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
        760_035_600,  # Vostok, 1994-02-01: back by seven hours.
        1_162_089_060,  # St John's, 2006-10-29: back from 00:01.
        1_267_714_800,  # Casey, 2010-03-05: back by three hours.
        1_325_239_200,  # Apia, 2011-12-30: from the 29th straight to the 31st.
        1_541_300_400,  # São Paulo, 2018-11-04: midnight is skipped.
        1_648_332_000,  # Beirut, 2022-03-27: the same.
        1_792_890_000,  # Azores and Berlin, 2026-10-25: back by an hour.
        1_791_041_400,  # Lord Howe, 2026-10-04: forward by half an hour.
        1_806_195_600,  # Berlin, 2027-03-28: forward by an hour.
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
    if isinstance(limit, Adaptive):
        return most_at_once(limit.candidates[CANDIDATES.index(limit.chosen)])
    return limit.burst if isinstance(limit, TokenBucket) else limit.limit


# Stories. They are drawn as small numbers without a unit, which Hypothesis does quickly, and which get
# their meaning from the limit afterwards.


class Move(NamedTuple):
    """How far the clock moves: so many spans, 1/4096 spans, and microseconds."""

    spans: int
    parts: int
    us: int
    back: bool


class Amount(NamedTuple):
    """A cost: so many 1/64 of what can fit at all, and so many units."""

    parts: int
    units: int


class Draft(NamedTuple):
    """An event without a limit."""

    verb: str
    move: Move
    amount: Amount
    which: int


_PARTS: Final = (*(0,) * 12, 1, 3, 64, 100, 512, 777, 1365, 2048, 2500, 3071, 3333, 4000, 4095)
_FORWARDS: Final = [
    Move(spans, parts, us, back=False)
    for spans, parts, us in product((0, 0, 0, 1, 1, 2, 3), _PARTS, (0, 1, -1))
]
_STAY: Final = Move(0, 0, 0, back=False)
_AROUND_A_MINUTE: Final = [Move(0, 0, MAX_LEAD_US + us, back=False) for us in (-1, 0, 1, 5)]
"""As far as a key's time is believed; a key's time is often a little ahead of the last event."""
_BACKWARDS: Final = [move._replace(back=True) for move in (*_FORWARDS, *60 * _AROUND_A_MINUTE)]
_AMOUNTS: Final = [Amount(*one) for one in product((0, 0, 0, 64, 64, 32, 1), (1, 0, 2, 3, -1))]
HUGE: Final = Amount(65, 0)
"""More than any limit; only what is charged by force can be so much."""


def moved_us(move: Move, limit: Limit) -> int:
    """The move in microseconds; forwards unless it says otherwise."""
    if move.us >= MAX_LEAD_US - 1:
        move_us = move.us
    elif isinstance(limit, CalendarWindow):  # A day may have 23 or 25 hours, and all matter.
        move_us = move.spans * DAY_US + move.us * HOUR_US + move.parts // 8 * 60_000_000
    else:
        span = span_us(limit)
        move_us = move.spans * span + move.parts * span // 4096 + move.us
    return -max(0, move_us) if move.back else max(0, move_us)


def _cost(verb: str, amount: Amount, limit: Limit) -> int:
    """From nothing to one more than can ever fit."""
    if amount == HUGE and verb == "force":
        return MAX_EXACT
    most = most_at_once(limit)
    return max(0, min(amount.parts * most // 64 + amount.units, most + 1))


def _story(limit: Limit, start: Move, drafts: list[Draft]) -> Story:
    return Story(limit, _start_us(limit, start), on(limit, drafts))


def _start_us(limit: Limit, start: Move) -> int:
    """On a boundary, beside one, or anywhere."""
    if isinstance(limit, CalendarWindow):
        begin_us = TURNING_POINTS_US[start.parts % len(TURNING_POINTS_US)]
    else:
        begin_us = EPOCH_US - EPOCH_US % span_us(limit)
    return begin_us + moved_us(start, limit)


def on(limit: Limit, drafts: list[Draft]) -> list[Event]:
    """What the drafts mean under that limit."""
    return [
        Event(verb, moved_us(move, limit), _cost(verb, amount, limit), which)
        for verb, move, amount, which in drafts
    ]


def one_of_many(these: list[T]) -> st.SearchStrategy[T]:
    """As `sampled_from`, which would name every one of them when it describes itself."""
    return st.integers(0, len(these) - 1).map(these.__getitem__)


@cache
def drafts(*verbs: str, back: bool = True, most: int = 30) -> st.SearchStrategy[list[Draft]]:
    """What happens to a key; half of the lists are long, because much needs several steps."""
    moves = 4 * _FORWARDS + _BACKWARDS if back else _FORWARDS
    amounts = [*_AMOUNTS, HUGE, HUGE] if "force" in verbs else _AMOUNTS
    draft = st.tuples(
        st.sampled_from(verbs),
        st.just(_STAY) | one_of_many(moves),
        one_of_many(amounts),
        st.integers(0, 30),
    ).map(Draft._make)
    return st.lists(draft, max_size=most) | st.lists(draft, min_size=most // 2, max_size=most)


def stories(
    limits: st.SearchStrategy[Any], *verbs: str, back: bool = True, most: int = 30
) -> st.SearchStrategy[Story]:
    """A limit, a moment, and what happens from then on."""
    return st.builds(_story, limits, one_of_many(_FORWARDS), drafts(*verbs, back=back, most=most))


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
