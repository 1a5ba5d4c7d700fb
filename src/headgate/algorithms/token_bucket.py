"""Token bucket: a burst at once, then a steady rate. The choice for APIs that allow bursts.

The bucket is looked at from below: instead of tokens left it keeps the **backlog**, the time until
the key is idle again. Taking `cost` units adds `cost * emission` to it, time drains it, and a take
fits while the backlog stays within `capacity`, the emission time of a full burst.

    capacity ┤····█·····························   burst 4, 1 unit a second
             │   ██   take 4: full              (each take is one step up,
    backlog  │  ███▙                             one second is one step down)
             │ █████▙  ▟▙  take 1
           0 ┼██████▙▟███▙───────▶ time

The state is the backlog and the moment it was true (`stamp_us`), not an absolute time of arrival: a
clock that steps back then finds no debt in its future. Both numbers are below 2**53 and share one
integer, `stamp_us << 53 | backlog`, which takes half the memory of a tuple of two.

The backlog counts in 1/256 microseconds. Emission is rounded up to that grain, so the rate is never
exceeded, and is at most 0.4 % slower at the fastest rate allowed (one unit a microsecond).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from .base import (
    MAX_EXACT,
    NEVER,
    Answer,
    Candidate,
    State,
    Whole,
    refuse,
    require_whole,
    require_window,
)

GRAIN: Final = 256
GRAIN_BITS: Final = 8
ROUND_UP: Final = GRAIN - 1
STAMP_SHIFT: Final = 53
BACKLOG_MASK: Final = (1 << STAMP_SHIFT) - 1


class TokenBucket(Candidate):
    """`limit` units flow back per window; an idle key can give `burst` at once: the limit, if that is 0."""

    __slots__ = ("burst", "capacity", "emission")
    __match_args__ = ("limit", "window_us", "burst")
    name: ClassVar[str] = "token_bucket"

    def __init__(self, limit: Whole, window_us: Whole, burst: Whole = 0) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_EXACT)
        self.window_us = require_window(window_us)
        given = require_whole("burst", burst, 0, MAX_EXACT)
        if self.limit > self.window_us:
            refuse(
                f"token_bucket gives at most one unit a microsecond, and {limit} in "
                f"{window_us} us is more: count in larger units, or use sliding_window",
                "limit",
            )
        self.burst = given or self.limit
        self.emission = -(-self.window_us * GRAIN // self.limit) if self.limit else 0
        self.capacity = self.burst * self.emission
        if self.capacity > MAX_EXACT:
            refuse(
                f"a burst of {self.burst} would take {self.capacity // GRAIN} us to flow back, which is "
                f"more than {MAX_EXACT // GRAIN}: lower the burst",
                "burst",
            )
        if given and not self.limit:
            refuse("a limit of 0 denies everything and cannot have a burst", "burst")
        self.identity = f"{self.name}:{window_us}"
        super().__init__(self.limit, self.window_us, self.burst)

    def take(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Take `cost` units if they fit."""
        backlog = passed_us = 0
        if state is not None:
            stamp_us: int = state >> STAMP_SHIFT
            kept: int = state & BACKLOG_MASK
            backlog, passed_us = kept, now_us - stamp_us
            if passed_us > 0:
                backlog -= passed_us << GRAIN_BITS
                if backlog < 0:
                    backlog = 0
        emission = self.emission
        asked = backlog + (emission if cost == 1 else cost * emission)
        left = self.capacity - asked
        # Shifts, because dividing a number of this size costs as much as all the rest.
        if left >= 0 and cost <= self.burst:
            if cost:
                state = now_us << STAMP_SHIFT | asked
            remaining = left // emission if emission else 0
            return state, (True, remaining, 0, (asked + ROUND_UP) >> GRAIN_BITS, 0)
        if passed_us < 0:  # The clock stepped back: start draining from here.
            state = now_us << STAMP_SHIFT | backlog
        if cost > 1:
            return state, self._denied(backlog, cost)
        retry_after_us = (ROUND_UP - left) >> GRAIN_BITS if cost <= self.burst else NEVER
        return state, (False, 0, retry_after_us, (backlog + ROUND_UP) >> GRAIN_BITS, 0)

    def charge(self, state: State, now_us: int, cost: int) -> State:
        """`force` without the answer."""
        backlog = 0
        if state is not None:
            stamp_us: int = state >> STAMP_SHIFT
            kept: int = state & BACKLOG_MASK
            backlog, passed_us = kept, now_us - stamp_us
            if passed_us > 0:
                backlog -= passed_us << GRAIN_BITS
                if backlog < 0:
                    backlog = 0
        backlog += self.emission if cost == 1 else cost * self.emission
        return now_us << STAMP_SHIFT | (backlog if backlog < MAX_EXACT else MAX_EXACT)

    def line_up(
        self, state: int | None, now_us: int, cost: int, wait_us: int
    ) -> tuple[int | None, Answer]:
        """Take a slot that comes free within `wait_us`: first come, first served.

        When allowed, `retry_after_us` says how long to wait before using the units.
        """
        late = self._backlog(state, now_us) + cost * self.emission - self.capacity
        late_us = -(-late // GRAIN)
        # Full until the whole microsecond of the start: the next in line keeps its distance to it.
        asked = self.capacity + late_us * GRAIN
        if late <= 0 or cost > self.burst or late_us > wait_us or asked > MAX_EXACT:
            return self.take(state, now_us, cost)
        return now_us << STAMP_SHIFT | asked, (True, 0, late_us, -(-asked // GRAIN), 0)

    def leave_line(self, state: int | None, mark: int, now_us: int, cost: int) -> int | None:
        """Give back the slot that `line_up` booked at `mark`, if it is the last one in line.

        Those behind have already been told when to start. Closing a gap in front of them would let
        a newcomer start beside them, so an earlier slot stays charged.
        """
        if state != mark:
            return state
        return now_us << STAMP_SHIFT | max(0, self._backlog(state, now_us) - cost * self.emission)

    def line_ends_us(self, state: int | None, now_us: int) -> int:
        """When the last one in line may start; 0 when nobody waits."""
        late = self._backlog(state, now_us) - self.capacity
        return now_us - (-late // GRAIN) if late > 0 else 0

    def peek(self, state: int | None, now_us: int, cost: int) -> Answer:
        """Say what `take` would answer."""
        backlog = self._backlog(state, now_us)
        if backlog + cost * self.emission <= self.capacity and cost <= self.burst:
            return (True, self._remaining(backlog), 0, -(-backlog // GRAIN), 0)
        return self._denied(backlog, cost)

    def force(self, state: int | None, now_us: int, cost: int) -> tuple[int | None, Answer]:
        """Charge without asking; the debt drains like any other backlog."""
        backlog = self._backlog(state, now_us)
        if cost:
            backlog = min(backlog + cost * self.emission, MAX_EXACT)
            state = now_us << STAMP_SHIFT | backlog
        return state, (True, self._remaining(backlog), 0, -(-backlog // GRAIN), 0)

    def mark(self, state: int) -> int:
        """The backlog and its moment, right after the take."""
        return state

    def refund(
        self, state: int | None, mark: int, now_us: int, cost: int, refunded: int
    ) -> tuple[int | None, int]:
        """Give back what is left of a take that sits in the backlog behind everything before it.

        The backlog drains first in, first out: of the take that led to `mark`, at most the mark's
        backlog less the time passed since is still there. Refunds since then moved it forward by
        `refunded`. An engine asks for no refund while a line waits: those in it have been told when
        to start (see `leave_line`).
        """
        backlog = self._backlog(state, now_us)
        passed = max(0, now_us - (mark >> STAMP_SHIFT)) * GRAIN
        left = (mark & BACKLOG_MASK) - passed - refunded
        given = max(0, min(cost * self.emission, left, backlog))
        if not given:
            return state, 0
        return now_us << STAMP_SHIFT | (backlog - given), given

    def used(self, state: int | None, now_us: int) -> int:
        """Units that have not flowed back yet, started ones included."""
        return -(-self._backlog(state, now_us) // self.emission) if self.emission else 0

    def idle_at_us(self, state: int) -> int:
        """When the backlog has drained."""
        return (state >> STAMP_SHIFT) - (-(state & BACKLOG_MASK) // GRAIN)

    def encode(self, state: int) -> tuple[int, int]:
        """`(stamp_us, backlog)`."""
        return state >> STAMP_SHIFT, state & BACKLOG_MASK

    def decode(self, data: Any) -> int:
        """The inverse of `encode`."""
        stamp_us, backlog = data
        stamp_us = require_whole("stamp_us", stamp_us, 0, MAX_EXACT)
        return stamp_us << STAMP_SHIFT | require_whole("backlog", backlog, 0, MAX_EXACT)

    def _backlog(self, state: int | None, now_us: int) -> int:
        if state is None:
            return 0
        backlog = state & BACKLOG_MASK
        passed_us = now_us - (state >> STAMP_SHIFT)
        if passed_us > 0:
            backlog -= passed_us * GRAIN
        return backlog if backlog > 0 else 0

    def _remaining(self, backlog: int) -> int:
        return max(0, self.capacity - backlog) // self.emission if self.emission else 0

    def _denied(self, backlog: int, cost: int) -> Answer:
        emission = self.emission
        free = self.capacity - backlog
        retry_after_us = NEVER if cost > self.burst else -((free - cost * emission) // GRAIN)
        remaining = free // emission if free >= emission > 0 else 0
        return (False, remaining, retry_after_us, -(-backlog // GRAIN), 0)
