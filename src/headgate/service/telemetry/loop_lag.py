"""LoopLag: how late the event loop is, measured by a timer that should fire every 50 ms."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY: Final = 0.05
SPAN: Final = 10.0


class LoopLag:
    """The longest delays of the last ten seconds. Call `start` in the loop to watch."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._late: deque[tuple[float, float]] = deque()
        self.on_tick: Callable[[float], None] | None = None
        """Called with every measured delay."""

    @property
    def worst(self) -> float:
        """The longest delay, in seconds."""
        return self._late[0][1] if self._late else 0.0

    def start(self) -> None:
        """Start watching; does nothing if it is running."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._wait(loop)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + EVERY
        self._timer = loop.call_at(due, self._fired, loop, due)

    def _fired(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        late = loop.time() - due
        self.note(loop.time(), late)
        if self.on_tick is not None:
            self.on_tick(late)
        self._wait(loop)

    def note(self, now: float, late: float) -> None:
        """Keep a delay until a longer one comes, for ten seconds at most."""
        while self._late and self._late[-1][1] <= late:
            self._late.pop()
        self._late.append((now, late))
        while self._late[0][0] < now - SPAN:
            self._late.popleft()
