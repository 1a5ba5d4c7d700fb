"""Rates, such as "100/minute burst 20", and the limits they stand for.

    rates   = rate { (";" | "," | "|") rate }
    rate    = count ("/" | "per") [count] unit ["burst" count]
            | count ("/" | "per") "calendar" period ["in" zone] ["anchor" count]
    unit    = us | ms | s sec second | m min minute | h hr hour | d day | w week   (plurals too)
    period  = day | week | month

A rate says how much is allowed; an algorithm says how it is counted. `limits_of` combines the two, once per pair: rates
are parsed and limits built a single time, then cached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from .algorithms import ALGORITHMS, Calendar, CalendarWindow, Concurrency, Limit
from .algorithms.base import MAX_EXACT, refuse, require_whole, require_window

if TYPE_CHECKING:
    from typing import Self

US_PER_UNIT: Final = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
"""The longest first: that is the order in which `str()` looks for a unit that fits."""

UNIT_NAMES: Final = {
    "us": "us",
    "microsecond": "us",
    "ms": "ms",
    "millisecond": "ms",
    "s": "second",
    "sec": "second",
    "second": "second",
    "m": "minute",
    "min": "minute",
    "minute": "minute",
    "h": "hour",
    "hr": "hour",
    "hour": "hour",
    "d": "day",
    "day": "day",
    "w": "week",
    "week": "week",
}
MAX_TEXT: Final = 1_000
MAX_WAITED_LOG: Final = 10_000
"""Up to this limit, blocking limits are counted by a log unless an algorithm is given."""
WITH_BURST: Final = ("token_bucket", "adaptive")

_RATE = re.compile(
    r"(?P<limit>[0-9]{1,16}) *(?:/| per ) *"
    r"(?:(?P<many>[0-9]{1,16})? *(?P<unit>[a-z]+)(?: +burst +(?P<burst>[0-9]{1,16}))?"
    r"|calendar +(?P<period>[a-z]+)(?: +in +(?P<tz>[a-z0-9_+/-]+))?"
    r"(?: +anchor +(?P<anchor>[0-9]{1,2}))?)",
    re.IGNORECASE | re.ASCII,
)

_FRACTION = re.compile(
    r"([0-9]{1,9}(?:\.[0-9]{1,6})?) *(?:/| per ) *([0-9]{1,9}(?:\.[0-9]{1,6})?)? *([a-z]+)((?: +burst +[0-9]{1,16})?)",
    re.IGNORECASE | re.ASCII,
)

Numbers: TypeAlias = tuple[int, int, int | None, Calendar | None]
"""What a rate says: limit, window in microseconds, burst, calendar."""


@dataclass(frozen=True, slots=True, init=False)
class Rate:
    """`limit` units per window and, for buckets, how many are allowed at once.

    >>> Rate.parse("100/minute burst 20")
    Rate.parse('100/minute burst 20')
    >>> Rate(100, window=60, burst=20) == Rate.parse("100/minute burst 20")
    True
    >>> str(Rate(5, window=300))
    '5/5 minutes'
    """

    limit: int
    window_us: int
    burst: int | None
    calendar: Calendar | None

    def __init__(
        self,
        limit: int,
        window: float | timedelta | None = None,
        burst: int | None = None,
        *,
        calendar: Calendar | None = None,
    ) -> None:
        require_whole("limit", limit, 0, MAX_EXACT)
        if calendar is not None:
            if window is not None or burst is not None:
                refuse("a calendar rate cannot have a window or a burst")
            window_us = calendar.nominal_us
        elif window is None:
            refuse("a rate needs a window in seconds, or a calendar", "window")
        else:
            window_us = _microseconds(window)
        if burst is not None:
            require_whole("burst", burst, 1, MAX_EXACT)
        self._fill(limit, window_us, burst, calendar)

    def _fill(
        self, limit: int, window_us: int, burst: int | None, calendar: Calendar | None
    ) -> None:
        """Take over what was checked."""
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "window_us", window_us)
        object.__setattr__(self, "burst", burst)
        object.__setattr__(self, "calendar", calendar)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one rate, such as `"100/minute burst 20"`."""
        rates = cls.parse_all(text)
        if len(rates) != 1:
            refuse(f"{text!r} has {len(rates)} rates; use Rate.parse_all")
        return rates[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Self, ...]:
        """Read one or several rates, such as `"1/second; 100/hour"`."""
        rates = []
        for numbers in _read(text):
            rate = cls.__new__(cls)
            rate._fill(*numbers)
            rates.append(rate)
        return tuple(rates)

    @property
    def window(self) -> float:
        """The window in seconds; of a calendar period its nominal length, 31 days for a month."""
        return self.window_us / 1_000_000

    def __str__(self) -> str:
        if self.calendar is not None:
            zone = f" in {self.calendar.tz}" if self.calendar.tz != "UTC" else ""
            anchor = f" anchor {self.calendar.anchor}" if self.calendar.anchor != 1 else ""
            return f"{self.limit}/calendar {self.calendar.period}{zone}{anchor}"
        burst = "" if self.burst is None else f" burst {self.burst}"
        return f"{self.limit}/{span_text(self.window_us)}{burst}"

    def __repr__(self) -> str:
        return f"Rate.parse({str(self)!r})"


