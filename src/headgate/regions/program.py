"""Merging in a program outside of the service: it counts in its region's store, and the nodes there do the reporting.

A program has no port for messages of other regions, and needs none. What they admit is charged by the region's nodes to
the store that the program counts in. What the program admits is written every interval to the nodes' region store, by a
background thread, and the shipper among the nodes sends it. So no caller waits, and a process that is killed loses what
it admitted since the last interval, as a node does.

A forked child reports under its own name, and leaves its parent's admissions to the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from _thread import start_new_thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .. import _fork
from ..engines.registry import kind_of
from ..errors import ConfigError
from .exchange import RegionExchange
from .merge_guard import CutOffGuard, SharedMergeGuard
from .settings import RegionsSettings

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from ..guards.base import Guard
    from .counters import CounterTotal
    from .model import Regions
    from .store import Merged, RegionStore

INTERVAL_US: Final = 200_000
LOOK_EVERY: Final = 0.05
"""Seconds between two checks whether to stop."""
SILENT_S: Final = 10.0
"""How long no shipper may be seen before a warning is logged."""
STOP_WITHIN: Final = 5.0


class _TimedStore:
    """A region store that also reports the offset of its clock."""

    def __init__(self, store: RegionStore, on_offset: Callable[[int], None]) -> None:
        self._store = store
        self._on_offset = on_offset
        self.changes, self.lead, self.note_taken = store.changes, store.lead, store.note_taken
        self.counters_of, self.aclose = store.counters_of, store.aclose

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """See `RegionStore.merge`."""
        sent_us = time.monotonic_ns() // 1000
        merged = await self._store.merge(entries, heard_from)
        self._on_offset(merged.state.now_us - (sent_us + time.monotonic_ns() // 1000) // 2)
        return merged


class _Life:
    """One run of the thread."""

    def __init__(self) -> None:
        self.running = threading.Lock()
        """Held while the thread runs."""
        self.over = False


class ProgramRegions:
    """Reports what this process admits of merged limits to the region's store."""

    def __init__(
        self,
        regions: Regions,
        url: str,
        *,
        namespace: str,
        keeps_share: Callable[[str | None], bool],
        logger: logging.Logger,
    ) -> None:
        self._regions = regions
        self._url = url
        self._namespace = namespace
        self._log = logger
        self._admitted = SharedMergeGuard(self.now_us, self._check, self._wake)
        self._cut_off = CutOffGuard(regions, keeps_share)
        self.guards: tuple[Guard, ...] = (self._admitted, self._cut_off)
        """The guards for the limiter's engine, outermost first."""
        self._offset_us = (time.time_ns() - time.monotonic_ns()) // 1000
        self._checked = False
        self._begin()
        _fork.reset_after_fork(self)

    def _begin(self) -> None:
        self._starting = threading.Lock()
        self._life: _Life | None = None

    def after_fork(self) -> None:
        """Called in a child process: the thread, and unsent admissions, are the parent's."""
        self._begin()
        self._admitted.forget()

    def now_us(self) -> int:
        """The current time on the store's clock, as estimated here."""
        return time.monotonic_ns() // 1000 + self._offset_us

    def stop(self) -> None:
        """Report one last time, and end the thread."""
        with self._starting:
            life, self._life = self._life, None
        if life is not None:
            atexit.unregister(self.stop)
            life.over = True
            if life.running.acquire(timeout=STOP_WITHIN):
                life.running.release()

    def _check(self) -> None:
        """Refuse now what could not be reported later."""
        if not self._checked:
            self._open_store()
            self._checked = True

    def _open_store(self) -> RegionStore:
        from .redis_store import RedisRegionStore  # noqa: PLC0415 - its client is only needed for merging

        board = self._regions.board or self._url
        if kind_of(board).board != "headgate.board.redis":
            raise ConfigError(
                "a program can merge if the nodes of its region have their board in Redis or Valkey; "
                "otherwise write a rule, and have a service decide"
            )
        return RedisRegionStore(board, namespace=self._namespace)

    def _wake(self) -> None:
        """Called after each admission."""
        if self._life is None:
            with self._starting:
                if self._life is None:
                    self._life = life = _Life()
                    life.running.acquire()
                    start_new_thread(self._run, (life,))
                    atexit.register(self.stop)

    def _run(self, life: _Life) -> None:
        try:
            asyncio.run(self._report(life))
        except Exception:  # noqa: BLE001 - nobody else would log it
            self._log.exception("admissions are no longer sent to other regions")
        finally:
            life.running.release()

    async def _report(self, life: _Life) -> None:
        from ..engines.redis.aio import AsyncRedisEngine  # noqa: PLC0415 - as above

        exchange = RegionExchange(
            RegionsSettings(
                regions=self._regions, urls=MappingProxyType({}), interval_us=INTERVAL_US
            ),
            _TimedStore(self._open_store(), self._set_offset),
            now_us=self.now_us,
            keeps_share=lambda _rule: False,
            node=f"process {os.getpid()}",
            guards=(self._admitted, self._cut_off),
        )
        engine = AsyncRedisEngine(self._url)
        since = time.monotonic()
        await exchange.start(engine.scoped(self._namespace) if self._namespace else engine)
        try:
            while not life.over:
                await asyncio.sleep(LOOK_EVERY)
                if any(one.shipper for one in exchange.links()):
                    since = time.monotonic()
                elif time.monotonic() - since > SILENT_S:
                    since = float("inf")
                    self._log.warning(
                        "no node of region %s sends what is admitted here to the other regions; start a service with "
                        "the same store, namespace and regions",
                        self._regions.here,
                    )
        finally:
            await exchange.stop()
            await engine.aclose()

    def _set_offset(self, offset_us: int) -> None:
        self._offset_us = offset_us
