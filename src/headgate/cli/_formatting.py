"""Numbers, lengths of time and dates, as a person would write them."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

US_PER_SECOND: Final = 1_000_000
MINUTE_US: Final = 60 * US_PER_SECOND
SMALL_UNITS: Final = (
    (1, 1_000, "µs"),
    (1_000, US_PER_SECOND, "ms"),
    (US_PER_SECOND, MINUTE_US, "s"),
)
"""`(unit, largest value, name)`: below a minute a length is one decimal number."""
LARGE_UNITS: Final = (
    (24 * 60 * MINUTE_US, 60 * MINUTE_US, "d", "h"),
    (60 * MINUTE_US, MINUTE_US, "h", "min"),
    (MINUTE_US, US_PER_SECOND, "min", "s"),
)
"""From a minute on it is a number of units and a number of the next smaller ones."""
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""Not from `strftime`, which would follow the locale in the middle of an English sentence."""


def count(amount: int, noun: str) -> str:
    """`1 unit`, `1,000 units`."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def number(amount: int) -> str:
    """A number in full, unless it is too long to read: `1,000,000`, `9.01P`."""
    return f"{amount:,}" if amount < 10**12 else short(amount)


def short(amount: int) -> str:
    """A number in at most five characters, rounded: `9999`, `70k`, `1.23M`."""
    if amount < 10_000:
        return str(amount)
    value = float(amount)
    for suffix in "kMGT":
        value /= 1_000
        if value < 999.5:
            return f"{value:.3g}{suffix}"
    return f"{value / 1_000:.3g}P"


def duration(length_us: int | Fraction) -> str:
    """A length of time in one or two units: `600 ms`, `8.57 s`, `1 min 30 s`, `31 d`."""
    return _duration(Fraction(length_us))[0]


def approximate_duration(length_us: int | Fraction) -> str:
    """The same, and honest where it had to be rounded: `about 8.57 s`."""
    text, exact = _duration(Fraction(length_us))
    return text if exact else f"about {text}"


def _duration(length_us: Fraction) -> tuple[str, bool]:
    for unit_us, below_us, name in SMALL_UNITS:
        if length_us < below_us:
            value = length_us / unit_us
            places = 2 if value < 10 else 1 if value < 100 else 0
            rounded = round(value, places)
            digits = f"{float(rounded):.{places}f}"
            digits = digits.rstrip("0").rstrip(".") if places else digits
            return f"{digits} {name}", rounded == value
    for large_us, small_us, large, small in LARGE_UNITS:
        if length_us >= large_us:
            total = round(length_us / small_us)
            whole, rest = divmod(total, large_us // small_us)
            text = f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"
            return text, total * small_us == length_us
    raise AssertionError("a length of a minute or more has a unit")


def moment(at_us: int, tz: str) -> str:
    """An instant on the clock of a time zone: `15 Jan 2027 00:00 CET`."""
    local = _local(at_us, tz)
    return f"{local.day} {MONTHS[local.month - 1]} {local.year} {local:%H:%M} {local.tzname()}"


def day(at_us: int, tz: str) -> str:
    """The day of an instant: `15 Jan`."""
    local = _local(at_us, tz)
    return f"{local.day} {MONTHS[local.month - 1]}"


def iso(at_us: int, tz: str) -> str:
    """An instant for machines: `2027-01-15T00:00:00+01:00`."""
    return _local(at_us, tz).isoformat()


def _local(at_us: int, tz: str) -> datetime:
    return datetime.fromtimestamp(at_us // US_PER_SECOND, ZoneInfo(tz))
