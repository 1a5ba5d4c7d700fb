"""Rates: what people write, what it means, and what is refused."""

from __future__ import annotations

import contextlib
import math
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from headgate import (
    Adaptive,
    Calendar,
    CalendarWindow,
    FixedWindow,
    Limit,
    Rate,
    SlidingWindow,
    TokenBucket,
    UsageError,
    rate as rate_module,
)
from headgate.algorithms import ALGORITHMS
from headgate.rate import limits_of

MINUTE = 60_000_000


@pytest.mark.parametrize(
    "text, limit, window_us, burst",
    [
        ("10/minute", 10, MINUTE, None),
        ("10 / minute", 10, MINUTE, None),
        ("10 per minute", 10, MINUTE, None),
        ("10 PER Minute", 10, MINUTE, None),
        ("10/2minutes", 10, 2 * MINUTE, None),
        ("10 per 2 hours", 10, 120 * MINUTE, None),
        ("5 per 300s", 5, 5 * MINUTE, None),
        ("100/minute burst 20", 100, MINUTE, 20),
        ("100/m  burst   20", 100, MINUTE, 20),
        ("1/s", 1, 1_000_000, None),
        ("1/sec", 1, 1_000_000, None),
        ("1/250ms", 1, 250_000, None),
        ("1/1500us", 1, 1_500, None),
        ("1/min", 1, MINUTE, None),
        ("1/h", 1, 60 * MINUTE, None),
        ("1/2 hrs", 1, 120 * MINUTE, None),
        ("1/d", 1, 1_440 * MINUTE, None),
        ("1/week", 1, 10_080 * MINUTE, None),
        ("0/second", 0, 1_000_000, None),
        ("1000000/day", 1_000_000, 1_440 * MINUTE, None),
        ("700000/second", 700_000, 1_000_000, None),
    ],
)
def test_rates_are_read(text: str, limit: int, window_us: int, burst: int | None) -> None:
    rate = Rate.parse(text)
    assert (rate.limit, rate.window_us, rate.burst) == (limit, window_us, burst)


@pytest.mark.parametrize(
    "text, calendar",
    [
        ("10/calendar day", Calendar("day")),
        ("10 per calendar week anchor 7", Calendar("week", anchor=7)),
        ("10/calendar month in Europe/Berlin", Calendar("month", "Europe/Berlin")),
        (
            "10/calendar month in America/Argentina/Ushuaia anchor 15",
            Calendar("month", "America/Argentina/Ushuaia", 15),
        ),
        ("10/calendar day in Etc/GMT+5", Calendar("day", "Etc/GMT+5")),
    ],
)
def test_calendar_rates_are_read(text: str, calendar: Calendar) -> None:
    assert Rate.parse(text).calendar == calendar


@pytest.mark.parametrize("separator", [";", " ; ", ",", "|"])
def test_several_rates_stand_in_one_text(separator: str) -> None:
    rates = Rate.parse_all(f"1/second{separator}100/hour burst 5")
    assert rates == (Rate(1, 1), Rate(100, 3600, 5))


rates = st.one_of(
    st.builds(
        lambda limit, window_us, burst: Rate(limit, timedelta(microseconds=window_us), burst),
        st.integers(0, 2**53 - 1),
        st.integers(1_000, 366 * 1_440 * MINUTE) | st.sampled_from([MINUTE, 3600_000_000]),
        st.none() | st.integers(1, 2**53 - 1),
    ),
    st.builds(
        lambda limit, calendar: Rate(limit, calendar=calendar),
        st.integers(0, 2**53 - 1),
        st.builds(
            Calendar, st.sampled_from(["week", "month"]), st.sampled_from(["UTC", "Asia/Tokyo"])
        ),
    ),
)


