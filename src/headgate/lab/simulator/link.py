"""The connection from one node to the store. It delays, reorders, drops, repeats and breaks, but never corrupts.

What is sent while the connection is cut either vanishes or arrives once it is open again. Real connections behave like
this: the other end may process a command long after the sender has given up. Only idempotent commands are ever
delivered twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import EngineConnectionError, HeadgateError
from .loop import WORLD
from .sometimes import Sometimes

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Callable
    from random import Random

    from .loop import SimulatedLoop
    from .store import SimulatedStore, StoreCommand

DELAY_US: Final = (50, 900)
REPEATABLE: Final = frozenset(("settle", "release", "renew"))


def broken(message: str) -> EngineConnectionError:
    """The error for a connection that was lost after something had been sent."""
    return EngineConnectionError(message, transient=True, indefinite=True)


@dataclass(eq=False)
class SimulatedLink:
    """One node's connections to the store."""

    loop: SimulatedLoop
    store: SimulatedStore
    rng: Random
    reached: Counter[Sometimes]
    slow_us: tuple[int, int] | None = None
    cut: bool = False
    refused: bool = False
    """Connections are refused, not swallowed."""
    deaf: bool = False
    """Requests arrive, but answers do not."""
    repeats: float = 0.0
    kept: list[Callable[[], None]] = field(default_factory=list)
    """What was sent while the connection was cut, and arrives once it is open."""
    _open: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _sent: int = 0
    _last_done: int = 0

    def send(self, command: StoreCommand, reply: asyncio.Future[Any]) -> None:
        """Deliver a command to the store, and its answer back."""
        if not self.store.up or self.refused:
            self.reached[Sometimes.REFUSED] += 1
            error = EngineConnectionError("connection refused", transient=True)
            self._later(lambda: end(reply, error))
            return
        self._sent += 1
        number = self._sent
        self._open[number] = reply
        times = 2 if command.verb in REPEATABLE and self.rng.random() < self.repeats else 1
        arrive = self._arrival(number, command)
        for _ in range(times):
            if not self.cut:
                self._later(arrive)
            elif self.rng.random() < 0.5:
                self.kept.append(arrive)
            else:
                self.reached[Sometimes.LOST_UNKNOWN] += 1

    def reset(self) -> None:
        """Break every connection; what is in flight still arrives, if the store is up."""
        waiting, self._open = self._open, {}
        for reply in waiting.values():
            end(reply, broken("the connection was reset"))

    def heal(self) -> None:
        """Open the connection again, and deliver what was kept."""
        self.cut = self.refused = self.deaf = False
        self.slow_us = None
        kept, self.kept = self.kept, []
        for arrive in kept:
            self._later(arrive)

    def idle(self) -> bool:
        """Whether nothing is pending."""
        return not any(not reply.done() for reply in self._open.values())

    def _arrival(self, number: int, command: StoreCommand) -> Callable[[], None]:
        done = False

        def arrive() -> None:
            reply = self._open.get(number)
            waits = reply is not None and not reply.done()

            def answer(result: Any) -> None:
                nonlocal done
                if done:  # A repeated command has been answered already.
                    return
                done = True
                if number < self._last_done:
                    self.reached[Sometimes.OVERTAKEN] += 1
                self._last_done = max(self._last_done, number)
                waited = waits and reply is not None and not reply.done()
                if not waited:
                    self.reached[Sometimes.LATE_UNKNOWN] += 1
                elif self.deaf or self.cut:
                    self.reached[Sometimes.DONE_UNKNOWN] += 1
                else:
                    self._later(lambda: self._answered(number, result))

            self.store.arrive(command, answer)

        return arrive

    def _answered(self, number: int, result: Any) -> None:
        reply = self._open.pop(number, None)
        if reply is None or self.deaf or self.cut:
            self.reached[Sometimes.DONE_UNKNOWN] += 1
        else:
            end(reply, result)

    def _later(self, callback: Callable[[], None]) -> None:
        delay_us = self.rng.randint(*(self.slow_us or self.store.slow_us or DELAY_US))
        self.loop.at(self.loop.now + delay_us, callback, context=WORLD)


def end(reply: asyncio.Future[Any], result: Any) -> None:
    """Resolve a reply, if anyone waits for it."""
    if reply.done():
        return
    if isinstance(result, HeadgateError):
        reply.set_exception(result)
    else:
        reply.set_result(result)
