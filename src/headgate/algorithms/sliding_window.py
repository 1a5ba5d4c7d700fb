"""Sliding window: two counters that behave almost like a log. The default.

The count of the previous window fades out linearly while the current one runs, as if its requests
had been spread evenly. A take fits while `previous · weight + current + cost <= limit`.

    previous 8           current 3            limit 10
    ├──────────────────┼─────────┊────────┤   ┊ now, 40 % into the window: weight 60 %
    ████████            ███      ┊            8 · 0.6 + 3 = 7.8, so 2 more fit
             ├───────────────────┤            the window that slides

**The worst case.** Requests are rarely spread evenly, and an adversary can take all of one window's units at its very
end, then as many of the next as the fading allows. A span of one window that ends at fraction f of a window can hold up
to `limit · (1 + f)`, always less than twice the limit; each aligned window on its own never holds more than the limit.

    limit 10            │         ┊          10 at the end of one window, then
                     ████         ┊          9 more once 90 % of it has faded:
              ▁▁▁▁▁▁▁████▁▁▁▁▁▁▁███          19 in a span just under one window
                        0    f = 0.9

**Arithmetic.** The weight is taken in steps of the window, at most 2**20 of them and rounded up, so
it is never in the caller's favour, and `limit · steps` stays exact. Where a step of nearly that length
divides the window it is taken, so that retry times come out round. The state is
`(start_us, previous, current)`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from .base import (
    MAX_EXACT,
    MAX_LEAD_US,
    NEVER,
    NO_BOUNDS,
    Answer,
    Bounds,
    Candidate,
    Start,
    Whole,
    require_whole,
    require_window,
)

MAX_STEPS: Final = 2**20
MAX_PRODUCT: Final = 2**51
"""The largest count · steps; the sum of three of them (previous, current, cost) is still exact."""
MAX_LIMIT: Final = 2**43
"""Leaves at least 256 steps."""

Counters: TypeAlias = tuple[Start, int, int]


class SlidingWindow(Candidate):
    """`limit` units in a window of `window_us` that moves with time."""

    __slots__ = ("_now", "fade_us", "most", "step_us", "steps")
    __match_args__ = ("limit", "window_us")
    name: ClassVar[str] = "sliding_window"
    guarantee: ClassVar[str] = (
        "at most the limit in each aligned window; less than twice the limit in any span of a window's length"
    )
    leasable: ClassVar[bool] = True
    regional: ClassVar[tuple[str, ...]] = ("split", "merge")

    def __init__(self, limit: Whole, window_us: Whole) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_LIMIT)
        self.window_us = require_window(window_us)
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        self.identity = f"{self.name}:{window_us}"
        most_steps = min(MAX_STEPS, MAX_PRODUCT // max(1, self.limit))
        self.step_us = _whole_step_us(self.window_us, -(-self.window_us // most_steps))
        self.steps = -(-self.window_us // self.step_us)
        self.most = MAX_PRODUCT // self.steps
        """What a counter can hold."""
        faded = (self.limit - 1) * self.steps // self.limit if self.limit else 0
        self.fade_us = faded * self.step_us
        """How long before its end a previous window that was full has room for one unit."""
        self._now = [NO_BOUNDS]
        """The bounds of the window that runs now, see `FixedWindow`."""
        super().__init__(self.limit, self.window_us)

    def take(
        self, state: Counters | None, now_us: int, cost: int
    ) -> tuple[Counters | None, Answer]:
        """Take `cost` units if they fit."""
        start_us, end_us, start = self._now[0]
        if not start_us <= now_us < end_us:
            start_us, end_us, start = self._turned(now_us)
        previous = current = 0
        if state is not None:
            was, previous, current = state
            if was is not start:
                if was > start:
                    return self._take_ahead(state, now_us, cost)
                previous, current = self._moved(state, start_us)
        left_us, window_us = end_us - now_us, self.window_us
        remaining = self.limit - current - cost
        if previous:  # Its weight is rounded up, and so is what it takes in whole units.
            remaining += previous * (-left_us // self.step_us) // self.steps
        if remaining >= 0:
            if cost:
                state = (start, previous, current + cost)
                return state, (True, remaining, 0, left_us + window_us, 0)
            reset_after_us = left_us + window_us if current else left_us if previous else 0
            return state, (True, remaining, 0, reset_after_us, 0)
        # The usual denial, without a division.
        if cost == 1 and 0 < current == self.limit and not previous:
            reset_after_us = left_us + window_us
            return state, (False, 0, reset_after_us - self.fade_us, reset_after_us, 0)
        return state, self._denied(previous, current, end_us, now_us, cost)

    def _peek(self, state: Counters | None, at_us: int, cost: int) -> Answer:
        start_us, previous, current = self._counters(state, at_us)
        room = self._room(previous, current, start_us, at_us)
        if cost * self.steps > room:
            return self._denied(previous, current, start_us + self.window_us, at_us, cost)
        reset_after_us = self._idle_at_us(start_us, previous, current, at_us) - at_us
        return (True, room // self.steps, 0, reset_after_us, 0)

    def _force(
        self, state: Counters | None, at_us: int, cost: int
    ) -> tuple[Counters | None, Answer]:
        """The counter stops where the arithmetic would stop being exact."""
        start_us, previous, current = self._counters(state, at_us)
        if cost:
            current = min(current + cost, self.most)
            state = (start_us, previous, current)
        room = self._room(previous, current, start_us, at_us)
        reset_after_us = self._idle_at_us(start_us, previous, current, at_us) - at_us
        return state, (True, max(0, room // self.steps), 0, reset_after_us, 0)

    def charge(self, state: Counters, now_us: int, cost: int) -> Counters:
        """`force` without the answer; the start is `None` of what was never used."""
        start_us, end_us, start = self._now[0]
        if not start_us <= now_us < end_us:
            start_us, end_us, start = self._turned(now_us)
        was, previous, current = state
        if was is None:
            previous = current = 0
        elif was is not start:
            if was > start:
                charged: Counters = self._charge_ahead(state, now_us, cost)
                return charged
            previous, current = self._moved(state, start_us)
        current += cost
        return start, previous, current if current < self.most else self.most

    def mark(self, state: Counters) -> Start:
        """The start of the window that was charged."""
        return state[0]

    def _refund(
        self, state: Counters | None, mark: int, at_us: int, cost: int, low: int
    ) -> tuple[Counters | None, int]:
        """Give back into the window that was charged, current or previous."""
        if state is None:
            return state, 0
        start_us, previous, current = self._counters(state, at_us)
        if mark == start_us:
            given = min(cost, current)
            return (start_us, previous, current - given), given
        if mark == start_us - self.window_us:
            given = min(cost, previous)
            return (start_us, previous - given, current), given
        return state, 0

    def _used(self, state: Counters | None, at_us: int) -> int:
        """The faded previous count, rounded up, and the current one."""
        start_us, previous, current = self._counters(state, at_us)
        return -(-previous * self._weight(start_us, at_us) // self.steps) + current

    def latest_us(self, state: Counters) -> int:
        """The start of the current window."""
        start_us: int = state[0]
        return start_us

    def _cut(self, state: Counters, now_us: int) -> Counters:
        """All counted units may have been taken ahead of now, so they count as taken now."""
        _, previous, current = state
        return (now_us - now_us % self.window_us, 0, min(previous + current, self.most))

    def idle_at_us(self, state: Counters) -> int:
        """When both counters have faded."""
        return self._idle_at_us(*state, 0)

    def encode(self, state: Counters) -> Counters:
        """The state itself."""
        return state

    def decode(self, data: Any) -> Counters:
        """The inverse of `encode`."""
        start_us, previous, current = data
        require_whole("start_us", start_us, 0, MAX_EXACT)
        require_whole("previous", previous, 0, 2 * MAX_LIMIT)
        require_whole("current", current, 0, 2 * MAX_LIMIT)
        return start_us, previous, current

    def _turned(self, now_us: int) -> Bounds:
        """Remember the window that runs now."""
        start_us = now_us - now_us % self.window_us
        bounds = self._now[0] = (start_us, start_us + self.window_us, start_us)
        return bounds

    def _counters(self, state: Counters | None, now_us: int) -> Counters:
        """The state as it stands at `now_us`."""
        start_us = now_us - now_us % self.window_us
        return (start_us, 0, 0) if state is None else (start_us, *self._moved(state, start_us))

    def _moved(self, state: Counters, start_us: int) -> tuple[int, int]:
        """The two counters, seen from the window that starts at `start_us`."""
        was_us, previous, current = state
        if was_us == start_us:
            return previous, current
        return (current, 0) if was_us == start_us - self.window_us else (0, 0)

    def _weight(self, start_us: int, now_us: int) -> int:
        """How much of the previous window still counts, in steps, rounded up."""
        return -((now_us - start_us - self.window_us) // self.step_us)

    def _room(self, previous: int, current: int, start_us: int, now_us: int) -> int:
        """What still fits, in steps of a unit; negative when the key is over its limit."""
        return (self.limit - current) * self.steps - previous * self._weight(start_us, now_us)

    def _denied(self, previous: int, current: int, end_us: int, now_us: int, cost: int) -> Answer:
        limit = self.limit
        left = limit - current
        if cost <= left:  # The previous window must first fade to what is left.
            faded = (left - cost) * self.steps // previous
            retry_after_us = end_us - faded * self.step_us - now_us
        elif cost <= limit:  # The current window must first become the previous one.
            faded = (limit - cost) * self.steps // current
            retry_after_us = end_us + self.window_us - faded * self.step_us - now_us
        else:
            retry_after_us = NEVER
        if previous:
            left += previous * ((now_us - end_us) // self.step_us) // self.steps
        reset_us = end_us + self.window_us if current else end_us if previous else now_us
        return (False, left if left > 0 else 0, retry_after_us, reset_us - now_us, 0)

    def _idle_at_us(self, start_us: int, previous: int, current: int, now_us: int) -> int:
        if current:
            return start_us + 2 * self.window_us
        return start_us + self.window_us if previous else now_us


def _whole_step_us(window_us: int, least_us: int) -> int:
    """The shortest round step from `least_us` on that divides the window and is not much longer; else `least_us`.

    It tries at most 625 round steps: callers choose windows, and the search must not cost more than an answer.
    """
    if window_us % least_us == 0:
        return least_us
    grain = 10 ** max(0, len(str(least_us)) - 4)
    nearby = range(-(-least_us // grain) * grain, least_us + least_us // 16 + 1, grain)
    return next((step_us for step_us in nearby if window_us % step_us == 0), least_us)