@given(rates)
def test_text_and_rate_are_two_ways_to_say_the_same(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


@pytest.mark.parametrize(
    "rate, text",
    [
        (Rate(100, 60, 20), "100/minute burst 20"),
        (Rate(5, 300), "5/5 minutes"),
        (Rate(4, 0.25), "4/250 ms"),
        (Rate(1, 90), "1/90 seconds"),
        (Rate(1, 0.0015), "1/1500 us"),
        (Rate(7, timedelta(weeks=2)), "7/2 weeks"),
        (
            Rate(9, calendar=Calendar("month", "Asia/Tokyo", 15)),
            "9/calendar month in Asia/Tokyo anchor 15",
        ),
    ],
)
def test_a_rate_is_written_in_the_largest_unit(rate: Rate, text: str) -> None:
    assert str(rate) == text


@given(rates)
def test_what_repr_shows_can_be_pasted(rate: Rate) -> None:
    assert repr(rate) == f"Rate.parse({str(rate)!r})"
    assert eval(repr(rate)) == rate  # noqa: S307 - our own text


@pytest.mark.parametrize("period, days", [("day", 1), ("week", 7), ("month", 31)])
def test_a_calendar_period_reports_its_nominal_length(period: str, days: int) -> None:
    """Whatever a clock change or February makes of it."""
    rate = Rate(5, calendar=Calendar(period, "Europe/Berlin"))
    assert rate.window == days * 86_400
    assert limits_of(rate)[0].window_us == days * 86_400_000_000


def test_the_algorithms_that_an_error_lists_can_count_a_rate() -> None:
    with pytest.raises(UsageError, match="there is no algorithm 'magic'") as caught:
        limits_of("10/minute", "magic")
    named = str(caught.value).partition("the algorithms are ")[2].split(", ")
    assert named == sorted(set(ALGORITHMS) - {"concurrency"})
    assert all(limits_of("10/minute", name) for name in named)


@pytest.mark.parametrize("algorithm", [["token_bucket"], 5, b"token_bucket", {}])
def test_an_algorithm_is_named_by_text(algorithm: str) -> None:
    with pytest.raises(UsageError, match="an algorithm must be a string"):
        limits_of("10/minute", algorithm)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "is not a rate"),
        (";", "is not a rate"),
        ("10", "has no time unit; write '10/minute'"),
        ("10/", "is not a rate"),
        ("/minute", "is not a rate"),
        ("ten/minute", "is not a rate"),
        ("-1/minute", "is not a rate"),
        ("1.5/minute", "has a fraction, but units are whole; write '3/2 minute'"),
        ("1e3/minute", "is not a rate"),
        ("1_000/minute", "is not a rate"),
        ("١٢/minute", "is not a rate"),
        ("0x10/minute", "is not a rate"),
        ("nan/minute", "is not a rate"),
        ("inf/minute", "is not a rate"),
        ("10/1.5s", "has a fraction, but units are whole; write '20/3 s'"),
        ("10/0.0s", "is not a rate"),
        ("10/1m30", "is not a rate"),
        ("10/minute burst", "is not a rate"),
        ("10/minute burst -5", "is not a rate"),
        ("10/minute burst 5 burst 6", "is not a rate"),
        ("10/minute;", "is not a rate"),
        ("99999999999999999/minute", "is not a rate"),
        ("10/fortnight", "there is no time unit 'fortnight'"),
        ("10/month", "has no fixed length"),
        ("10/2 years", "has no fixed length"),
        ("10/0s", "between 1 ms and 366 days"),
        ("10/999us", "between 1 ms and 366 days"),
        ("10/367 days", "between 1 ms and 366 days"),
        ("10/minute burst 0", "burst must be between 1"),
        ("9999999999999999/minute", "limit must be between 0"),
        ("10/calendar year", "day, week or month"),
        ("10/calendar day in Mars/Olympus", "no time zone"),
        ("10/calendar day in ../../etc/passwd", "is not a rate"),
        ("10/calendar week anchor 8", "anchor of a week"),
        ("10/calendar month anchor 0", "anchor of a month"),
        ("10/minute; 20/60s", "same window twice"),
        ("1/second; 100/hour", "has 2 rates"),
        ("1/second" * 1000, "at most 1000 characters"),
    ],
)
def test_what_is_not_a_rate_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Rate.parse(text)


