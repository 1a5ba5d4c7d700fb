"""Clocks: the only place in the package that reads the operating system's time.

Inside Headgate time is an integer count of microseconds since the Unix epoch. A clock gives it in two parts: `ticks()`,
nanoseconds that only move forward, and `epoch_ns`, the wall time of tick zero in whole microseconds. The sum is a wall
clock that never steps: an NTP correction or an operator's `date -s` neither resets counts nor freezes a key. (A store's
own clock may still step, but for one key time never runs backwards; see `algorithms/base.py`.)

The split also keeps the hot path short: `ticks` is a C function that an engine calls directly.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Ticks = Callable[[], int]

US_PER_SECOND = 1_000_000
SURE_NS_PER_US = 900
"""For what must be over when it is over on another machine: a tenth less, as this clock may be that much slower."""


class Clock(Protocol):
    """What an engine and a waiting limiter need to know about time."""

    @property
    def ticks(self) -> Ticks:
        """A function that returns nanoseconds and never goes back."""

    @property
    def epoch_ns(self) -> int:
        """Nanoseconds since the Unix epoch at tick zero, in whole microseconds: the last three digits are 0."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""

    def sleep_us(self, duration_us: int) -> None:
        """Block this thread for `duration_us` of this clock's time."""

    async def asleep_us(self, duration_us: int) -> None:
        """Suspend this task for `duration_us` of this clock's time."""


class SystemClock:
    """The real clock: wall time read once, carried forward by the monotonic clock."""

    def __init__(self) -> None:
        self.ticks: Ticks = time.monotonic_ns
        self.epoch_ns = (time.time_ns() - time.monotonic_ns()) // 1000 * 1000

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return (self.ticks() + self.epoch_ns) // 1000

    def sleep_us(self, duration_us: int) -> None:
        """Block this thread."""
        time.sleep(max(0, duration_us) / US_PER_SECOND)

    async def asleep_us(self, duration_us: int) -> None:
        """Suspend this task."""
        await asyncio.sleep(max(0, duration_us) / US_PER_SECOND)


class ManualClock:
    """A clock for tests: it stands still until you advance it; sleeping advances it, too.

    A sleeper wakes as soon as the clock has reached its time, and the clock is pushed there by the sleep itself, so a
    test that waits for an hour takes no time and needs no tolerance. Concurrent sleeps take as long as the longest one,
    not as long as their sum.
    """

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now_us = round(now * US_PER_SECOND)
        self._lock = threading.Lock()
        self.ticks: Ticks = self._ticks
        self.epoch_ns = 0

    def _ticks(self) -> int:
        return self._now_us * 1000

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._now_us

    def advance(self, seconds: float = 0.0, *, us: int = 0) -> None:
        """Move the clock by `seconds` plus `us` microseconds; negative values step it back."""
        with self._lock:
            self._now_us += round(seconds * US_PER_SECOND) + us

    def sleep_us(self, duration_us: int) -> None:
        """Move the clock to the end of the sleep, if it is not past it already."""
        wake_us = self._now_us + duration_us
        with self._lock:
            self._now_us = max(self._now_us, wake_us)

    async def asleep_us(self, duration_us: int) -> None:
        """Let other tasks run, then move the clock to the end of the sleep."""
        wake_us = self._now_us + duration_us
        await asyncio.sleep(0)
        with self._lock:
            self._now_us = max(self._now_us, wake_us)
