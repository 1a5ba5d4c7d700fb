"""StoreHealth: tracks whether the engine's store answers.

A shared store is probed when the node starts and every second after that, so that `/health` is right even without
traffic: a wrong password shows before the first check, and the end of an outage by itself. Decisions report their
outcome, too; one made by rules or a cache instead of the store proves nothing.

A single failed call is no outage. It is one if the circuit breaker has opened, or if a probe fails as well. The breaker
logs what it does; an outage that it does not notice, because there is no traffic or because the store refuses us, is
logged here, as soon as a second probe has failed, and so is its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ...algorithms import FixedWindow
from ...errors import EngineBusy
from ...guards.stack import fallback_of

if TYPE_CHECKING:
    from ...decision import Decision
    from ...engines.base import AsyncEngine
    from ...guards.fallback import FallbackGuard

PROBE_EVERY: Final = 1.0
PROBE_KEY: Final = "headgate:probe"
PROBE_LIMIT: Final = FixedWindow(1, 1_000_000)


class StoreHealth:
    """Whether the store answers. One that was never called counts as up."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger("headgate.service")
        self._engine: AsyncEngine | None = None
        self._fallback: FallbackGuard | None = None
        self._probes: asyncio.Task[None] | None = None
        self._extra_probe: asyncio.Task[None] | None = None
        """A probe because a call failed."""
        self._steady = False
        self._reported = False
        """Whether this outage has been logged."""
        self._down_since = 0.0
        self.up = True
        """Whether the last call was answered. A plain attribute, because the hot path reads it."""
        self.last_error = ""
        """The last failure; empty if there was none."""
        self.outages = 0
        """The number of outages."""

    @property
    def down_for(self) -> float:
        """Seconds since the outage began; 0 while the store is up."""
        return 0.0 if self.up else time.monotonic() - self._down_since

    async def start(self, engine: AsyncEngine, *, shared: bool = False) -> None:
        """Watch this engine; a shared store is probed now, and then every second."""
        self._engine, self._steady = engine, shared
        self._fallback = fallback_of(engine)
        if shared:
            await self._ask(engine)
            if not self.up:
                self._report()
            self._keep_probing(engine)

    async def stop(self) -> None:
        """Stop probing."""
        self._engine = None
        tasks = [task for task in (self._probes, self._extra_probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def failed(self, error: Exception) -> None:
        """Record a failed call; one that was not even sent, because too many wait, says nothing about the store."""
        if isinstance(error, EngineBusy):
            return
        if not self.up or self._engine is None or self._breaker_is_open:
            self._down(error)
        elif self._extra_probe is None or self._extra_probe.done():
            self._extra_probe = asyncio.get_running_loop().create_task(self._ask(self._engine))

    def decided(self, decision: Decision) -> None:
        """Record a decision, by the engine or instead of it; only needed while the store counts as down."""
        context = decision.context
        if context.source == "engine" and not context.degraded and decision.limited:
            self.answered()

    def answered(self) -> None:
        """Record an answer of the store itself."""
        if self._reported:
            self._log.warning("the store answers again, after %.1f s", self.down_for)
        self._reported, self.up = False, True

    @property
    def _breaker_is_open(self) -> bool:
        return self._fallback is not None and self._fallback.breaker.is_open

    def _down(self, error: Exception) -> None:
        self.last_error = str(error)
        if not self.up:
            return
        self.up = False
        self._down_since = time.monotonic()
        self.outages += 1
        if self._engine is not None and not self._steady:
            self._keep_probing(self._engine)

    def _report(self) -> None:
        self._reported = True
        self._log.error("the store does not answer: %s", self.last_error)

    def _keep_probing(self, engine: AsyncEngine) -> None:
        if self._probes is not None and not self._probes.done():  # Since the last outage.
            return
        self._probes = asyncio.get_running_loop().create_task(self._probe(engine))

    async def _probe(self, engine: AsyncEngine) -> None:
        while self._steady or not self.up:
            await asyncio.sleep(PROBE_EVERY)
            await self._ask(engine)

    async def _ask(self, engine: AsyncEngine) -> None:
        was_down = not self.up
        try:
            await engine.usage(PROBE_KEY, PROBE_LIMIT)
        except Exception as error:  # noqa: BLE001 - any error means no answer; the next probe may succeed
            self._down(error)
            if was_down and not self._reported and not self._breaker_is_open:
                self._report()
        else:
            self.answered()
