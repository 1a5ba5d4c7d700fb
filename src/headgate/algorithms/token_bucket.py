"""Token bucket: a burst at once, then a steady rate. The choice for APIs that allow bursts.

Instead of the tokens left, the state has the **backlog**, the time until the bucket is full again. Taking `cost` units
adds `cost * emission` to it, time drains it, and a take fits while the backlog stays within `capacity`, the emission
time of a full burst.

    capacity ┤····█·····························   burst 4, 1 unit a second
             │   ██   take 4: full              (each take is one step up,
    backlog  │  ███▙                             one second is one step down)
             │ █████▙  ▟▙  take 1
           0 ┼██████▙▟███▙───────▶ time

The state is the backlog and the time at which it was computed (`stamp_us`), not an absolute time of arrival: if a clock
steps back too far, cutting the stamp to now keeps the debt. Both numbers are below 2**53 and share one integer,
`stamp_us << 53 | backlog`, which takes half the memory of a tuple of two.

While a reservation is open the state also keeps a **low-water mark**, the smallest backlog since the newest one was
made: after a refund the bucket has what it would have if the real cost had been taken in the first place, and what has
drained since then has already refilled. It is stored above the other two, as `low + 1 << 106`, and makes the stamp look
far ahead of now: keys without a reservation pay nothing for it.

The backlog counts in 1/256 microseconds. Emission is rounded up to that grain, so the rate is never
exceeded, and is at most 0.4 % slower at the fastest rate allowed (one unit a microsecond).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from .base import (
    MAX_EXACT,
    MAX_LEAD_US,
    NEVER,
    Answer,
    Candidate,
    State,
    Whole,
    later,
    refuse,
    require_whole,
    require_window,
)

GRAIN: Final = 256
GRAIN_BITS: Final = 8
ROUND_UP: Final = GRAIN - 1
STAMP_SHIFT: Final = 53
BACKLOG_MASK: Final = (1 << STAMP_SHIFT) - 1
LOW_SHIFT: Final = 2 * STAMP_SHIFT
PLAIN_MASK: Final = (1 << LOW_SHIFT) - 1


class TokenBucket(Candidate):
    """`limit` units refill per window; an idle key allows `burst` at once, which defaults to the limit."""

    __slots__ = ("burst", "capacity", "emission")
    __match_args__ = ("limit", "window_us", "burst")
    name: ClassVar[str] = "token_bucket"
    guarantee: ClassVar[str] = "at most the burst plus what refills meanwhile, in any span"
    watched: ClassVar[bool] = True
    leasable: ClassVar[bool] = True
    regional: ClassVar[tuple[str, ...]] = ("split", "merge")

    def __init__(self, limit: Whole, window_us: Whole, burst: Whole = 0) -> None:
        self.limit = require_whole("limit", limit, 0, MAX_EXACT)
        self.window_us = require_window(window_us)
        self.max_lead_us = min(self.window_us, MAX_LEAD_US)
        given = require_whole("burst", burst, 0, MAX_EXACT)
        if self.limit > self.window_us:
            refuse(
                f"token_bucket allows at most one unit per microsecond, and {limit} in "
                f"{window_us} us is more: count in larger units, or use sliding_window",
                "limit",
            )
        self.burst = given or self.limit
        self.emission = -(-self.window_us * GRAIN // self.limit) if self.limit else 0
        self.capacity = self.burst * self.emission
        if self.capacity > MAX_EXACT:
            refuse(
                f"a burst of {self.burst} would take {self.capacity // GRAIN} us to refill, which is "
                f"more than {MAX_EXACT // GRAIN}: lower the burst",
                "burst",
            )
        if given and not self.limit:
            refuse("a limit of 0 denies everything and cannot have a burst", "burst")
        self.identity = f"{self.name}:{window_us}"
        super().__init__(self.limit, self.window_us, self.burst)

    def take(self, state: State, now_us: int, cost: int) -> tuple[State, Answer]:
        """Take `cost` units if they fit."""
        backlog = 0
        if state is not None:
            stamp_us: int = state >> STAMP_SHIFT
            kept: int = state & BACKLOG_MASK
            backlog, passed_us = kept, now_us - stamp_us
            if passed_us > 0:
                backlog -= passed_us << GRAIN_BITS
                if backlog < 0:
                    backlog = 0
            elif passed_us < 0:
                return self._take_ahead(state, now_us, cost)
        emission = self.emission
        asked = backlog + (emission if cost == 1 else cost * emission)
        left = self.capacity - asked
        # Shifts, because dividing a number of this size costs as much as everything else.
        if left >= 0 and cost <= self.burst:
            if cost:
                state = now_us << STAMP_SHIFT | asked
            remaining = left // emission if emission else 0
            return state, (True, remaining, 0, (asked + ROUND_UP) >> GRAIN_BITS, 0)
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
            elif passed_us < 0:
                return self._charge_ahead(state, now_us, cost)
        backlog += self.emission if cost == 1 else cost * self.emission
        return now_us << STAMP_SHIFT | (backlog if backlog < MAX_EXACT else MAX_EXACT)

    def line_up(
        self, state: int | None, now_us: int, cost: int, wait_us: int
    ) -> tuple[int | None, Answer]:
        """Book a unit that becomes free within `wait_us`: first come, first served.

        When allowed, `retry_after_us` says how long to wait before using the units.
        """
        seen, at_us = self.seen(state, now_us)
        lead_us = at_us - now_us
        backlog = self._backlog(seen, at_us)
        late = backlog + cost * self.emission - self.capacity
        late_us = -(-late // GRAIN)
        # The bucket counts as full until the start, in whole microseconds, so that the next in line keeps its distance.
        asked = self.capacity + late_us * GRAIN
        if late <= 0 or cost > self.burst or late_us + lead_us > wait_us or asked > MAX_EXACT:
            return self.take(state, now_us, cost)
        # The units are used at the start, so the backlog is lowest then.
        after = _moved(seen, at_us, max(0, backlog - late_us * GRAIN), asked)
        return after, later((True, 0, late_us, -(-asked // GRAIN), 0), lead_us)

    def leave_line(self, state: int, booked: int, before: int, now_us: int) -> int | None:
        """The state without the booking that led from `before` to `booked`; `None` if anything came after it."""
        seen, at_us = self.seen(state, now_us)
        drained = (booked & BACKLOG_MASK) - (_stamp_us(seen) - _stamp_us(booked)) * GRAIN
        if seen & BACKLOG_MASK != drained:
            return None
        kept = at_us << STAMP_SHIFT | self._backlog(before, at_us)
        return kept | before & ~PLAIN_MASK if seen > PLAIN_MASK else kept

    def _peek(self, state: int | None, at_us: int, cost: int) -> Answer:
        backlog = self._backlog(state, at_us)
        if backlog + cost * self.emission <= self.capacity and cost <= self.burst:
            return (True, self._remaining(backlog), 0, -(-backlog // GRAIN), 0)
        return self._denied(backlog, cost)

    def _force(self, state: int | None, at_us: int, cost: int) -> tuple[int | None, Answer]:
        """The debt drains like any other backlog."""
        backlog = self._backlog(state, at_us)
        if cost:
            charged = min(backlog + cost * self.emission, MAX_EXACT)
            state, backlog = _moved(state, at_us, backlog, charged), charged
        return state, (True, self._remaining(backlog), 0, -(-backlog // GRAIN), 0)

    def mark(self, state: int) -> State:
        """Nothing: a refund only needs the low-water mark."""
        return None

    def low(self, state: int | None) -> int:
        """The low-water mark; without one the key was idle in between, so it is 0."""
        return (state >> LOW_SHIFT) - 1 if state is not None and state > PLAIN_MASK else 0

    def watch(self, state: int) -> tuple[int, int]:
        """Begin a low-water mark with the take that has just led to `state`; also return the one before it."""
        return state & PLAIN_MASK | ((state & BACKLOG_MASK) + 1) << LOW_SHIFT, self.low(state)

    def unwatch(self, state: int | None) -> int | None:
        """The state without a low-water mark."""
        return state if state is None else state & PLAIN_MASK

    def _refund(
        self, state: int | None, mark: State, at_us: int, cost: int, low: int
    ) -> tuple[int | None, int]:
        """Give back what would be there now had `cost` fewer units been taken: at most what the backlog ever fell to.

        An engine asks for no refund while a line waits: those in it have been told when to start.
        """
        backlog = self._backlog(state, at_us)
        given = min(cost * self.emission, low, backlog)
        if state is None or given <= 0:
            return state, 0
        after = at_us << STAMP_SHIFT | (backlog - given)
        if state > PLAIN_MASK:
            after |= max(0, self.low(state) - given) + 1 << LOW_SHIFT
        return after, given

    def _used(self, state: int | None, at_us: int) -> int:
        """Units that have not flowed back yet, started ones included."""
        return -(-self._backlog(state, at_us) // self.emission) if self.emission else 0

    def latest_us(self, state: int) -> int:
        """The stamp."""
        return _stamp_us(state)

    def _cut(self, state: int, now_us: int) -> int:
        return now_us << STAMP_SHIFT | state & BACKLOG_MASK | state & ~PLAIN_MASK

    def idle_at_us(self, state: int) -> int:
        """When the backlog has drained."""
        return _stamp_us(state) - (-(state & BACKLOG_MASK) // GRAIN)

    def encode(self, state: int) -> tuple[int, int]:
        """`(stamp_us, backlog)`: reservations are not written to files, nor what is kept for them."""
        return _stamp_us(state), state & BACKLOG_MASK

    def decode(self, data: Any) -> int:
        """The inverse of `encode`."""
        stamp_us, backlog = data
        stamp_us = require_whole("stamp_us", stamp_us, 0, MAX_EXACT)
        return stamp_us << STAMP_SHIFT | require_whole("backlog", backlog, 0, MAX_EXACT)

    def _take_ahead(self, state: int, now_us: int, cost: int) -> tuple[int, Answer]:
        """Also where the stamp only looks as if it were ahead of now, because a low-water mark is kept."""
        seen, at_us = self.seen(state, now_us)
        plain = seen & PLAIN_MASK
        after, answer = self.take(plain, at_us, cost)
        if after != plain:
            seen = _moved(seen, at_us, self._backlog(seen, at_us), after & BACKLOG_MASK)
        return seen, later(answer, at_us - now_us)

    def _charge_ahead(self, state: int, now_us: int, cost: int) -> State:
        seen, at_us = self.seen(state, now_us)
        return self._force(seen, at_us, cost)[0]

    def _backlog(self, state: int | None, at_us: int) -> int:
        if state is None:
            return 0
        return max(0, (state & BACKLOG_MASK) - (at_us - _stamp_us(state)) * GRAIN)

    def _remaining(self, backlog: int) -> int:
        return max(0, self.capacity - backlog) // self.emission if self.emission else 0

    def _denied(self, backlog: int, cost: int) -> Answer:
        emission = self.emission
        free = self.capacity - backlog
        retry_after_us = NEVER if cost > self.burst else -((free - cost * emission) // GRAIN)
        remaining = free // emission if free >= emission > 0 else 0
        return (False, remaining, retry_after_us, -(-backlog // GRAIN), 0)


def _stamp_us(state: int) -> int:
    return (state & PLAIN_MASK if state > PLAIN_MASK else state) >> STAMP_SHIFT


def _moved(state: int | None, now_us: int, smallest: int, backlog: int) -> int:
    """A new backlog, with the low-water mark, if there is one, lowered to the smallest backlog in between."""
    after = now_us << STAMP_SHIFT | backlog
    if state is not None and state > PLAIN_MASK:
        after |= min((state >> LOW_SHIFT) - 1, smallest) + 1 << LOW_SHIFT
    return after
