"""Runs the chores of a guard: in a thread for a blocking engine, by a timer in the event loop for an async one.

Both exist only while there is work. A chore that fails is dropped: its units expire without it.
"""

from __future__ import annotations

import asyncio
import threading
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from .. import _fork
from ..errors import HeadgateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Chore, Guard

AT_ONCE: Final = 128
"""Chores that are on their way to an awaited engine at the same time."""


class ChoreThread:
    """Does the chores of one guard. Safe to use from several threads."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._begin()
        _fork.remember(self)

    def _begin(self) -> None:
        self._starting = threading.Lock()
        self._runs = False
        self._working = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()

    def after_fork(self) -> None:
        """The thread is the parent's."""
        self._begin()

    def start(self) -> None:
        """Schedule the next run, if there will be anything to do."""
        with self._starting:
            if not self._runs and self._guard.chore_pause() is not None:
                start_new_thread(self._run, ())
                self._runs = True

    def finish(self) -> None:
        """Do all that is left, after what the thread is doing now."""
        self._wake.put(None)
        with self._working:
            _do_until_one_fails(self._engine, self._guard.last_chores())

    def _run(self) -> None:
        try:
            while (pause := self._next_pause()) is not None:
                with suppress(Empty):
                    self._wake.get(timeout=pause)
                with self._working:
                    for chore in self._guard.chores():
                        with suppress(HeadgateError):
                            chore(self._engine)
        except BaseException:  # A bug; the next start creates another thread.
            self._runs = False
            raise

    def _next_pause(self) -> float | None:
        """How long to sleep; `None` when the thread has nothing to do, and ends."""
        with self._starting:
            pause = self._guard.chore_pause()
            self._runs = pause is not None
            return pause


class ChoreTimer:
    """The same for an awaited engine. The work is done in the loop that asked last while no other was busy with it."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Schedule the next run, if there will be anything to do."""
        if self._timer is not None and self._loop is not None and self._loop.is_running():
            return
        pause = self._guard.chore_pause()
        self._timer = None
        with suppress(RuntimeError):  # No loop runs: another caller will schedule it.
            if pause is not None:
                self._loop = asyncio.get_running_loop()
                self._timer = self._loop.call_later(pause, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._work is None or self._work.done():
            chores = self._guard.chores()
            if chores:
                self._work = asyncio.get_running_loop().create_task(self._do_all(chores))
                self._work.add_done_callback(lambda _: self.start())
        if (
            self._work is None or self._work.done()
        ):  # Else what is due now would be looked at without a pause.
            self.start()

    async def _do_all(self, chores: Sequence[Chore]) -> None:
        for place in range(0, len(chores), AT_ONCE):
            await asyncio.gather(*map(self._do, chores[place : place + AT_ONCE]))

    async def _do(self, chore: Chore) -> bool:
        try:
            await chore(self._engine)
        except HeadgateError:
            return False
        return True

    async def finish(self) -> None:
        """Do all that is left, unless the engine does not answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._work])
        chores = self._guard.last_chores()
        for place in range(0, len(chores), AT_ONCE):
            done = await asyncio.gather(*map(self._do, chores[place : place + AT_ONCE]))
            if not all(done):
                return


def _do_until_one_fails(engine: Any, chores: Sequence[Chore]) -> None:
    """Do not retry an unreachable store forever: a caller waits for the engine to close."""
    with suppress(HeadgateError):
        for chore in chores:
            chore(engine)
