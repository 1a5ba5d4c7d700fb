"""StoreWatch: knows whether the engine's store answers, and says so once.

Every decision tells how it went; one that rules or a cache made in the store's place is no sign of life. The first failure begins an outage: one line in the log, and a probe every second that ends the
outage by itself when the store is back, even if nobody asks for anything meanwhile. The end of it is one more line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ..algorithms import FixedWindow
from ..errors import EngineError

if TYPE_CHECKING:
    from ..decision import Decision
    from ..engines.base import AsyncEngine

PROBE_EVERY: Final = 1.0
PROBE_KEY: Final = "headgate:probe"
PROBE_LIMIT: Final = FixedWindow(1, 1_000_000)


class StoreWatch:
    """Whether the store answers. A store that was never asked counts as up."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger("headgate.service")
        self._engine: AsyncEngine | None = None
        self._probe: asyncio.Task[None] | None = None
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

    def start(self, engine: AsyncEngine) -> None:
        """Watch this engine."""
        self._engine = engine

    async def stop(self) -> None:
        """Stop probing."""
        self._engine = None
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def failed(self, error: EngineError) -> None:
        """A call has failed."""
        self.last_error = str(error)
        if not self.up:
            return
        self.up = False
        self._down_since = time.monotonic()
        self.outages += 1
        self._log.error("the store does not answer: %s", error)
        if self._engine is not None:
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
        while not self.up:
            await asyncio.sleep(PROBE_EVERY)
            try:
                await engine.usage(PROBE_KEY, PROBE_LIMIT)
            except EngineError as error:
                self.last_error = str(error)
            else:
                self.answered()
