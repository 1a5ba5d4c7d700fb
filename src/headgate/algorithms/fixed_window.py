"""Fixed window: one counter per aligned window. The cheapest limit, and the one for quotas.

    limit 4   ████│    │█   │           Each window starts at zero again, so a caller who knows
              ████│██  │██▁ │           the boundary can spend twice the limit around it:
              0   1    2   3 ▶ windows  4 just before and 4 just after.

`FixedWindow` cuts time into equal pieces counted from the Unix epoch; `CalendarWindow` cuts it at
the boundaries of a calendar. The state is `(start_us, count)`: the start of the window it counts.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from .base import (
    MAX_EXACT,
    MAX_LEAD_US,
    NEVER,
    NO_BOUNDS,
    Answer,
    Bounds,
    Limit,
    Start,
    Whole,
    refuse,
    require_whole,
    require_window,
)
from .calendar import Calendar

Window: TypeAlias = tuple[Start, int]


class FixedWindow(Limit):
    """`limit` units in each window of `window_us`."""

    __slots__ = ("_now",)
    __match_args__ = ("limit", "window_us")
    name: ClassVar[str] = "fixed_window"
    guarantee: ClassVar[str] = (
        "at most the limit in each aligned window; up to twice the limit in a span across a boundary"
    )
    leasable: ClassVar[bool] = True
    regional: ClassVar[tuple[str, ...]] = ("split", "merge", "escrow")

    def __init__(self, limit: Whole, window_us: Whole) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_EXACT)
        self.window_us = require_window(window_us)
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        self.identity = f"{self.name}:{window_us}"
        self._now = [NO_BOUNDS]
        """The bounds of the window that runs now: one item, replaced as a whole, so threads need no lock.

        Looking there saves a division, and all keys share the numbers in it.
        """
        super().__init__(self.limit, self.window_us)

    def bounds_us(self, now_us: int) -> tuple[int, int]:
        """The start and the end of the window that `now_us` lies in."""
        start_us = now_us - now_us % self.window_us
        return start_us, start_us + self.window_us

    def take(self, state: Window | None, now_us: int, cost: int) -> tuple[Window | None, Answer]:
        """Take `cost` units if they fit."""
        start_us, end_us, start = self._now[0]
        if not start_us <= now_us < end_us:
            start_us, end_us, start = self._turned(now_us)
        count = 0
        if state is not None:
            was, count = state
            if was is not start:
                if was < start:
                    count = 0
                elif was > start:
                    return self._take_ahead(state, now_us, cost)
        remaining = self.limit - count - cost
        if remaining >= 0:
            if cost:
                return (start, count + cost), (True, remaining, 0, end_us - now_us, 0)
            return state, (True, remaining, 0, end_us - now_us if count else 0, 0)
        return state, self._denied(count, cost, end_us - now_us)

    def _peek(self, state: Window | None, at_us: int, cost: int) -> Answer:
        start_us, end_us = self.bounds_us(at_us)
        count = state[1] if state is not None and state[0] >= start_us else 0
        if count + cost > self.limit:
            return self._denied(count, cost, end_us - at_us)
        return (True, self.limit - count, 0, end_us - at_us if count else 0, 0)

    def _force(self, state: Window | None, at_us: int, cost: int) -> tuple[Window | None, Answer]:
        start_us, end_us = self.bounds_us(at_us)
        count = state[1] if state is not None and state[0] >= start_us else 0
        if cost:
            count = min(count + cost, MAX_EXACT)
            state = (start_us, count)
        reset_after_us = end_us - at_us if count else 0
        return state, (True, max(0, self.limit - count), 0, reset_after_us, 0)

    def mark(self, state: Window) -> Start:
        """The start of the window that was charged."""
        return state[0]

    def _refund(
        self, state: Window | None, mark: int, at_us: int, cost: int, low: int
    ) -> tuple[Window | None, int]:
        """Give back into the window that was charged, and only while it lasts."""
        if state is None or state[0] != mark or not self.bounds_us(at_us)[0] <= mark:
            return state, 0
        given = min(cost, state[1])
        return (mark, state[1] - given), given

    def _used(self, state: Window | None, at_us: int) -> int:
        start_us, _ = self.bounds_us(at_us)
        return state[1] if state is not None and state[0] >= start_us else 0

    def latest_us(self, state: Window) -> int:
        """The start of the window."""
        start_us: int = state[0]
        return start_us

    def _cut(self, state: Window, now_us: int) -> Window:
        return (self.bounds_us(now_us)[0], state[1])

    def idle_at_us(self, state: Window) -> int:
        """The end of the window, or now if nothing is charged in it."""
        return self.bounds_us(state[0])[1] if state[1] else 0

    def encode(self, state: Window) -> Window:
        """The state itself."""
        return state

    def decode(self, data: Any) -> Window:
        """The inverse of `encode`."""
        start_us, count = data
        require_whole("start_us", start_us, 0, MAX_EXACT)
        require_whole("count", count, 0, MAX_EXACT)
        return start_us, count

    def _turned(self, now_us: int) -> Bounds:
        """Remember the window that runs now."""
        start_us, end_us = self.bounds_us(now_us)
        bounds = self._now[0] = (start_us, end_us, start_us)
        return bounds

    def _denied(self, count: int, cost: int, left_us: int) -> Answer:
        limit = self.limit
        retry_after_us = NEVER if cost > limit else left_us
        remaining = limit - count if limit > count else 0
        return (False, remaining, retry_after_us, left_us if count else 0, 0)


class CalendarWindow(FixedWindow):
    """`limit` units in each period of a calendar."""

    __slots__ = ("calendar",)
    __match_args__ = ("limit", "calendar")

    def __init__(self, limit: Whole, calendar: Calendar) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_EXACT)
        if not isinstance(calendar, Calendar):
            refuse(f"a calendar window needs a Calendar, not {calendar!r}")
        self.calendar = calendar
        self.window_us = calendar.nominal_us
        self.max_lead_us = MAX_LEAD_US
        self.identity = f"{self.name}:{calendar.period}:{calendar.tz}:{calendar.anchor}"
        self._now = [NO_BOUNDS]
        Limit.__init__(self, self.limit, calendar)

    def bounds_us(self, now_us: int) -> tuple[int, int]:
        """The start and the end of the period that `now_us` lies in."""
        return self.calendar.bounds_us(now_us)
