"""One clock for all nodes, so that a shard that moves does not move in time.

A node whose clock is ahead would, on taking over a shard, hand out at once the units of the time in between. So the
oldest node is the reference: it uses its own wall clock, and the others follow it. Corrections are slewed: the clock
runs a little faster or slower until they are made, and never goes back. `not_before` keeps it from falling behind what
the last owner wrote.

An answer is always older than the moment at which it arrives, by an unknown time. It is treated as if it had just been
sent. So a clock set by it is behind the reference by the time of the way back, and never ahead: being behind gives
nothing away.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

US_PER_SECOND: Final = 1_000_000
SLEW: Final = 500
"""How much faster or slower the clock runs during a correction, in parts per million."""


class TimeAnswer(NamedTuple):
    """The time on another node, and when the answer arrived here."""

    there_us: int
    heard_us: int


def ahead_us(answers: Iterable[TimeAnswer]) -> int:
    """How far the other clock is ahead of this one at least, or behind it at most."""
    return max(one.there_us - one.heard_us for one in answers)


class ClusterClock:
    """A `Clock` that can be adjusted smoothly. `ticks` counts from the epoch, so engines need not know about that."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._offset_ns = wall_ns() - monotonic_ns()
        """The offset from the monotonic clock, without the correction under way."""
        self._correction_ns = 0
        self._since_ns = 0
        self.ticks: Callable[[], int] = self._ticks
        self.epoch_ns = 0

    def _ticks(self) -> int:
        now_ns = self._monotonic_ns()
        if not self._correction_ns:
            return now_ns + self._offset_ns
        return now_ns + self._offset_ns + self._corrected_ns(now_ns)

    def _corrected_ns(self, now_ns: int) -> int:
        """How much of the correction has been made so far."""
        made = (now_ns - self._since_ns) * SLEW // 1_000_000
        return (
            min(made, self._correction_ns)
            if self._correction_ns > 0
            else max(-made, self._correction_ns)
        )

    def now_us(self) -> int:
        """Microseconds since the epoch."""
        return self._ticks() // 1000

    def jump_to(self, now_us: int) -> None:
        """Jump to this time, forward or back: for a node that does not decide yet."""
        self._correction_ns = 0
        self._offset_ns = now_us * 1000 - self._monotonic_ns()

    def slew_to(self, now_us: int) -> None:
        """Approach this time gradually."""
        now_ns = self._monotonic_ns()
        self._offset_ns += self._corrected_ns(now_ns) if self._correction_ns else 0
        self._since_ns = now_ns
        self._correction_ns = now_us * 1000 - (now_ns + self._offset_ns)

    def follow_wall(self) -> None:
        """Follow the wall clock of this machine: for the reference node."""
        self.slew_to(self._wall_ns() // 1000)

    def not_before(self, now_us: int) -> None:
        """Never be behind this time from now on."""
        if self.now_us() < now_us:
            self.jump_to(now_us)

    @property
    def lead_us(self) -> int:
        """How far it is ahead of this machine's wall clock."""
        return self.now_us() - self._wall_ns() // 1000

    def sleep_us(self, duration_us: int) -> None:
        """Block this thread."""
        time.sleep(max(0, duration_us) / US_PER_SECOND)

    async def asleep_us(self, duration_us: int) -> None:
        """Suspend this task."""
        await asyncio.sleep(max(0, duration_us) / US_PER_SECOND)
