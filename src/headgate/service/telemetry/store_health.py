"""StoreHealth: tracks whether the engine's store answers, and logs each change once.

A store that others share is asked when the node begins and every second from then on, so that `/health` is right also
when nobody asks for anything: a wrong password shows before the first check, and the end of an outage by itself. Every
decision tells how it went, too; one that rules or a cache made in the store's place is no sign of life. The first
failure begins an outage: one line in the log. The end of it is one more line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ...algorithms import FixedWindow

if TYPE_CHECKING:
    from ...decision import Decision
    from ...engines.base import AsyncEngine

PROBE_EVERY: Final = 1.0
PROBE_KEY: Final = "headgate:probe"
PROBE_LIMIT: Final = FixedWindow(1, 1_000_000)


class StoreHealth:
    """Whether the store answers. One that was never asked counts as up."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger("headgate.service")
        self._engine: AsyncEngine | None = None
        self._probe: asyncio.Task[None] | None = None
        self._steady = False
        self._down_since = 0.0
        self.up = True
        """Whether the last thing we heard was an answer. A plain attribute: the hot path looks at it."""
        self.last_error = ""
        """What the last failure said; empty when there was none."""
        self.outages = 0
        """How often the store has gone away."""

    @property
    def down_for(self) -> float:
        """Seconds since the outage began; 0 while the store is up."""
        return 0.0 if self.up else time.monotonic() - self._down_since

    async def start(self, engine: AsyncEngine, *, shared: bool = False) -> None:
        """Watch this engine; one with a store that others share is asked right now, and then every second."""
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
        """A call has failed."""
        self.last_error = str(error)
        if not self.up:
            return
        self.up = False
        self._down_since = time.monotonic()
        self.outages += 1
        self._log.error("the store does not answer: %s", error)
        if self._engine is not None and not self._steady:
            self._probe = asyncio.get_running_loop().create_task(self._keep_probing(self._engine))

    def heard(self, decision: Decision) -> None:
        """A decision was made, by the engine or in its place; only needed while the store counts as down."""
        context = decision.context
        if context.source == "engine" and not context.degraded and decision.limited:
            self.answered()

    def answered(self) -> None:
        """The store itself has answered."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer, and the next may be one
            self.failed(error)
        else:
            self.answered()
