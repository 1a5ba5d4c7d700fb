"""redis-cell, as its documentation and its source tell it: a model in whole nanoseconds, slow and obvious.

Kept apart from everything of ours, so that `CL.THROTTLE` has something to be compared with.
"""

from __future__ import annotations

from typing import NamedTuple

SECOND_NS = 1_000_000_000
MS_NS = 1_000_000
US_NS = 1_000


class CellCommand(NamedTuple):
    """`CL.THROTTLE` with everything that can be said."""

    key: str
    max_burst: int
    rate: int
    period: int
    quantity: int


class CellAnswer(NamedTuple):
    """What `CL.THROTTLE` replies, in its order."""

    limited: int
    limit: int
    remaining: int
    retry_after: int
    reset_after: int


class RedisCell:
    """All keys of one server: the theoretical arrival time of each."""

    def __init__(self) -> None:
        self.arrivals_ns: dict[str, int] = {}

    def throttle(self, asked: CellCommand, now_ns: int) -> CellAnswer:
        """Take `quantity` tokens, and remember it if that is allowed."""
        answer, arrival_ns = self.look(asked, now_ns)
        if not answer.limited:
            self.arrivals_ns[asked.key] = arrival_ns
        return answer

    def look(self, asked: CellCommand, now_ns: int) -> tuple[CellAnswer, int]:
        """The answer, and the arrival time that would be stored."""
        key, max_burst, count, period, quantity = asked
        interval_ns = period * SECOND_NS // count
        tolerance_ns = interval_ns * (max_burst + 1)
        arrival_ns = max(self.arrivals_ns.get(key, now_ns), now_ns)  # An older one has expired.
        new_arrival_ns = arrival_ns + interval_ns * quantity
        early_ns = new_arrival_ns - tolerance_ns - now_ns
        retry_after_ns = -SECOND_NS
        if early_ns > 0:
            if interval_ns * quantity <= tolerance_ns:
                retry_after_ns = early_ns
            ttl_ns = arrival_ns - now_ns
        else:
            ttl_ns = new_arrival_ns - now_ns
        left_ns, remaining = tolerance_ns - ttl_ns, 0
        if left_ns > -interval_ns:
            remaining = int((left_ns // US_NS) / (interval_ns // US_NS))
        answer = CellAnswer(
            int(early_ns > 0),
            max_burst + 1,
            remaining,
            _seconds(retry_after_ns),
            _seconds(ttl_ns),
        )
        return answer, new_arrival_ns


def _seconds(ns: int) -> int:
    """Up to the next whole second, if there are whole milliseconds above the last one."""
    if ns < 0:
        return -1
    return ns // SECOND_NS + int(ns % SECOND_NS // MS_NS > 0)