LIMITS = frozenset({*ALGORITHMS.values(), CalendarWindow})
"""The classes of limits that every engine knows how to count."""

RateLike: TypeAlias = str | Rate | Limit
"""What every call that takes a rate accepts: text, a `Rate`, or a ready limit such as `TokenBucket`."""


Consistency: TypeAlias = Literal["exact", "leased", "split", "merge", "escrow"]
"""How processes (see `leased`) or regions (`split`, `merge`, `escrow`) share a limit."""
REGIONAL: Final = ("split", "merge", "escrow")
"""How regions share one limit."""


def leased(rate: RateLike, algorithm: str | None = None) -> Limit:
    """The limit of a rate, whose units are taken from a shared store in chunks.

    A limiter then answers nearly all hits of a busy key without calling the store: `limiter.hit("api",
    leased("10000/minute"))`. In the memory engine there is nothing to save, and it changes nothing.

    >>> leased("10000/minute")
    SlidingWindow(limit=10000, window_us=60000000).as_leased()
    """
    limits = limits_of(rate, algorithm)
    if len(limits) > 1:
        refuse(f"several limits cannot be leased together: {rate!r} has {len(limits)} rates")
    return limits[0].as_leased()


def limits_of(
    rate: RateLike, algorithm: str | None = None, *, waiting: bool = False
) -> tuple[Limit, ...]:
    """The limits that `rate` stands for, counted by `algorithm`.

    Without one, a rate with a burst is a token bucket, a calendar rate a fixed window, and any other a sliding window.
    For blocking callers it is exact, a sliding log, unless the limit is above `MAX_WAITED_LOG`: they usually wait for a
    service that also counts.
    """
    if type(rate) is str and (algorithm is None or type(algorithm) is str):
        # The usual case, before any checks.
        return _known.get((rate, algorithm, waiting)) or known_limits(rate, algorithm, waiting)
    if algorithm is not None and not isinstance(algorithm, str):
        refuse(f"an algorithm must be a string such as 'token_bucket', not {algorithm!r}")
    if isinstance(rate, str | Rate):
        return known_limits(rate, algorithm, waiting)
    if algorithm is not None:
        refuse(f"{rate!r} already has an algorithm; leave out algorithm={algorithm!r}")
    if type(rate) not in LIMITS:
        refuse(f"a rate must be a string such as '100/minute', a Rate or a limit, not {rate!r}")
    return (rate,)


def known_limits(
    rate: str | Rate,
    algorithm: str | None,
    waiting: bool = False,  # noqa: FBT001, FBT002 - a part of the cache's key
) -> tuple[Limit, ...]:
    """`limits_of` what is certain to be a rate and a name: a single look into the cache."""
    asked = (rate, algorithm, waiting)
    limits = _known.get(asked)
    if limits is None:
        limits = _made(rate, algorithm, waiting)
        weight = LIMIT_BYTES * len(limits) + (len(rate) if isinstance(rate, str) else 0)
        _known_bytes[0] += weight  # No lock: threads that meet here miscount by a limit or two.
        if len(_known) >= MAX_KNOWN or _known_bytes[0] > MAX_KNOWN_BYTES:
            _known.clear()
            _known_bytes[0] = weight
        _known[asked] = limits
    return limits


MAX_KNOWN: Final = 16_384
MAX_KNOWN_BYTES: Final = 16_777_216
"""What the cache of rates may hold: a text of a thousand characters can stand for a hundred limits."""
LIMIT_BYTES: Final = 1_000
"""What a limit takes up in it, with everything around it."""
_known: dict[tuple[str | Rate, str | None, bool], tuple[Limit, ...]] = {}
_known_bytes = [0]


def _made(rate: str | Rate, algorithm: str | None, waiting: bool) -> tuple[Limit, ...]:  # noqa: FBT001
    if isinstance(rate, str):
        return tuple([_limit_of(one, algorithm, waiting) for one in _read(rate)])
    numbers = (rate.limit, rate.window_us, rate.burst, rate.calendar)
    return (_limit_of(numbers, algorithm, waiting),)


def _limit_of(numbers: Numbers, algorithm: str | None, waiting: bool) -> Limit:  # noqa: FBT001
    limit, window_us, burst, calendar = numbers
    if algorithm is None:
        algorithm = "token_bucket" if burst else "sliding_window"
        if waiting and not burst and limit <= MAX_WAITED_LOG:
            algorithm = "sliding_log"
        if calendar is not None:
            algorithm = "fixed_window"
    if algorithm == Concurrency.name:
        refuse(
            "concurrency counts slots, not a rate; use limiter.concurrency(key, limit)", "algorithm"
        )
    if algorithm not in ALGORITHMS:
        names = sorted(set(ALGORITHMS) - {Concurrency.name})
        refuse(
            f"there is no algorithm {algorithm!r}; the algorithms are {', '.join(names)}",
            "algorithm",
        )
    if calendar is not None:
        if algorithm != "fixed_window":
            refuse(
                f"calendar rates are counted by fixed_window, not by {algorithm}; write fixed_window, "
                "or leave out the algorithm"
            )
        return CalendarWindow(limit, calendar=calendar)
    kind: type[Any] = ALGORITHMS[algorithm]
    if burst is not None and algorithm not in WITH_BURST:
        refuse(f"{algorithm} has no burst; use {' or '.join(WITH_BURST)}, or leave it out", "burst")
    made: Limit = kind(limit, window_us) if burst is None else kind(limit, window_us, burst)
    return made


