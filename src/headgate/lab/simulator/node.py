"""A node: a process with the guards that surround a shared store, and an address that clients send requests to.

The guards are the real ones. A node that is killed loses its memory, and its successor starts empty. One that is paused
continues where it was, and only its clock shows how late it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import EngineConnectionError, HeadgateError
from ...guards.breaker import Breaker
from ...guards.deny_cache import DenyCache
from ...guards.fallback import FallbackGuard
from ...guards.fallback_shell import AsyncFallbackEngine
from ...guards.leases import Leases
from ...guards.local_counts import LocalCounts
from ...guards.shares import Fleet
from ...guards.shell import AsyncGuardedEngine
from .clocks import ProcessClock
from .engine import BY_ITSELF, SimulatedEngine
from .link import broken, end
from .loop import WORLD, SimulatedProcess
from .sometimes import Sometimes

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Awaitable, Callable
    from random import Random

    from ...engines.base import AsyncEngine
    from ...rules.model import OnError
    from .clients import HistoryLines
    from .link import SimulatedLink
    from .loop import SimulatedLoop

DELAY_US: Final = (20, 300)
"""How long a request takes from a client to its node, and its answer back."""
QUIET: Final = logging.getLogger("headgate.simulation")
"""Simulations are full of outages: do not log each of them."""
QUIET.setLevel(logging.CRITICAL + 1)


class NodeFallback(AsyncFallbackEngine):
    """The fallback of a node. Calls of its recovery are marked, so that they are recorded."""

    async def _recover(self, turn: object) -> None:
        BY_ITSELF.set(True)
        await super()._recover(turn)


@dataclass(eq=False)
class SimulatedNode:
    """One node, through all its restarts."""

    name: str
    loop: SimulatedLoop
    link: SimulatedLink
    rng: Random
    reached: Counter[Sometimes]
    timeout_us: int
    book: HistoryLines
    policy: OnError = "raise"
    members: tuple[str, ...] = ()
    clock_offset_us: int = 0
    rate: int = 1_000
    lease_us: int = 0
    """How long it may hold units."""
    process: SimulatedProcess = field(init=False)
    engine: AsyncEngine = field(init=False)
    store: SimulatedEngine = field(init=False)
    """Its engine for the store."""
    fallback: FallbackGuard = field(init=False)
    leases: Leases = field(init=False)
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _asked: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start or restart."""
        self.process = SimulatedProcess(self.name, self.rate)
        clock = ProcessClock(self.loop, self.process, self.clock_offset_us)
        self.store = engine = SimulatedEngine(
            self.loop, self.link, clock, self.timeout_us, book=self.book, node=self.name
        )
        breaker = Breaker(clock, self.timeout_us / 1e6)
        fleet = Fleet(len(self.members), self.members, self.name)
        local = LocalCounts(clock, lambda: fleet)
        self.fallback = FallbackGuard(breaker, local, lambda _: self.policy, logger=QUIET)
        changed = breaker.on_change

        def on_change() -> None:
            self.reached[Sometimes.OPENED if breaker.is_open else Sometimes.CLOSED] += 1
            if changed is not None:
                changed()

        breaker.on_change = on_change
        self.leases = Leases(clock)
        leased = AsyncGuardedEngine(NodeFallback(engine, self.fallback), self.leases)
        self.engine = AsyncGuardedEngine(leased, DenyCache(clock))

    def kill(self) -> None:
        """End at once; clients see their connections break."""
        if not self.link.idle():
            self.reached[Sometimes.KILLED_BETWEEN] += 1
        if self.leases.totals().unspent:
            self.reached[Sometimes.KILLED_HOLDING] += 1
        self.process.alive = False
        self.store.killed()
        self.link.reset()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(broken("the node is gone"))

    def pause(self, until: int) -> None:
        """Freeze until then."""
        if not self.link.idle():
            self.reached[Sometimes.PAUSED_BETWEEN] += 1
        if self.leases.totals().unspent and until - self.loop.now > self.lease_us:
            self.reached[Sometimes.PAUSED_HOLDING] += 1
        self.process.paused_until = until

    def receive(
        self, act: Callable[[AsyncEngine], Awaitable[Any]], reply: asyncio.Future[Any]
    ) -> None:
        """Receive a client's request; its outcome is set on `reply`."""
        self._asked += 1
        number = self._asked

        def arrive() -> None:
            if not self.process.alive:
                error = EngineConnectionError("the node refused a connection", transient=True)
                self._later(lambda: end(reply, error))
                return
            self._waiting[number] = reply
            if self.rate != 1_000 or self.clock_offset_us:
                self.reached[Sometimes.WRONG_CLOCK] += 1
            self.loop.create_task(self._handle(act, number), context=self.process.context())

        self._later(arrive)

    async def _handle(self, act: Callable[[AsyncEngine], Awaitable[Any]], number: int) -> None:
        try:
            result = await act(self.engine)
        except HeadgateError as error:
            result = error
        reply = self._waiting.pop(number, None)
        if reply is not None:
            self._later(lambda: end(reply, result))

    def _later(self, callback: Callable[[], None]) -> None:
        delay_us = self.rng.randint(*DELAY_US)
        self.loop.at(self.loop.now + delay_us, callback, context=WORLD)
