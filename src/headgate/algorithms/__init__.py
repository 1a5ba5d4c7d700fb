"""The arithmetic of every limit: pure, one file each, no I/O, no clock, no logging.

Start with `token_bucket.py`; `base.py` has the contract of all of them. To add one, copy a file, give its class a new
`name`, add it to `ALGORITHMS`, and run the conformance suite. Redis needs a twin in Lua (`engines/redis/lua`).
"""

from __future__ import annotations

from typing import Any, Final

from .adaptive import Adaptive
from .base import NEVER, Answer, Limit, State
from .calendar import Calendar
from .concurrency import Concurrency
from .exponential_backoff import ExponentialBackoff
from .fixed_window import CalendarWindow, FixedWindow
from .sliding_log import SlidingLog
from .sliding_window import SlidingWindow
from .token_bucket import TokenBucket

ALGORITHMS: Final[dict[str, type[Limit]]] = {
    algorithm.name: algorithm
    for algorithm in (
        FixedWindow,
        SlidingWindow,
        SlidingLog,
        TokenBucket,
        ExponentialBackoff,
        Adaptive,
        Concurrency,
    )
}
"""Every algorithm by its name for users and stores."""


def limit_of_identity(identity: str) -> Limit:
    """A limit that can read states stored under `identity`; its own number does not matter for that."""
    name, *rest = identity.split(":")
    if name == Concurrency.name:
        return Concurrency(1)
    if len(rest) == 3:
        period, tz, anchor = rest
        return CalendarWindow(1, calendar=Calendar(period, tz, int(anchor)))
    (window_us,) = rest
    kind: type[Any] = ALGORITHMS[name]
    limit: Limit = kind(1, int(window_us))
    return limit


__all__ = [
    "ALGORITHMS",
    "NEVER",
    "Adaptive",
    "Answer",
    "Calendar",
    "CalendarWindow",
    "Concurrency",
    "ExponentialBackoff",
    "FixedWindow",
    "Limit",
    "SlidingLog",
    "SlidingWindow",
    "State",
    "TokenBucket",
    "limit_of_identity",
]