def _read(text: str) -> list[Numbers]:
    """All rates in a text, checked; as numbers, since most readers want limits and no `Rate`."""
    if not isinstance(text, str):
        refuse(f"a rate must be a string such as '100/minute', not {text!r}")
    if len(text) > MAX_TEXT:
        refuse(f"a rate has at most {MAX_TEXT} characters, not {len(text)}")
    found = _RATE.fullmatch(text)
    if found is not None:  # The usual case: one rate, and no space too many.
        return [_numbers(found)]
    rates = [_read_one(part, text) for part in re.split("[;,|]", text)]
    spans = {calendar or window_us for _, window_us, _, calendar in rates}
    if len(spans) < len(rates):
        refuse(f"{text!r} has the same window twice; keep the tighter of the two rates")
    return rates


def _read_one(part: str, text: str) -> Numbers:
    words = " ".join(part.split())
    found = _RATE.fullmatch(words)
    if found is None:
        _refuse_numbers(words)
        refuse(
            f"{_shown(words or text)} is not a rate; write it like '100/minute', '5 per 300s', "
            "'100/minute burst 20' or '1000/calendar month in Europe/Berlin'"
        )
    return _numbers(found)


def _refuse_numbers(words: str) -> None:
    """Refuse a number without a time, and fractions, with what to write instead."""
    if words.isascii() and words.isdigit():
        refuse(
            f"{_shown(words)} has no time unit; write {words[:16] + '/minute'!r}, or another unit"
        )
    found = _FRACTION.fullmatch(words)
    if found is None:
        return
    from fractions import Fraction  # noqa: PLC0415 - large, and only for those who need a word

    count, many, unit, rest = found.groups()
    if not Fraction(many or 1):
        return
    ratio = Fraction(count) / Fraction(many or 1)
    whole = f"{ratio.numerator}/{ratio.denominator} {unit}{rest}"
    if ratio.denominator == 1:
        whole = f"{ratio.numerator}/{unit}{rest}"
    refuse(f"{_shown(words)} has a fraction, but units are whole; write {whole!r}")


def _numbers(found: re.Match[str]) -> Numbers:
    count, many, unit, at_once, period, tz, anchor = found.groups()
    limit = int(count)
    burst = calendar = None
    if period is not None:
        calendar = Calendar(period.lower(), tz or "UTC", int(anchor or 1))
        window_us = calendar.nominal_us
    else:
        window_us = _span_us(many, unit)
    if limit > MAX_EXACT:  # Digits alone cannot be wrong in any other way.
        require_whole("limit", limit, 0, MAX_EXACT)
    if at_once is not None:
        burst = int(at_once)
        require_whole("burst", burst, 1, MAX_EXACT)
    return limit, window_us, burst, calendar


def span_text(window_us: int) -> str:
    """A length of time in the largest unit that fits: `minute`, `5 minutes`, `1500 us`."""
    for unit, unit_us in US_PER_UNIT.items():
        if window_us % unit_us == 0:
            many = window_us // unit_us
            if many == 1:
                return unit
            return f"{many} {unit}" if len(unit) == 2 else f"{many} {unit}s"
    raise AssertionError("a microsecond divides everything")


@lru_cache(maxsize=1_024)
def _span_us(many: str | None, unit: str) -> int:
    """The window of `many` units. Thousands of rates have a handful of windows among them."""
    return _checked(int(many or 1) * US_PER_UNIT[_unit(unit)])


def _unit(word: str) -> str:
    lower = word.lower()
    if lower in ("month", "months", "year", "years"):
        refuse(
            f"a {lower.rstrip('s')} has no fixed length; write 'calendar month' for real months, "
            "or a number of days such as '30 days'"
        )
    unit = UNIT_NAMES.get(lower) or UNIT_NAMES.get(lower.removesuffix("s"))
    if unit is None:
        refuse(f"there is no time unit {word!r}; use ms, second, minute, hour, day or week")
    return unit


def _microseconds(window: float | timedelta) -> int:
    if isinstance(window, timedelta):
        window_us = window // timedelta(microseconds=1)
    elif isinstance(window, bool) or not isinstance(window, int | float):
        refuse(f"a window must be a number of seconds, not {window!r}", "window")
    elif isinstance(window, int):
        window_us = window * 1_000_000
    elif not abs(window) <= MAX_EXACT:  # Nor is NaN.
        refuse(f"a window must last between 1 ms and 366 days, not {window!r} seconds", "window")
    else:
        window_us = round(window * 1_000_000)
    return _checked(window_us)


def _checked(window_us: int) -> int:
    require_window(window_us)
    return window_us


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
