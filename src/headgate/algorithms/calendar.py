"""Calendar periods: days, weeks and months as people and invoices know them.

Months have their real length, not 30 days; a day on which the clocks change has 23 or 25 hours. A period is defined by
its two boundaries in microseconds, which are computed here, in Python, with the time zone database. Algorithms and
stores only compare times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .base import refuse, require_whole

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LAST_ANCHOR: Final = {"day": 1, "week": 7, "month": 31}
NOMINAL_US: Final = {"day": 86_400_000_000, "week": 604_800_000_000, "month": 2_678_400_000_000}


@dataclass(frozen=True, slots=True)
class Calendar:
    """A repeating period: `day`, `week` or `month`, in a time zone, from an anchor day on.

    The anchor is the day a period begins on: 1 to 7 in a week (1 is Monday), 1 to 31 in a month. A
    month too short for its anchor begins on its last day, as invoices do.
    """

    period: str
    tz: str = "UTC"
    anchor: int = 1
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _last: list[tuple[int, int]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: [(0, 0)]
    )

    def __post_init__(self) -> None:
        if self.period not in tuple(LAST_ANCHOR):
            refuse(f"a calendar period must be day, week or month, not {self.period!r}")
        require_whole(f"the anchor of a {self.period}", self.anchor, 1, LAST_ANCHOR[self.period])
        object.__setattr__(self, "_zone", _zone(self.tz))

    @property
    def nominal_us(self) -> int:
        """The nominal length of the period: 24 hours, 7 days or 31 days. Only `bounds_us` is exact."""
        return NOMINAL_US[self.period]

    def bounds_us(self, now_us: int) -> tuple[int, int]:
        """The start and the end of the period that `now_us` lies in; the end is not part of it."""
        bounds = self._last[0]  # One list item, replaced as a whole, so threads need no lock.
        if not bounds[0] <= now_us < bounds[1]:
            bounds = self._last[0] = self._work_out(now_us)
        return bounds

    def _work_out(self, now_us: int) -> tuple[int, int]:
        today = datetime.fromtimestamp(now_us // 1_000_000, self._zone).date()
        first = self._first_day(today)
        following = self._first_day_after(first)
        if self._midnight_us(following) <= now_us:
            # Clocks were set back past midnight; the period that had already begun continues.
            first, following = following, self._first_day_after(following)
        return self._midnight_us(first), self._midnight_us(following)

    def _first_day(self, today: date) -> date:
        if self.period == "day":
            return today
        if self.period == "week":
            return today - timedelta(days=(today.isoweekday() - self.anchor) % 7)
        this_month = _day_of_month(today.year, today.month, self.anchor)
        if this_month <= today:
            return this_month
        before = today.replace(day=1) - timedelta(days=1)
        return _day_of_month(before.year, before.month, self.anchor)

    def _first_day_after(self, first: date) -> date:
        if self.period == "month":
            following = first.replace(day=1) + timedelta(days=32)
            return _day_of_month(following.year, following.month, self.anchor)
        return first + timedelta(days=1 if self.period == "day" else 7)

    def _midnight_us(self, day: date) -> int:
        """The first instant of `day`. Where clocks skip midnight, the day begins after the gap."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return int(midnight.astimezone(UTC).timestamp()) * 1_000_000


def _day_of_month(year: int, month: int, day: int) -> date:
    """That day, or the last one of a month that is too short."""
    following = date(year, month, 1) + timedelta(days=32)
    last = following.replace(day=1) - timedelta(days=1)
    return last if day > last.day else last.replace(day=day)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        refuse(f"there is no time zone {name!r}; use a name such as 'Europe/Berlin' or 'UTC'")
