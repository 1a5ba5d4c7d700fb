"""LoopState: what an async engine keeps for each event loop, since links and futures belong to the loop they were made in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .advice import warn_about_eviction
from .batcher import Batcher
from .failures import NotSent, Unanswered
from .link import Link, connect

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from .batch import Batch
    from .options import Address, Options


class Batchers(dict[int, Batcher]):
    """The batcher of each slot, made when it is first asked for."""

    def __init__(self, new: Callable[[int], Batcher]) -> None:
        self._new = new

    def __missing__(self, slot: int) -> Batcher:
        batcher = self[slot] = self._new(slot)
        return batcher


class LoopState:
    """What belongs to one event loop: its links, its batchers, its helping tasks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Options,
        send: Callable[[LoopState, int, Batch], None],
        log: logging.Logger,
    ) -> None:
        self._loop = loop
        self._log = log
        self.time = loop.time
        self._options = options
        self._send = send
        self.batchers = Batchers(self._new_batcher)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connecting: dict[tuple[Address, bool], asyncio.Lock] = {}
        self.links: dict[tuple[Address, bool], Link] = {}
        self.discovering = asyncio.Lock()
        self.warned = False

    def _new_batcher(self, slot: int) -> Batcher:
        options = self._options
        limits = (options.max_batch, options.max_in_flight, options.deadline)
        return Batcher(self._loop, slot, partial(self._send, self), limits)

    @property
    def queued(self) -> int:
        """Requests that wait for their batch to leave."""
        return sum(len(batcher) for batcher in self.batchers.values())

    async def link(self, address: Address, *, sentinel: bool = False) -> Link:
        """An open link to a server; those who want one at the same time share it."""
        link = self.links.get((address, sentinel))
        if link is not None and link.is_open:
            return link
        lock = self._connecting.setdefault((address, sentinel), asyncio.Lock())
        async with lock:
            link = self.links.get((address, sentinel))
            if link is None or not link.is_open:
                link = await connect(address, self._options, sentinel=sentinel)
                self.links[address, sentinel] = link
                if not sentinel and not self.warned:
                    self.warned = True
                    self.spawn(self._advise(link))
        return link

    def is_linked(self, address: Address) -> bool:
        """Whether there is an open link to a server."""
        link = self.links.get((address, False))
        return link is not None and link.is_open

    async def link_in_time(self, address: Address, ends: float) -> Link:
        """A link to send on; not when time is over, for whoever waits may have been told that nothing was sent."""
        link = await self.link(address)
        if self.time() >= ends:
            raise TimeoutError
        return link

    async def _advise(self, link: Link) -> None:
        """Look once whether the server may forget limits; not being told is no failure."""
        with suppress(NotSent, Unanswered, TimeoutError):
            async with asyncio.timeout(self._options.deadline):
                warn_about_eviction(await link.call((b"INFO", b"memory")), self._log)

    def drop(self, address: Address) -> None:
        """Close the links to a server."""
        for sentinel in (False, True):
            link = self.links.pop((address, sentinel), None)
            if link is not None:
                link.close()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something beside the callers."""
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Let helping tasks finish, and close the links."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.deadline)
        for link in self.links.values():
            link.abort()  # A polite end of TLS would outlive the loop, which may be about to close.
        self.links.clear()
        for _ in range(2):
            await asyncio.sleep(0)
