"""Exponential backoff: a limit that tightens while a caller keeps hammering.

A fixed window whose limit halves with every level. Ten denials in a row raise the level by one; a window that ends
without a denial lowers it by one; at the top level nothing passes for one window.

    level     0     1     2    …   5 ──▶ cool-down of one window
    limit    16     8     4        1        ▲ 10 denials in a row: up
    retry    1 s   2 s   4 s      32 s      ▼ a window without a denial: down

An admission or a window without a denial ends the run of denials. `retry_after` is the pace that the caller should
keep, `2 ** level` seconds, not a promise that a retry passes. This is the only algorithm in which a denial changes the
state. A cost that can never fit is the caller's mistake, not pressure, and is not counted.

The state is `(start_us, count, pressure)`: the window, what was admitted in it, and what denials have led to, which is
`None` while there were none. Else it is `(denials, level, denied, cool_us)`: the run of denials, the level, whether
this window saw a denial (0 or 1), and when the last cool-down began (0 for never). So a well-behaved caller costs no
more than in a fixed window.
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
    later,
    require_whole,
    require_window,
)

MAX_LEVEL: Final = 20

Pressure: TypeAlias = tuple[int, int, int, int]
Backoff: TypeAlias = tuple[Start, int, Any]
"""With a pressure, or `None`."""

CALM: Final[Pressure] = (0, 0, 0, 0)
NO_BACKOFF: Final[Backoff] = (None, 0, None)


class ExponentialBackoff(Candidate):
    """`limit` units a window, halved per level; the last three numbers say how levels work."""

    __slots__ = ("_now", "denials_per_level", "max_level", "retry_us")
    __match_args__ = ("limit", "window_us", "denials_per_level", "max_level", "retry_us")
    name: ClassVar[str] = "exponential_backoff"
    guarantee: ClassVar[str] = (
        "at most the limit in each aligned window, less for clients that keep hammering; "
        "up to twice the limit in a span across a boundary"
    )
    counts_denials: ClassVar[bool] = True

    def __init__(
        self,
        limit: Whole,
        window_us: Whole,
        denials_per_level: Whole = 10,
        max_level: Whole = 5,
        retry_us: Whole = 1_000_000,
    ) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_EXACT)
        self.window_us = require_window(window_us)
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        self.identity = f"{self.name}:{window_us}"
        self.denials_per_level = require_whole("denials_per_level", denials_per_level, 1, 1_000_000)
        self.max_level = require_whole("max_level", max_level, 1, MAX_LEVEL)
        self.retry_us = require_whole("retry_us", retry_us, 1_000, 3_600_000_000)
        """What `retry_after` is at level 0; it doubles with each level."""
        self._now = [NO_BOUNDS]
        """The bounds of the window that runs now, see `FixedWindow`."""
        super().__init__(
            self.limit, self.window_us, self.denials_per_level, self.max_level, self.retry_us
        )

    def take(self, state: Backoff | None, now_us: int, cost: int) -> tuple[Backoff | None, Answer]:
        """Take `cost` units if they fit; count the denial if they do not."""
        limit = self.limit
        if cost > limit or not cost:
            seen, at_us = self.seen(state, now_us)
            return seen, later(self._peek(seen, at_us, cost), at_us - now_us)
        start_us, end_us, start = self._now[0]
        if not start_us <= now_us < end_us:
            start_us, end_us, start = self._turned(now_us)
        count, pressure = 0, None
        if state is not None:
            was, count, pressure = state
            if was is not start:
                if was < start:
                    count = 0
                elif was > start:
                    return self._take_ahead(state, now_us, cost)
        if pressure is None:
            remaining = limit - count - cost
            if remaining >= 0:
                return (start, count + cost, None), (True, remaining, 0, end_us - now_us, 0)
        return self._take_under_pressure(state, now_us, cost)

    def _take_under_pressure(
        self, state: Backoff | None, now_us: int, cost: int
    ) -> tuple[Backoff | None, Answer]:
        """Take a cost that does not fit, or from a key that was denied before."""
        known = NO_BACKOFF if state is None else state
        start, count, (denials, level, denied, cool_us) = self._current(known, now_us)
        if cool_us > now_us:
            return self._take_ahead(state, now_us, cost)
        cools = cool_us > 0 and now_us - cool_us < self.window_us
        if not cools:
            remaining = (self.limit >> level or 1) - count - cost
            if remaining >= 0:
                start_us: int = start
                # Each quiet window lowers the level by one.
                left_us = start_us + max(1, level + denied) * self.window_us - now_us
                after = _packed(start, count + cost, (0, level, denied, cool_us))
                return after, (True, remaining, 0, left_us, level)
            denials += 1
            if denials >= self.denials_per_level:  # More, if it was set lower meanwhile.
                denials = 0
                level = min(level + 1, self.max_level)
                if level == self.max_level:
                    cool_us = now_us
        pressed = (denials, level, 1, cool_us)
        answer = self._answer((start, count, pressed), now_us, allowed=False)
        same = cools and denied and known[0] is start and known[2] == pressed
        # During a cool-down, further denials change nothing.
        return (state if same else (start, count, pressed)), answer

    def charge(self, state: Backoff, now_us: int, cost: int) -> Backoff:
        """`force` without the answer; the start is `None` of what was never used."""
        was, _, pressure = state
        if was is not None and (was > now_us or (pressure is not None and pressure[3] > now_us)):
            charged: Backoff = self._charge_ahead(state, now_us, cost)
            return charged
        start, count, (_, level, denied, cool_us) = self._current(state, now_us)
        count += cost
        if count > MAX_EXACT:
            count = MAX_EXACT
        if pressure is None:
            return (start, count, None)
        return _packed(start, count, (0, level, denied, cool_us))

    def _peek(self, state: Backoff | None, at_us: int, cost: int) -> Answer:
        """A peek is never counted as a denial."""
        current = self._current(state or NO_BACKOFF, at_us)
        _, count, (_, level, _, cool_us) = current
        if cost > self.limit:
            _, remaining, _, reset_after_us, _ = self._answer(current, at_us, allowed=False)
            return (False, remaining, NEVER, reset_after_us, level)
        cools = cool_us > 0 and at_us - cool_us < self.window_us
        fits = not cools and count + cost <= self.limit_at(level)
        return self._answer(current, at_us, allowed=fits)

    def _force(self, state: Backoff | None, at_us: int, cost: int) -> tuple[Backoff | None, Answer]:
        """Like any admission it ends a run of denials."""
        after = self.charge(state or NO_BACKOFF, at_us, cost) if cost else state
        return after, self._answer(self._current(after or NO_BACKOFF, at_us), at_us, allowed=True)

    def mark(self, state: Backoff) -> Start:
        """The start of the window that was charged."""
        return state[0]

    def _refund(
        self, state: Backoff | None, mark: int, at_us: int, cost: int, low: int
    ) -> tuple[Backoff | None, int]:
        """Give back into the window that was charged, and only while it lasts."""
        if state is None:
            return state, 0
        start, count, pressure = self._current(state, at_us)
        if mark != start:
            return state, 0
        given = min(cost, count)
        return _packed(start, count - given, pressure), given

    def _used(self, state: Backoff | None, at_us: int) -> int:
        return self._current(state or NO_BACKOFF, at_us)[1]

    def latest_us(self, state: Backoff) -> int:
        """The start of the window, or of a cool-down since."""
        start, _, pressure = state
        start_us: int = start
        if pressure is None:
            return start_us
        known: Pressure = pressure
        return max(start_us, known[3])

    def _cut(self, state: Backoff, now_us: int) -> Backoff:
        start, count, pressure = state
        start = min(start, now_us - now_us % self.window_us)
        if pressure is None:
            return (start, count, None)
        known: Pressure = pressure
        denials, level, denied, cool_us = known
        return (start, count, (denials, level, denied, min(cool_us, now_us)))

    def limit_at(self, level: int) -> int:
        """The limit at `level`: halved each time, but at least 1 unless it is 0."""
        return max(1, self.limit >> level) if self.limit else 0

    def idle_at_us(self, state: Backoff) -> int:
        """When the window has ended, every level is forgiven and no cool-down runs."""
        start_us, count, pressure = state
        denials, level, denied, cool_us = pressure or CALM
        windows = max(int(count > 0), level + denied, denied + 1 if denials else 0)
        ends_us = start_us + windows * self.window_us if windows else 0
        return max(ends_us, cool_us + self.window_us if cool_us else 0)

    def encode(self, state: Backoff) -> tuple[int, ...]:
        """The six numbers, side by side."""
        start_us, count, pressure = state
        return (start_us, count, *(pressure or CALM))

    def decode(self, data: Any) -> Backoff:
        """The inverse of `encode`."""
        start_us, count, denials, level, denied, cool_us = data
        for number in (start_us, count, denials, cool_us):
            require_whole("backoff state", number, 0, MAX_EXACT)
        require_whole("level", level, 0, MAX_LEVEL)
        require_whole("denied", denied, 0, 1)
        return _packed(start_us, count, (denials, level, denied, cool_us))

    def _current(self, state: Backoff, now_us: int) -> tuple[Start, int, Pressure]:
        """The state as it stands at `now_us`, with every window that has ended accounted for."""
        start_us, end_us, start = self._now[0]
        if not start_us <= now_us < end_us:
            start_us, end_us, start = self._turned(now_us)
        was, count, pressure = state
        if was is None:
            return (start, 0, CALM)
        ended = was is not start and was < start
        if pressure is None:
            return (start, 0 if ended else count, CALM)
        known: Pressure = pressure
        if not ended:
            return (start, count, known)
        denials, level, denied, cool_us = known
        quiet = (start_us - was) // self.window_us - denied
        if quiet:
            denials = 0
        return (start, 0, (denials, max(0, level - quiet), 0, cool_us))

    def _turned(self, now_us: int) -> Bounds:
        """Remember the window that runs now."""
        start_us = now_us - now_us % self.window_us
        bounds = self._now[0] = (start_us, start_us + self.window_us, start_us)
        return bounds

    def _answer(self, state: tuple[Start, int, Pressure], now_us: int, *, allowed: bool) -> Answer:
        start, count, (denials, level, denied, cool_us) = state
        start_us: int = start
        remaining = self.limit >> level or (1 if self.limit else 0)
        remaining = remaining - count if remaining > count else 0
        # As `idle_at_us` has it: the window, each level, and a run of denials have to pass.
        windows = level + denied
        if denials and windows <= denied:
            windows = denied + 1
        elif count and not windows:
            windows = 1
        reset_after_us = start_us + windows * self.window_us - now_us if windows else 0
        if cool_us:
            cooling_us = cool_us + self.window_us - now_us
            if cooling_us > 0:
                remaining = 0
            if cooling_us > reset_after_us:
                reset_after_us = cooling_us
        return (allowed, remaining, 0 if allowed else self.retry_us << level, reset_after_us, level)


def _packed(start: Start, count: int, pressure: Pressure) -> Backoff:
    """The state that these numbers make."""
    return (start, count, None if pressure == CALM else pressure)
