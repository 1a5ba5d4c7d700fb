"""StoreHealth: tracks whether the engine's store answers, and logs each change once.

A shared store is probed when the node starts and every second after that, so that `/health` is right even without
traffic: a wrong password shows before the first check, and the end of an outage by itself. Every decision reports its
outcome, too; one made by rules or a cache instead of the store proves nothing. The first failure begins an outage,
which is logged once, and so is its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ...algorithms import FixedWindow
from ...errors import EngineBusy

if TYPE_CHECKING:
    from ...decision import Decision
    from ...engines.base import AsyncEngine

PROBE_EVERY: Final = 1.0
PROBE_KEY: Final = "headgate:probe"
PROBE_LIMIT: Final = FixedWindow(1, 1_000_000)


class StoreHealth:
    """Whether the store answers. One that was never called counts as up."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger("headgate.service")
        self._engine: AsyncEngine | None = None
        self._probe: asyncio.Task[None] | None = None
        self._steady = False
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
        if shared:
            await self._ask(engine)
            self._probe = asyncio.get_running_loop().create_task(self._keep_probing(engine))

    async def stop(self) -> None:
        """Stop probing."""
        self._engine = None
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def failed(self, error: Exception) -> None:
        """Record a failed call; one that was not even sent, because too many wait, says nothing about the store."""
        if isinstance(error, EngineBusy):
            return
        self.last_error = str(error)
        if not self.up:
            return
        self.up = False
        self._down_since = time.monotonic()
        self.outages += 1
        self._log.error("the store does not answer: %s", error)
        if self._engine is not None and not self._steady:
            self._probe = asyncio.get_running_loop().create_task(self._keep_probing(self._engine))

    def decided(self, decision: Decision) -> None:
        """Record a decision, by the engine or instead of it; only needed while the store counts as down."""
        context = decision.context
        if context.source == "engine" and not context.degraded and decision.limited:
            self.answered()

    def answered(self) -> None:
        """Record an answer of the store itself."""
        if not self.up:
            self._log.warning("the store answers again, after %.1f s", self.down_for)
            self.up = True

    async def _keep_probing(self, engine: AsyncEngine) -> None:
        while self._steady or not self.up:
            await asyncio.sleep(PROBE_EVERY)
            await self._ask(engine)

    async def _ask(self, engine: AsyncEngine) -> None:
        try:
            await engine.usage(PROBE_KEY, PROBE_LIMIT)
        except Exception as error:  # noqa: BLE001 - any error means no answer; the next probe may succeed
            self.failed(error)
        else:
            self.answered()
