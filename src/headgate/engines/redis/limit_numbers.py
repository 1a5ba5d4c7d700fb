"""Limits as the Lua functions read them: an algorithm's code and its numbers. `lua/wire.lua` is the other side.

`limit_of` is the inverse, for a node that is called instead of Redis.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from ...algorithms import (
    Adaptive,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    limit_of_identity,
)
from ...algorithms.adaptive import CANDIDATES
from ...errors import UsageError
from .scripts import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable


def numbers_of(limit: Limit, now_us: int) -> tuple[int, ...]:  # noqa: PLR0911 - one for each algorithm
    """A limit's numbers as its Lua twin reads them; only calendars depend on the time."""
    match limit:
        case CalendarWindow():
            start_us, end_us = limit.bounds_us(now_us)
            return limit.limit, start_us, end_us, limit.calendar.bounds_us(end_us)[1]
        case FixedWindow():
            return limit.limit, 0, limit.window_us, 0
        case SlidingWindow():
            return limit.limit, limit.window_us, limit.step_us, limit.steps
        case SlidingLog():
            return limit.limit, limit.window_us
        case TokenBucket():
            return limit.limit, limit.burst, limit.emission, limit.window_us
        case ExponentialBackoff():
            levels = (limit.denials_per_level, limit.max_level, limit.retry_us)
            return limit.limit, limit.window_us, *levels
        case Adaptive():
            window, bucket, backoff = (numbers_of(one, now_us) for one in limit.candidates)
            parts = (*window, *bucket[:-1], *backoff)  # All share one window.
            return limit.limit, *parts, CANDIDATES.index(limit.chosen) + 1
        case Concurrency():
            return limit.limit, limit.ttl_us
    raise UsageError(f"the Redis engine does not support {limit!r}")


def packed_limit(limit: Limit, now_us: int) -> bytes:
    """A limit's algorithm and numbers, packed."""
    numbers = numbers_of(limit, now_us)
    code = ALGORITHMS.index(limit.name) + 1
    return struct.pack(f"<B{len(numbers)}d", code, *numbers)


def limit_of(packed: bytes, identity: str) -> Limit:
    """The limit that was packed, for states stored under `identity`; raises `UsageError` for anything else.

    A calendar is taken from the identity; its periods are computed by whoever counts.
    """
    made = _made_of(packed, identity)
    calendar = isinstance(made, CalendarWindow)
    if made.identity != identity or (not calendar and packed_limit(made, 0) != packed):
        raise UsageError(f"this is not a limit of {identity!r:.80}")
    return made


def _made_of(packed: bytes, identity: str) -> Limit:
    try:
        code, *numbers = struct.unpack(f"<B{len(packed) // 8}d", packed)
        whole = [int(number) for number in numbers]
        if whole != numbers:
            raise UsageError("the numbers of a limit are whole")
        kind: Any = type(limit_of_identity(identity))
        if code != ALGORITHMS.index(kind.name) + 1:
            raise UsageError(f"the limit is not counted as {identity!r:.80} says")
        if kind is CalendarWindow:
            limit, _, _, _ = whole  # The bounds of its windows are the business of who counts.
            return sized(limit_of_identity(identity), limit)
        made: Limit = kind(*_ARGUMENTS[kind](whole))
    except (struct.error, ValueError, OverflowError, LookupError, ArithmeticError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the limit of {identity!r:.80} is invalid: {error}") from None
    return made


_ARGUMENTS: Final[dict[type[Limit], Callable[[list[int]], tuple[Any, ...]]]] = {
    FixedWindow: lambda numbers: (numbers[0], numbers[2]),
    SlidingWindow: lambda numbers: (numbers[0], numbers[1]),
    SlidingLog: lambda numbers: (numbers[0], numbers[1]),
    TokenBucket: lambda numbers: (numbers[0], numbers[3], numbers[1]),
    ExponentialBackoff: tuple,
    Adaptive: lambda numbers: (numbers[0], numbers[2], numbers[6], CANDIDATES[numbers[-1] - 1]),
    Concurrency: tuple,
}
"""The arguments of a limit, from its numbers."""


def sized(limit: Limit, number: int) -> Limit:
    """The same limit with another number, and the smallest burst: what is used does not depend on it."""
    numbers = dict(zip(limit.__match_args__, limit.made_of, strict=True))
    numbers["limit"] = number
    if "burst" in numbers:
        numbers["burst"] = min(number, 1)
    return type(limit)(**numbers)
