"""Calendar periods: days, weeks and months as people know them, around every clock change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import given, strategies as st

from headgate.algorithms import NEVER, Calendar, CalendarWindow
from headgate.errors import UsageError

HOUR_US = 3_600_000_000
FIRST_US = 2 * 24 * HOUR_US
LAST_US = 4_102_444_800_000_000
"""From 3 January 1970, which is over wherever it began, to the end of 2099."""


def us(text: str) -> int:
    """An instant, in UTC, as microseconds since the epoch."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def bounds(calendar: Calendar, at: str) -> tuple[str, str, float]:
    """Start and end of the period in UTC, and its length in hours."""
    start_us, end_us = calendar.bounds_us(us(at))
    start, end = (datetime.fromtimestamp(one // 1_000_000, UTC) for one in (start_us, end_us))
    hours = (end - start) / timedelta(hours=1)
    return f"{start:%Y-%m-%d %H:%M}", f"{end:%Y-%m-%d %H:%M}", hours


@pytest.mark.parametrize(
    "zone, at, start, end, hours",
    [
        ("UTC", "2026-03-29 12:00", "2026-03-29 00:00", "2026-03-30 00:00", 24),
        # Summer time begins, and ends.
        ("Europe/Berlin", "2026-03-29 12:00", "2026-03-28 23:00", "2026-03-29 22:00", 23),
        ("Europe/Berlin", "2026-10-25 12:00", "2026-10-24 22:00", "2026-10-25 23:00", 25),
        # Half an hour of summer time.
        ("Australia/Lord_Howe", "2026-10-04 00:00", "2026-10-03 13:30", "2026-10-04 13:00", 23.5),
        ("Australia/Lord_Howe", "2026-04-05 00:00", "2026-04-04 13:00", "2026-04-05 13:30", 24.5),
        # Midnight is skipped: the day begins at one.
        ("America/Sao_Paulo", "2018-11-04 12:00", "2018-11-04 03:00", "2018-11-05 02:00", 23),
        ("Asia/Beirut", "2022-03-27 12:00", "2022-03-26 22:00", "2022-03-27 21:00", 23),
        # Midnight comes twice: the day begins with the first.
        ("Atlantic/Azores", "2026-10-25 12:00", "2026-10-25 00:00", "2026-10-26 01:00", 25),
        # Set back from 00:01 to the day before, whose evening then belongs to the new day.
        ("America/St_Johns", "2006-10-29 02:30", "2006-10-29 02:30", "2006-10-30 03:30", 25),
        ("America/St_Johns", "2006-10-29 03:00", "2006-10-29 02:30", "2006-10-30 03:30", 25),
        ("America/St_Johns", "2006-10-29 02:29", "2006-10-28 02:30", "2006-10-29 02:30", 24),
        # The same by three hours.
        ("Antarctica/Casey", "2010-03-04 15:30", "2010-03-04 13:00", "2010-03-05 16:00", 27),
        # 30 December 2011 never came.
        ("Pacific/Apia", "2011-12-30 09:00", "2011-12-29 10:00", "2011-12-30 10:00", 24),
        ("Pacific/Apia", "2011-12-30 11:00", "2011-12-30 10:00", "2011-12-31 10:00", 24),
    ],
)
def test_a_day_is_as_long_as_the_clocks_make_it(
    zone: str, at: str, start: str, end: str, hours: float
) -> None:
    """It begins at its first instant, and ends where the next one begins."""
    assert bounds(Calendar("day", zone), at) == (start, end, hours)


@pytest.mark.parametrize(
    "at, start, end",
    [
        ("2026-01-31 23:59", "2026-01-01 00:00", "2026-02-01 00:00"),
        ("2026-02-01 00:00", "2026-02-01 00:00", "2026-03-01 00:00"),
        ("2028-02-29 12:00", "2028-02-01 00:00", "2028-03-01 00:00"),
        ("2026-04-30 12:00", "2026-04-01 00:00", "2026-05-01 00:00"),
        ("2026-12-31 12:00", "2026-12-01 00:00", "2027-01-01 00:00"),
    ],
)
def test_a_month_is_a_month(at: str, start: str, end: str) -> None:
    """Not thirty days."""
    assert bounds(Calendar("month"), at)[:2] == (start, end)


@pytest.mark.parametrize(
    "anchor, at, start, end",
    [
        (31, "2026-01-31 00:00", "2026-01-31 00:00", "2026-02-28 00:00"),
        (31, "2026-02-27 23:59", "2026-01-31 00:00", "2026-02-28 00:00"),
        (31, "2026-02-28 00:00", "2026-02-28 00:00", "2026-03-31 00:00"),
        (31, "2026-04-30 00:00", "2026-04-30 00:00", "2026-05-31 00:00"),
        (30, "2028-02-29 00:00", "2028-02-29 00:00", "2028-03-30 00:00"),
        (15, "2026-01-14 23:59", "2025-12-15 00:00", "2026-01-15 00:00"),
    ],
)
def test_a_month_too_short_for_its_anchor_begins_on_its_last_day(
    anchor: int, at: str, start: str, end: str
) -> None:
    """As invoices do, and the next one is back on the anchor."""
    assert bounds(Calendar("month", anchor=anchor), at)[:2] == (start, end)


@pytest.mark.parametrize(
    "anchor, start, end",
    [
        (1, "2026-11-09 00:00", "2026-11-16 00:00"),
        (7, "2026-11-15 00:00", "2026-11-22 00:00"),
        (4, "2026-11-12 00:00", "2026-11-19 00:00"),
    ],
)
def test_a_week_begins_on_its_anchor(anchor: int, start: str, end: str) -> None:
    """1 is Monday; 15 November 2026 is a Sunday."""
    assert bounds(Calendar("week", anchor=anchor), "2026-11-15 12:00")[:2] == (start, end)


@given(
    zone=st.sampled_from(sorted(available_timezones())),
    period=st.sampled_from([("day", 1), ("week", 1), ("week", 4), ("month", 1), ("month", 31)]),
    at_us=st.integers(FIRST_US, LAST_US),
)
def test_periods_follow_each_other_without_gap_or_overlap(
    zone: str, period: tuple[str, int], at_us: int
) -> None:
    """An instant lies in its period, and the end of one is the start of the next."""
    calendar = Calendar(period[0], zone, period[1])
    start_us, end_us = calendar.bounds_us(at_us)
    assert start_us <= at_us < end_us
    assert calendar.bounds_us(start_us) == (start_us, end_us)
    assert calendar.bounds_us(end_us)[0] == end_us
    assert calendar.bounds_us(start_us - 1)[1] == start_us


@pytest.mark.parametrize(
    "zone",
    [
        "America/Argentina/San_Luis",
        "America/Goose_Bay",
        "Africa/Cairo",
        "Antarctica/Casey",
        "Asia/Beirut",
        "Asia/Gaza",
        "Atlantic/Azores",
        "Australia/Lord_Howe",
        "Europe/Berlin",
    ],
)
def test_every_hour_of_a_year_lies_in_the_day_after_the_one_before(zone: str) -> None:
    """In 2010 these had changes of every kind, some of them at midnight, some past it."""
    calendar = Calendar("day", zone)
    at_us, last_us = us("2010-01-01 00:30"), us("2010-12-31 00:30")
    start_us, end_us = calendar.bounds_us(at_us)
    while at_us < last_us:
        if at_us >= end_us:
            start_us, end_us = end_us, calendar.bounds_us(at_us)[1]
        assert calendar.bounds_us(at_us) == (start_us, end_us)
        at_us += HOUR_US


def test_a_calendar_window_counts_from_midnight_to_midnight() -> None:
    """100 a day in Berlin, on the day that has 23 hours."""
    limit = CalendarWindow(100, calendar=Calendar("day", "Europe/Berlin"))
    midnight_us = us("2026-03-28 23:00")
    state, last = limit.take(None, midnight_us + 22 * HOUR_US, 100)
    state, denied = limit.take(state, midnight_us + 23 * HOUR_US - 1, 1)
    state, next_day = limit.take(state, midnight_us + 23 * HOUR_US, 1)
    assert last == (True, 0, 0, HOUR_US, 0)
    assert denied == (False, 0, 1, 1, 0)
    assert next_day == (True, 99, 0, 24 * HOUR_US, 0)
    assert limit.peek(state, midnight_us, 101)[2] == NEVER


def test_a_quota_spent_before_clocks_were_set_back_past_midnight_stays_spent() -> None:
    """At 00:01 it was 23:01 again in St John's; the new day had begun all the same."""
    limit = CalendarWindow(10, calendar=Calendar("day", "America/St_Johns"))
    state, spent = limit.take(None, us("2006-10-29 02:30"), 10)
    assert spent == (True, 0, 0, 25 * HOUR_US, 0)
    assert limit.peek(state, us("2006-10-29 03:00"), 1)[:2] == (False, 0)


def test_calendars_with_other_periods_zones_or_anchors_are_kept_apart() -> None:
    """The limit is not part of the identity, so changing it keeps what was used."""
    limits = [
        CalendarWindow(limit, calendar=Calendar(*calendar))
        for limit in (1, 2)
        for calendar in (("day", "UTC", 1), ("month", "UTC", 1), ("month", "UTC", 2))
    ]
    assert [limit.identity for limit in limits] == 2 * [
        "fixed_window:day:UTC:1",
        "fixed_window:month:UTC:1",
        "fixed_window:month:UTC:2",
    ]


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "Europe", "\0"]
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    """The message says what a zone looks like."""
    with pytest.raises(UsageError, match=r"there is no time zone .*'Europe/Berlin'"):
        Calendar("day", zone)


@pytest.mark.parametrize("zone", [None, 5, b"UTC", [], 1.5, True])
def test_a_zone_that_is_no_text_is_refused(zone: object) -> None:
    """As an unknown one."""
    with pytest.raises(UsageError, match="there is no time zone"):
        Calendar("day", zone)  # type: ignore[arg-type]


@pytest.mark.parametrize("period", ["year", "", "Day", None, 1, []])
def test_an_unknown_period_is_refused(period: object) -> None:
    """The message lists those there are."""
    with pytest.raises(UsageError, match="a calendar period must be day, week or month, not"):
        Calendar(period)  # type: ignore[arg-type]
