"""Numbers that no limit can have are refused when it is built, in one way and with a clear message."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

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
from headgate.algorithms.base import MAX_EXACT, MAX_MEMBERS, MAX_WINDOW_US
from headgate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    Built = Callable[[Any], object]

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

LIMITS: dict[str, Built] = {
    "fixed_window": lambda limit: FixedWindow(limit, SECOND_US),
    "calendar_window": lambda limit: CalendarWindow(limit, calendar=Calendar("day")),
    "sliding_window": lambda limit: SlidingWindow(limit, SECOND_US),
    "sliding_log": lambda limit: SlidingLog(limit, SECOND_US),
    "token_bucket": lambda limit: TokenBucket(limit, SECOND_US),
    "exponential_backoff": lambda limit: ExponentialBackoff(limit, SECOND_US),
    "adaptive": lambda limit: Adaptive(limit, SECOND_US),
    "concurrency": Concurrency,
}
WINDOWS: dict[str, Built] = {
    "fixed_window": lambda window_us: FixedWindow(10, window_us),
    "sliding_window": lambda window_us: SlidingWindow(10, window_us),
    "sliding_log": lambda window_us: SlidingLog(10, window_us),
    "token_bucket": lambda window_us: TokenBucket(10, window_us),
    "exponential_backoff": lambda window_us: ExponentialBackoff(10, window_us),
    "adaptive": lambda window_us: Adaptive(10, window_us),
}
BURSTS: dict[str, Built] = {
    "token_bucket": lambda burst: TokenBucket(10, SECOND_US, burst),
    "adaptive": lambda burst: Adaptive(10, SECOND_US, burst),
}
OTHERS: dict[str, Built] = {
    "denials_per_level": lambda n: ExponentialBackoff(10, SECOND_US, denials_per_level=n),
    "max_level": lambda n: ExponentialBackoff(10, SECOND_US, max_level=n),
    "retry_us": lambda n: ExponentialBackoff(10, SECOND_US, retry_us=n),
    "ttl": lambda n: Concurrency(10, n),
    "anchor of a week": lambda n: Calendar("week", anchor=n),
    "anchor of a month": lambda n: Calendar("month", anchor=n),
}

NOT_WHOLE: dict[str, object] = {
    "1.5": 1.5,
    "10.0": 10.0,
    "minus zero": -0.0,
    "text": "10",
    "arabic digits": "١٢",
    "bytes": b"10",
    "true": True,
    "false": False,
    "none": None,
    "not a number": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "decimal": Decimal(10),
    "fraction": Fraction(10),
    "complex": 10j,
    "list": [10],
}
OUT_OF_RANGE: dict[str, int] = {
    "minus one": -1,
    "2**53": 2**53,
    "10**30": 10**30,
    "5000 digits": 10**5_000,
    "minus 5000 digits": -(10**5_000),
}


def rows(builders: dict[str, Built], values: dict[str, Any]) -> pytest.MarkDecorator:
    """Every builder with every value; pytest itself cannot print the longest ones."""
    return pytest.mark.parametrize(
        "build, value",
        [
            pytest.param(build, value, id=f"{name}-{described}")
            for name, build in builders.items()
            for described, value in values.items()
        ],
    )


def refusal(build: Built, value: object) -> str:
    """The message with which a value is refused."""
    with pytest.raises(UsageError) as caught:
        build(value)
    assert type(caught.value) is UsageError
    message = str(caught.value)
    assert len(message) < 200
    return message


@rows(LIMITS, NOT_WHOLE)
def test_a_limit_is_a_whole_number(build: Built, value: object) -> None:
    """Nothing is converted: what looks like a number may be a mistake in a file."""
    message = refusal(build, value)
    assert message.startswith("limit")
    assert message.endswith(f"must be a whole number, not {value!r}")


@rows(LIMITS, OUT_OF_RANGE)
def test_a_limit_is_neither_negative_nor_too_large_to_be_counted(build: Built, value: int) -> None:
    """The message names the range."""
    message = refusal(build, value)
    assert message.startswith("limit")
    assert "must be between 0 and " in message


@pytest.mark.parametrize(
    "name, most",
    [
        ("fixed_window", MAX_EXACT),
        ("calendar_window", MAX_EXACT),
        ("exponential_backoff", MAX_EXACT),
        ("sliding_window", 2**43),
        ("sliding_log", MAX_MEMBERS),
        ("concurrency", MAX_MEMBERS),
        ("token_bucket", SECOND_US),
        ("adaptive", SECOND_US),
    ],
)
def test_a_limit_goes_up_to_its_bound(name: str, most: int) -> None:
    """Zero, which denies everything, and the largest are accepted; one more is not."""
    LIMITS[name](0)
    LIMITS[name](most)
    assert str(most + 1) in refusal(LIMITS[name], most + 1)


@rows(WINDOWS, NOT_WHOLE)
def test_a_window_is_a_whole_number(build: Built, value: object) -> None:
    """Of microseconds."""
    expected = f"a window must be a whole number of microseconds, not {value!r}"
    assert refusal(build, value) == expected


@rows(WINDOWS, OUT_OF_RANGE | {"0": 0, "999 us": 999, "366 days and more": MAX_WINDOW_US + 1})
def test_a_window_lasts_from_a_millisecond_to_a_leap_year(build: Built, value: int) -> None:
    """Zero would be a division, a hundred years would not fit a store's time to live."""
    message = refusal(build, value)
    assert message.startswith("a window must last between 1 ms and 366 days, not ")
    shown = {-1: "-0.000001", 0: "0", 999: "0.000999", MAX_WINDOW_US + 1: "31622400.000001"}
    assert message.endswith(f"not {shown[value]} seconds" if value in shown else " microseconds")


