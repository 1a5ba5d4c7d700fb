"""Load for fault tests: many callers who note what they were told.

An outcome is allowed, denied, or an error. Of an error it matters whether the request may have been
charged all the same: the ledger of a key lies between what was allowed and that plus the unknown.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate import EngineError, FixedWindow
from headgate.engines.redis.sync import RedisEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate import Limit

LONG_US = 250 * 86_400_000_000
"""A window so long that no test meets its end."""


def window_of(limit: int) -> FixedWindow:
    return FixedWindow(limit, LONG_US)


@dataclass
class Record:
    """What callers were told, when, and how long it took."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    errors: list[EngineError] = field(default_factory=list)
    allowed_at: list[float] = field(default_factory=list)

    @property
    def allowed(self) -> int:
        return self.outcomes["allowed"]

    @property
    def unknown(self) -> int:
        return self.outcomes["unknown"]

    def note(self, started: float, outcome: Any) -> None:
        now = time.monotonic()
        self.slowest_s = max(self.slowest_s, now - started)
        if isinstance(outcome, EngineError):
            self.errors.append(outcome)
            self.outcomes["unknown" if outcome.indefinite else "failed"] += 1
        elif outcome:
            self.outcomes["allowed"] += 1
            self.allowed_at.append(now)
        else:
            self.outcomes["denied"] += 1

    def first_allowed_after(self, moment: float) -> float:
        """Seconds from a moment to the next admission."""
        return next(at for at in self.allowed_at if at >= moment) - moment


class AsyncLoad:
    """Tasks that hit one key without end, until the block is left."""

    def __init__(
        self, hit: Callable[[str, int], Any], key: str, callers: int, pause_s: float = 0.0
    ) -> None:
        self.record = Record()
        self._hit, self._key, self._callers, self._pause_s = hit, key, callers, pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def __aenter__(self) -> Record:
        self._tasks = [asyncio.create_task(self._call()) for _ in range(self._callers)]
        return self.record

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def _call(self) -> None:
        while not self._ended:
            started = time.monotonic()
            try:
                self.record.note(started, await self._hit(self._key, 1))
            except EngineError as error:
                self.record.note(started, error)
            await asyncio.sleep(self._pause_s)  # The pace of a real caller.


class ThreadLoad:
    """The same from threads, through blocking calls."""

    def __init__(self, hit: Callable[[str, int], Any], key: str, callers: int) -> None:
        self.record = Record()
        self._hit, self._key = hit, key
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]

    def __enter__(self) -> Record:
        for thread in self._threads:
            thread.start()
        return self.record

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            outcome: Any
            try:
                outcome = self._hit(self._key, 1)
            except EngineError as error:
                outcome = error
            with self._lock:
                self.record.note(started, outcome)


def used(url: str, key: str, limit: Limit) -> int:
    """The ledger: what the store says was charged, asked on a connection of its own."""
    engine = RedisEngine(url)
    try:
        return engine.usage(key, limit).used
    finally:
        engine.close()


def report(figures: str) -> None:
    """Say what was measured; `pytest -s` or `-rP` shows it."""
    print(figures)  # noqa: T201
