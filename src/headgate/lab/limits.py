"""Limits in a history: the name of the algorithm, and its numbers by name."""

from __future__ import annotations

from typing import Any, Final

from ..algorithms import ALGORITHMS, Calendar, CalendarWindow, Concurrency, Limit, TokenBucket
from ..errors import UsageError

CALENDAR: Final = ("period", "tz", "anchor")
LONGEST_HOLD_US: Final = 60_000_000


def limit_to_json(limit: Limit) -> dict[str, Any]:
    """A limit in the form used in a history.

    >>> from headgate import TokenBucket
    >>> limit_to_json(TokenBucket(10, 1_000_000, 5))
    {'algorithm': 'token_bucket', 'limit': 10, 'window_us': 1000000, 'burst': 5}
    """
    numbers = dict(zip(limit.__match_args__, limit.made_of, strict=True))
    calendar = numbers.get("calendar")
    if isinstance(calendar, Calendar):
        numbers["calendar"] = {name: getattr(calendar, name) for name in CALENDAR}
    return {"algorithm": limit.name, **numbers}


def limit_from_json(numbers: Any) -> Limit:
    """The inverse of `limit_to_json`; raises `UsageError` or `TypeError`, as limits themselves do."""
    if type(numbers) is not dict:
        raise UsageError("a limit must be an object with its algorithm and its numbers")
    given = dict(numbers)
    name = given.pop("algorithm", None)
    kind: Any = ALGORITHMS.get(name) if type(name) is str else None
    if kind is None:
        known = ", ".join(sorted(ALGORITHMS))
        raise UsageError(f"algorithm: {name!r:.40} is not one of {known}")
    if "calendar" in given:
        calendar = given["calendar"]
        if type(calendar) is not dict or name != CalendarWindow.name:
            raise UsageError("calendar: an object, of a fixed_window")
        kind, given["calendar"] = CalendarWindow, Calendar(**calendar)
    strange = set(given) - set(kind.__match_args__)
    if strange:
        raise UsageError(
            f"{name} has no {min(strange)!r:.40}; its fields are {', '.join(kind.__match_args__)}"
        )
    limit: Limit = kind(**given)
    return limit


def most_at_once(limit: Limit) -> int:
    """The most that an unused key allows at once: the unit in which faults are counted."""
    return limit.burst if isinstance(limit, TokenBucket) else limit.limit


def memory_us(limit: Limit) -> int:
    """How long a key remembers: after that much idle time it is like new."""
    if isinstance(limit, TokenBucket):
        return -(-limit.capacity // 256)
    if isinstance(limit, Concurrency):
        return limit.ttl_us
    return 2 * limit.window_us


def hold_us(limit: Limit) -> int:
    """T of the clock rule: how long a clock that stepped back may hold up a key."""
    return min(limit.window_us or LONGEST_HOLD_US, LONGEST_HOLD_US)