@pytest.mark.parametrize("build", WINDOWS.values(), ids=WINDOWS)
def test_the_shortest_and_the_longest_window_are_accepted(build: Built) -> None:
    """Both ends belong to the range."""
    for window_us in (1_000, MAX_WINDOW_US):
        built: Any = build(window_us)
        assert built.window_us == window_us


@rows(BURSTS, NOT_WHOLE)
def test_a_burst_is_a_whole_number(build: Built, value: object) -> None:
    """As a limit is."""
    assert refusal(build, value) == f"burst must be a whole number, not {value!r}"


@rows(BURSTS, OUT_OF_RANGE)
def test_a_burst_is_neither_negative_nor_too_large_to_be_counted(build: Built, value: int) -> None:
    """The message names the range."""
    assert refusal(build, value).startswith("burst must be between 0 and ")


@pytest.mark.parametrize("build", BURSTS.values(), ids=BURSTS)
def test_a_burst_flows_back_within_what_can_be_counted(build: Built) -> None:
    """About 407 days; the message says how long it would take and what to do."""
    most = MAX_EXACT // 256 // 100_000
    build(most)
    assert refusal(build, most + 1) == (
        f"a burst of {most + 1} would take {(most + 1) * 100_000} us to refill, which is more "
        f"than {MAX_EXACT // 256}: lower the burst"
    )


def test_a_limit_of_zero_has_no_burst() -> None:
    """Nothing would ever flow back into it."""
    message = "a limit of 0 denies everything and cannot have a burst"
    assert refusal(lambda burst: TokenBucket(0, SECOND_US, burst), 5) == message


def test_a_bucket_gives_at_most_a_unit_a_microsecond() -> None:
    """The message says what to use instead."""
    assert refusal(lambda limit: TokenBucket(limit, SECOND_US), SECOND_US + 1) == (
        "token_bucket allows at most one unit per microsecond, and 1000001 in 1000000 us is more: "
        "count in larger units, or use sliding_window"
    )


@rows(OTHERS, NOT_WHOLE | OUT_OF_RANGE | {"0": 0})
def test_the_other_numbers_are_whole_and_in_range(build: Built, value: object) -> None:
    """The message begins with what it is about, and names the range if that is the fault."""
    message = refusal(build, value)
    name = next(name for name, builder in OTHERS.items() if builder is build)
    assert name in message
    assert ("whole number" in message) != ("must be between 1" in message)


def ordinary(limit: int, window_us: int) -> list[Limit]:
    """What is built of an ordinary rate."""
    return [
        FixedWindow(limit, window_us),
        SlidingWindow(limit, window_us),
        TokenBucket(limit, window_us),
        ExponentialBackoff(limit, window_us),
        Adaptive(limit, window_us),
    ]


@pytest.mark.parametrize(
    "limits",
    [
        ordinary(1_000_000, DAY_US),
        ordinary(700_000, SECOND_US),
        ordinary(1_000_000, SECOND_US),
        ordinary(1, MAX_WINDOW_US),
        [FixedWindow(10**12, DAY_US), SlidingWindow(10**12, DAY_US)],
        [SlidingLog(100_000, DAY_US), Concurrency(100_000)],
    ],
    ids=["a million a day", "700,000 a second", "one a us", "one a year", "10**12 a day", "a log"],
)
def test_ordinary_limits_are_not_refused(limits: list[Limit]) -> None:
    """And work: the first unit passes, and all but it are left."""
    for limit in limits:
        _, answer = limit.take(None, 100 * DAY_US, 1)
        assert answer[:3] == (True, limit.limit - 1, 0)
