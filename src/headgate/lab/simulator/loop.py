"""An event loop in virtual time: nothing waits, the clock jumps to the next event.

It has everything that real code needs from a loop: callbacks, timers, futures, tasks. So guards run in it unchanged.
Callbacks belong to the process in whose context they were created. Callbacks of a paused process are postponed to the
end of the pause, and those of a dead one are dropped. Events of the same moment run in order of creation.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

US_PER_SECOND: Final = 1_000_000
PROCESS: Final[ContextVar[SimulatedProcess | None]] = ContextVar("PROCESS", default=None)


@dataclass(eq=False, slots=True)
class SimulatedProcess:
    """A process of the simulated operating system."""

    name: str
    rate: int = 1_000
    """How many milliseconds its monotonic clock counts per second."""
    alive: bool = True
    paused_until: int = 0
    pauses: int = 0

    def own_us(self, true_us: int) -> int:
        """The monotonic clock of this process at a true time."""
        return true_us * self.rate // 1_000

    def true_us(self, own_us: int) -> int:
        """The first true time at which that clock shows at least this."""
        return -(-own_us * 1_000 // self.rate)

    def context(self) -> Context:
        """A context for callbacks of this process."""
        context = Context()
        context.run(PROCESS.set, self)
        return context


class Event:
    """A callback and its time, used by asyncio as a handle."""

    __slots__ = ("args", "at", "callback", "context", "gone", "process")

    def __init__(
        self, at: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.at, self.callback, self.args, self.context = at, callback, args, context
        self.process = context.get(PROCESS)
        self.gone = False

    def cancel(self) -> None:
        """See `asyncio.Handle.cancel`."""
        self.gone = True

    def cancelled(self) -> bool:
        """See `asyncio.Handle.cancelled`."""
        return self.gone

    def when(self) -> float:
        """See `asyncio.TimerHandle.when`."""
        return self.at / US_PER_SECOND


AbstractLoop: Any = asyncio.AbstractEventLoop
"""Untyped: methods that are not overridden raise `NotImplementedError`, deliberately."""


@dataclass(eq=False)
class SimulatedLoop(AbstractLoop):  # type: ignore[misc]
    """The loop. It has only what needs no I/O and no threads."""

    now: int = 0
    crashes: list[str] = field(default_factory=list)
    """Uncaught exceptions."""
    _events: list[tuple[int, int, Event]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def run(self, until: int) -> None:
        """Run all events up to this moment."""
        asyncio._set_running_loop(self)
        try:
            while self._events and self._events[0][0] <= until:
                at, number, event = heappop(self._events)
                process = event.process
                if event.gone or (process is not None and not process.alive):
                    continue
                if process is not None and process.paused_until > at:
                    heappush(self._events, (process.paused_until, number, event))
                    continue
                self.now = at
                try:
                    event.context.run(event.callback, *event.args)
                except Exception as error:  # noqa: BLE001 - any exception is a crash in the simulation
                    self.crashes.append(repr(error))
            self.now = until
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        """Cancel all remaining tasks, without letting them do anything more."""
        self._events.clear()
        for task in self._tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                if error is not None:
                    self.crashes.append(repr(error))
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = cast("Coroutine[Any, Any, Any]", task.get_coro())
                try:
                    coroutine.close()
                except RuntimeError:  # It awaits something in its `finally`.
                    continue
        self._events.clear()
        self._tasks.clear()

    # The interface of asyncio

    def time(self) -> float:
        """See `asyncio.AbstractEventLoop.time`: the monotonic clock of the calling process."""
        process = PROCESS.get()
        return (self.now if process is None else process.own_us(self.now)) / US_PER_SECOND

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """See `asyncio.AbstractEventLoop.call_soon`."""
        return self.at(self.now, callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """See `asyncio.AbstractEventLoop.call_later`."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """See `asyncio.AbstractEventLoop.call_at`."""
        process = PROCESS.get()
        own_us = round(when * US_PER_SECOND)
        at = own_us if process is None else process.true_us(own_us)
        return self.at(at, callback, *args, context=context)

    def at(
        self, us: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        """`call_at` in integer microseconds of true time."""
        event = Event(
            max(us, self.now), callback, args, copy_context() if context is None else context
        )
        heappush(self._events, (event.at, next(self._numbers), event))
        return event

    def create_future(self) -> asyncio.Future[Any]:
        """See `asyncio.AbstractEventLoop.create_future`."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """See `asyncio.AbstractEventLoop.create_task`."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)  # Otherwise the garbage collector would decide when it ends.
        return task

    def get_debug(self) -> bool:
        """See `asyncio.AbstractEventLoop.get_debug`."""
        return False

    def is_running(self) -> bool:
        """See `asyncio.AbstractEventLoop.is_running`."""
        return True

    def is_closed(self) -> bool:
        """See `asyncio.AbstractEventLoop.is_closed`."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See `asyncio.AbstractEventLoop.call_exception_handler`."""
        # Called by the garbage collector, so at no definite time; `close` checks the results of tasks.


WORLD: Final = Context()
"""The context of everything outside of processes: the network, the store, and the faults."""
