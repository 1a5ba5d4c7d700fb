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
from ..engines.verbs import run, run_async
from ..errors import HeadgateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Chore, Guard

AT_ONCE: Final = 4
"""How many chores may be in flight at a time on an async engine; one of them may settle many chunks."""


class ChoreThread:
    """Runs the chores of one guard. Safe to use from several threads."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard
        self._begin()
        _fork.reset_after_fork(self)

    def _begin(self) -> None:
        self._starting = threading.Lock()
        self._runs = False
        self._working = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()

    def after_fork(self) -> None:
        """Called in a child process, which does not have the parent's thread."""
        self._begin()

    def start(self) -> None:
        """Schedule the next run, if there will be anything to do."""
        with self._starting:
            if not self._runs and self._guard.chore_pause() is not None:
                start_new_thread(self._run, ())
                self._runs = True

    def finish(self) -> None:
        """Wait for the chores that are running, then run all that are left."""
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
                            run(chore(self._engine))
        except BaseException:  # A bug; the next `start` creates a new thread.
            self._runs = False
            raise

    def _next_pause(self) -> float | None:
        """Seconds to sleep; `None` when there is nothing left to do and the thread should end."""
        with self._starting:
            pause = self._guard.chore_pause()
            self._runs = pause is not None
            return pause


class ChoreTimer:
    """The same for an async engine. Chores run in the event loop that last called `start` while no timer was set."""

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
        with suppress(RuntimeError):  # No running loop: another caller will schedule it.
            if pause is not None:
                self._loop = asyncio.get_running_loop()
                self._timer = self._loop.call_later(pause, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._is_working:
            chores = self._guard.chores()
            if chores:
                self._work = asyncio.get_running_loop().create_task(self._do_all(chores))
                self._work.add_done_callback(lambda _: self.start())
        # While chores are running the pause may be 0, so the task's callback restarts the timer instead.
        if not self._is_working:
            self.start()

    @property
    def _is_working(self) -> bool:
        """Whether chores are running, in a loop that runs: one may have been stopped in the middle of them."""
        work = self._work
        return work is not None and not work.done() and work.get_loop().is_running()

    async def _do_all(self, chores: Sequence[Chore]) -> None:
        for place in range(0, len(chores), AT_ONCE):
            await asyncio.gather(*map(self._do, chores[place : place + AT_ONCE]))

    async def _do(self, chore: Chore) -> bool:
        try:
            await run_async(chore(self._engine))
        except HeadgateError:
            return False
        return True

    async def finish(self) -> None:
        """Run all chores that are left, but stop when the engine fails."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None and self._work.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._work])
        chores = self._guard.last_chores()
        for place in range(0, len(chores), AT_ONCE):
            done = await asyncio.gather(*map(self._do, chores[place : place + AT_ONCE]))
            if not all(done):
                return


def _do_until_one_fails(engine: Any, chores: Sequence[Chore]) -> None:
    """Stop at the first failure: someone is waiting for the engine to close."""
    with suppress(HeadgateError):
        for chore in chores:
            run(chore(engine))