@given(st.text(max_size=60))
def test_no_text_leads_to_any_other_error(text: str) -> None:
    rates: tuple[Rate, ...] = ()
    with contextlib.suppress(UsageError):
        rates = Rate.parse_all(text)
    assert tuple(Rate.parse(str(rate)) for rate in rates) == rates


@pytest.mark.parametrize("limit", [-1, 1.5, "10", True, None, math.nan, math.inf, 2**53])
def test_a_limit_is_a_whole_number(limit: int) -> None:
    with pytest.raises(UsageError, match="limit"):
        Rate(limit, 60)


@pytest.mark.parametrize(
    "window",
    [
        *[
            None,
            0,
            -1,
            -0.0,
            0.0005,
            367 * 86_400,
            math.nan,
            math.inf,
            -math.inf,
            1e308,
            "60",
            True,
        ],
        *[timedelta(0), timedelta(days=400), 10**30, 10**400, -(10**400)],
        pytest.param(10**5_000, id="more digits than Python prints"),
    ],
)
def test_a_window_is_between_a_millisecond_and_a_year(window: float) -> None:
    with pytest.raises(UsageError, match="window"):
        Rate(1, window)


@pytest.mark.parametrize("burst", [0, -1, 1.5, "10", True, math.nan, 2**53])
def test_a_burst_is_a_whole_number_from_1(burst: int) -> None:
    with pytest.raises(UsageError, match="burst"):
        Rate(1, 60, burst)


def test_a_calendar_rate_has_no_window() -> None:
    with pytest.raises(UsageError, match="cannot have a window or a burst"):
        Rate(1, 60, calendar=Calendar("day"))


@pytest.mark.parametrize(
    "rate, algorithm, limit",
    [
        ("10/minute", None, SlidingWindow(10, MINUTE)),
        ("10/minute burst 5", None, TokenBucket(10, MINUTE, 5)),
        ("10/minute", "token_bucket", TokenBucket(10, MINUTE, 10)),
        ("10/minute burst 5", "adaptive", Adaptive(10, MINUTE, 5)),
        ("10/minute", "fixed_window", FixedWindow(10, MINUTE)),
        ("10/calendar day", None, CalendarWindow(10, calendar=Calendar("day"))),
    ],
)
def test_a_rate_and_an_algorithm_make_a_limit(
    rate: str, algorithm: str | None, limit: Limit
) -> None:
    assert limits_of(rate, algorithm) == (limit,)


def test_a_rate_is_read_once() -> None:
    """The second look-up finds the very same limit."""
    assert limits_of("123/minute")[0] is limits_of("123/minute")[0]


@pytest.mark.parametrize(
    "rate, algorithm, reason",
    [
        ("10/minute", "magic", "there is no algorithm 'magic'"),
        ("10/minute", "", "no algorithm"),
        ("10/minute burst 5", "sliding_log", "has no burst"),
        ("10/calendar day", "token_bucket", "counted by fixed_window"),
        ("200000/minute", "sliding_log", "between 0 and 100000"),
        ("2000000/second", "token_bucket", "one unit per microsecond"),
        ("1/week burst 9007199254740991", None, "lower the burst"),
        (Rate(2**44, 60), None, "limit must be between"),
    ],
)
def test_a_rate_that_an_algorithm_cannot_count_is_refused(
    rate: str, algorithm: str | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        limits_of(rate, algorithm)


def test_the_cache_of_rates_is_bounded_in_count_and_in_bytes() -> None:
    """A text of a thousand characters stands for a hundred limits: sixteen thousand of these would be a gigabyte."""
    many = "; ".join(f"9/{number}s" for number in range(1, 100))
    for number in range(400):
        limits_of(f"{many}; 9/{number + 200}s")
        assert (
            sum(len(limits) for limits in rate_module._known.values()) * rate_module.LIMIT_BYTES
            <= 17_000_000
        )
    for number in range(20_000):
        limits_of(f"{number}/minute")
        assert len(rate_module._known) <= rate_module.MAX_KNOWN
