"""A limit is a value: told by what it was made of, never changed, and the same after a copy."""

from __future__ import annotations

import copy
import pickle

import pytest

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

SECOND_US = 1_000_000

LIMITS: dict[str, Limit] = {
    "FixedWindow(limit=3, window_us=1000000)": FixedWindow(3, SECOND_US),
    "CalendarWindow(limit=3, calendar=Calendar(period='week', tz='UTC', anchor=2))": CalendarWindow(
        3, calendar=Calendar("week", anchor=2)
    ),
    "SlidingWindow(limit=3, window_us=1000000)": SlidingWindow(3, SECOND_US),
    "SlidingLog(limit=3, window_us=1000000)": SlidingLog(3, SECOND_US),
    "TokenBucket(limit=3, window_us=1000000, burst=3)": TokenBucket(3, SECOND_US),
    (
        "ExponentialBackoff(limit=3, window_us=1000000, denials_per_level=10, max_level=5, "
        "retry_us=1000000)"
    ): ExponentialBackoff(3, SECOND_US),
    "Adaptive(limit=3, window_us=1000000, burst=3, chosen='sliding_window')": Adaptive(
        3, SECOND_US
    ),
    "Concurrency(limit=3, ttl_us=30000000)": Concurrency(3),
}

every_limit = pytest.mark.parametrize("shown", LIMITS, ids=lambda shown: shown.partition("(")[0])


@every_limit
def test_a_limit_prints_as_what_it_was_made_of(shown: str) -> None:
    assert repr(LIMITS[shown]) == shown


@every_limit
@pytest.mark.parametrize("name", ["limit", "window_us", "identity", "made_of"])
def test_a_limit_is_never_changed(shown: str, name: str) -> None:
    limit = LIMITS[shown]
    before = getattr(limit, name)
    with pytest.raises(AttributeError, match="never changed"):
        setattr(limit, name, before)
    with pytest.raises(AttributeError, match="never changed"):
        delattr(limit, name)
    assert getattr(limit, name) == before


@every_limit
def test_a_copy_is_equal_and_counts_alike(shown: str) -> None:
    limit = LIMITS[shown]
    pickled = pickle.loads(pickle.dumps(limit))  # noqa: S301 - our own bytes
    for twin in (copy.copy(limit), copy.deepcopy(limit), pickled):
        assert twin == limit
        assert hash(twin) == hash(limit)
        assert twin.identity == limit.identity
        assert twin.take(None, 5 * SECOND_US, 2)[1] == limit.take(None, 5 * SECOND_US, 2)[1]


def test_limits_differ_by_any_number_and_by_their_algorithm() -> None:
    different: list[object] = [
        *LIMITS.values(),
        FixedWindow(4, SECOND_US),
        FixedWindow(3, 2 * SECOND_US),
        TokenBucket(3, SECOND_US, burst=4),
        Adaptive(3, SECOND_US, chosen="token_bucket"),
        ExponentialBackoff(3, SECOND_US, max_level=4),
        (3, SECOND_US),
    ]
    assert len(set(different)) == len(different)
