"""LoopState: what an async engine keeps per event loop, because links and futures belong to one loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from .batcher import Batcher
from .evictions import LOOK_EVERY_S
from .failures import NotConnected, NotSent, Refused, Unanswered, copy_for_caller
from .link import Link, connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence

    from .batch import PendingBatch
    from .evictions import Evictions
    from .options import Address, Options

    Greeting: TypeAlias = Callable[[Link], Awaitable[None]]


class Batchers(dict[int, Batcher]):
    """The batcher of each slot, created on first use."""

    def __init__(self, new: Callable[[int], Batcher]) -> None:
        self._new = new

    def __missing__(self, slot: int) -> Batcher:
        batcher = self[slot] = self._new(slot)
        return batcher


class LoopState:
    """The links, batchers and background tasks of one event loop.

    Connecting and discovery run in background tasks, once for all callers that wait for them. If a caller's deadline
    passes, the task continues for the next caller: otherwise nothing that takes longer than one deadline would ever
    finish.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Options,
        send: Callable[[LoopState, int, PendingBatch], None],
        on_lost: Callable[[Address], None],
        evictions: Evictions,
        *,
        greetings: Sequence[Greeting] = (),
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._evictions = evictions
        self._watched: dict[Address, Link] = {}
        self._next_looks: dict[Address, asyncio.TimerHandle] = {}
        self._greetings = greetings
        self.time = loop.time
        self._options = options
        self._send = send
        self.batchers = Batchers(self._new_batcher)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self.links: dict[tuple[Address, bool], Link] = {}
        self.deadline = options.deadline
        """Of decisions, and of what is given back. Longer at the start: connecting, TLS and loading scripts take
        time."""

    def _new_batcher(self, slot: int) -> Batcher:
        options = self._options
        limits = (options.max_batch, options.max_in_flight, self.deadline)
        return Batcher(self._loop, slot, partial(self._send, self), limits, self.end_start)

    def end_start(self) -> None:
        """Called when a server has answered, or had the time to: from now on decisions have the usual deadline."""
        if self.deadline != self._options.deciding:
            self.deadline = self._options.deciding
            for batcher in self.batchers.values():
                batcher.use_deadline(self.deadline)

    @property
    def queued(self) -> int:
        """Requests that are queued for the next batch."""
        return sum(len(batcher) for batcher in self.batchers.values())

    async def link(self, address: Address, *, sentinel: bool = False) -> Link:
        """An open link to a server; concurrent callers share it."""
        link = self.links.get((address, sentinel))
        if link is not None and link.is_open:
            return link
        made: Link = await self.run_shared(
            (address, sentinel), lambda: self._connect(address, sentinel=sentinel)
        )
        if not sentinel and self._watched.get(address) is not made:
            self._watched[address] = made
            self._look_at_evictions(made)  # After the caller has sent its command.
        return made

    async def _connect(self, address: Address, *, sentinel: bool) -> Link:
        link = await connect(address, self._options, sentinel=sentinel)
        if not sentinel:
            await self._greet(link)
        link.on_lost = self._on_lost
        self.links[address, sentinel] = link
        return link

    async def _greet(self, link: Link) -> None:
        try:
            for greeting in self._greetings:
                async with asyncio.timeout(self._options.connect_timeout):
                    await greeting(link)
        except (TimeoutError, Unanswered) as error:
            link.abort()
            raise NotSent(f"a server did not answer our greeting: {error}") from error
        except BaseException:
            link.abort()
            raise

    async def run_shared(self, name: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of the work with this name, started unless it is running. It continues if callers leave."""
        task = self._shared.get(name)
        if task is None:
            task = self._shared[name] = self._loop.create_task(_outcome(work))
            task.add_done_callback(lambda _: self._shared.pop(name, None))
        outcome = await asyncio.shield(task)
        if isinstance(outcome, Exception):
            raise copy_for_caller(outcome)
        return outcome

    def is_linked(self, address: Address) -> bool:
        """Whether there is an open link to a server."""
        link = self.links.get((address, False))
        return link is not None and link.is_open

    async def link_in_time(self, address: Address, ends: float) -> Link:
        """A link to send on; raises when the time is over, because callers may have got "not sent" by then."""
        link = await self.link(address)
        if self.time() >= ends:
            raise TimeoutError
        return link

    def _look_at_evictions(self, link: Link) -> None:
        """Look whether a server evicts limits, now and again for as long as this link is open."""
        self._next_looks.pop(link.address, None)
        if not link.is_open:
            if self._watched.get(link.address) is link:
                del self._watched[link.address]
        elif self._options.topology != "nodes":
            self.spawn(self._note_evictions(link))

    async def _note_evictions(self, link: Link) -> None:
        """If the server does not answer, that is no failure."""
        with suppress(NotSent, Unanswered, TimeoutError):
            async with asyncio.timeout(self._options.deadline):
                self._evictions.note(link.address, await link.call((b"INFO",)))
        again = self._loop.call_later(LOOK_EVERY_S, self._look_at_evictions, link)
        self._next_looks[link.address] = again

    def drop(self, address: Address) -> None:
        """Close the links to a server."""
        for sentinel in (False, True):
            link = self.links.pop((address, sentinel), None)
            if link is not None:
                link.close()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something in the background."""
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Let background tasks finish, and close the links."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.deadline)
        for look in self._next_looks.values():
            look.cancel()
        shared = list(self._shared.values())
        for task in shared:
            task.cancel()
        if shared:
            await asyncio.wait(shared)
        for link in self.links.values():
            link.on_lost = None  # The server has not failed.
            # A clean TLS shutdown would outlive the loop, which may be about to close.
            link.abort()
        self.links.clear()
        for _ in range(2):
            await asyncio.sleep(0)


async def _outcome(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Its outcome; a failure is returned as a value, because nobody may be left to raise it to."""
    try:
        return await work()
    except (NotSent, Refused, Unanswered) as error:
        return error
    except asyncio.CancelledError:  # The waiting caller was not cancelled.
        return NotConnected("the connections were closed")
