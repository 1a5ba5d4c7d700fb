"""The clocks of a simulation. A node's wall clock may be wrong, its monotonic clock fast; the store's may step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .loop import SimulatedLoop, SimulatedProcess

EPOCH_US: Final = 1_800_000_000_000_000
"""The time of day at the start of every simulation."""


class ProcessClock:
    """The time as a process sees it; see `Clock`."""

    def __init__(self, loop: SimulatedLoop, process: SimulatedProcess, offset_us: int = 0) -> None:
        self._loop, self._process = loop, process
        self.epoch_ns = (EPOCH_US + offset_us) * 1_000

    def ticks(self) -> int:
        """See `Clock.ticks`."""
        return self._process.own_us(self._loop.now) * 1_000

    def now_us(self) -> int:
        """See `Clock.now_us`."""
        return (self.ticks() + self.epoch_ns) // 1_000

    def sleep_us(self, duration_us: int) -> None:
        """Not supported: nothing may block here."""
        raise NotImplementedError

    async def asleep_us(self, duration_us: int) -> None:
        """See `Clock.asleep_us`."""
        await asyncio.sleep(max(0, duration_us) / 1e6)


class SetClock:
    """A clock that is set explicitly: the store sets it before each command."""

    epoch_ns = 0

    def __init__(self) -> None:
        self.us = EPOCH_US

    def ticks(self) -> int:
        """See `Clock.ticks`."""
        return self.us * 1_000

    def now_us(self) -> int:
        """See `Clock.now_us`."""
        return self.us

    def sleep_us(self, duration_us: int) -> None:
        """Not supported: nothing may block here."""
        raise NotImplementedError

    async def asleep_us(self, duration_us: int) -> None:
        """Not supported: nothing waits on this clock."""
        raise NotImplementedError
