"""Registration: a limiter as one of those who share its store, so that a fallback knows by how many to divide.

The service's nodes meet on a board beside the counts. A limiter of the library that may have to decide by its share of
a limit takes a place there, too, and learns who else is there. It begins with the first decision for which `fallback`
holds; a limiter that never makes one has no thread and is not counted.

One thread sends a heartbeat, over a connection of its own, so no decision waits for it and nothing it meets reaches a
caller. It is the same for `Limiter` and `AsyncLimiter`: an event loop that comes and goes, or that is stuck, would take
the heartbeat with it. A forked child is another node, with another name, from its first decision on. `close` and the
end of the process take leave of the board; whoever is killed is given up after `TTL_US`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import secrets
import socket
import time
from _thread import start_new_thread
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final
from weakref import finalize

from ._fork import reset_after_fork
from .board.board import seen_in
from .board.model import NodeIdentity
from .board.store import BoardPush
from .errors import EngineError
from .rules.live.last_good import default_folder

if TYPE_CHECKING:
    import logging

    from .board.store import BoardStore
    from .clock import Clock
    from .engines.base import BoardPlace
    from .guards.membership import Membership

TTL_US: Final = 30_000_000
"""How long others consider a limiter there that says nothing."""
FORGET_US: Final = 600_000_000
"""When its row is removed. Not sooner: nodes of the service may have a longer time to live than limiters."""
SOONEST_S: Final = 1.0
LATEST_S: Final = 10.0
PER_MEMBER_S: Final = 0.05
"""Every member reads the names of all others. So the more there are, the less often each of them asks."""
LEAVE_S: Final = 1.0
"""How long the end of a limiter, or of the process, waits for good-byes to be sent."""
_running: Final[set[Heartbeat]] = set()
"""Those whose threads run, also where their limiter is forgotten already."""


class Registration:
    """The place of one limiter on the board beside its engine."""

    def __init__(
        self,
        place: BoardPlace,
        members: Membership,
        clock: Clock,
        logger: logging.Logger,
        *,
        likely: bool,
    ) -> None:
        if likely:
            import_module(place.module)  # Now, and not when somebody waits for the first decision.
        self._place = place
        self._members = members
        self._clock = clock
        self._log = logger
        self._heartbeat: Heartbeat | None = None
        self._is_closed = False
        self._turns = [None]
        """Whoever takes the one that is there begins; to take it is a single step, which no interrupt tears apart."""
        members.join = self.begin
        reset_after_fork(self)

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to close."""
        return self._heartbeat is not None

    def after_fork(self) -> None:
        """Called in a child, which is a node of its own as soon as it decides something; the parent's beats go on."""
        self._heartbeat = None
        if not self._is_closed:
            self._turns = [None]
            self._members.join = self.begin

    def begin(self) -> None:
        """Look for the others from now on, unless that is under way. Never raises, and takes no round trip."""
        try:
            self._turns.pop()
        except IndexError:
            return
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - the caller wants a decision, and gets it all the same
            self._log.warning("headgate cannot find the other nodes of this store: %r", error)
        except BaseException:  # An interrupt.
            self._turns.append(None)
            raise
        self._members.join = None

    def _start(self) -> None:
        me = f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"
        self._members.rename(me)
        folder = default_folder()
        if folder is not None:
            self._members.keep_in(folder / _file_of(self._place))
        heartbeat = Heartbeat(self._place, self._members, self._clock, self._log, me)
        start_new_thread(heartbeat.run, ())
        self._heartbeat = heartbeat
        finalize(self, heartbeat.end).atexit = False

    def close(self) -> None:
        """Take leave of the others."""
        self._is_closed = True
        self._members.join = None
        self._turns.clear()
        if self._heartbeat is not None:
            self._heartbeat.end()
            self._heartbeat.wait(LEAVE_S)


class Heartbeat:
    """What the thread does. It knows nothing of the limiter, which may be forgotten without being closed.

    The thread imports nothing: a process that is forked meanwhile would be left with half a module for ever.
    """

    def __init__(
        self,
        place: BoardPlace,
        members: Membership,
        clock: Clock,
        logger: logging.Logger,
        me: str,
    ) -> None:
        self._place = place
        self._module = import_module(place.module)
        self._members = members
        self._clock = clock
        self._log = logger
        self._identity = NodeIdentity(id=me, address="", ttl_us=TTL_US, is_limiter=True)
        self._life = secrets.token_hex(4)
        self._revisions = ("", "")
        self._stopped = False
        self._is_failing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._process = os.getpid()
        self._left: SimpleQueue[None] = SimpleQueue()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process, and not in the one that this was forked from."""
        return os.getpid() == self._process

    def run(self) -> None:
        """Send heartbeats until `end`."""
        _running.add(self)
        try:
            loop = asyncio.SelectorEventLoop()  # Not the host's kind, which may not like threads.
            try:
                loop.run_until_complete(self._keep_beating())
            finally:
                loop.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, callers are not to notice
            self._log.warning(
                "headgate no longer looks for the other nodes of this store: %r", error
            )
        finally:
            _running.discard(self)
            self._left.put(None)

    def end(self) -> None:
        """Let it end, if it runs here."""
        if not self.is_here:
            return
        self._stopped = True
        loop, wake = self._loop, self._wake
        with suppress(RuntimeError):  # It has ended already.
            if loop is not None and wake is not None:
                loop.call_soon_threadsafe(wake.set)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, but not for long."""
        with suppress(Empty):
            self._left.get(timeout=seconds)

    async def _keep_beating(self) -> None:
        self._wake = wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        store: BoardStore = self._module.open_store_beside(
            self._place.options, self._place.namespace, self._clock
        )
        try:
            while not self._stopped:
                pause_s = await self._beat(store)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await wake.wait()
            if not self._is_failing:
                with suppress(EngineError):  # The others will notice.
                    await store.leave(self._identity.id)
        finally:
            await store.aclose()

    async def _beat(self, store: BoardStore) -> float:
        """Tell the others once, and hear who they are; how long to wait until the next time."""
        revision, agreed_revision = self._revisions
        push = BoardPush(
            node=self._identity.id,
            identity=self._identity.to_bytes(),
            forget_us=FORGET_US,
            life=self._life,
            revision=revision,
            agreed_revision=agreed_revision,
        )
        try:
            pulled = await store.exchange(push)
        except EngineError as error:
            self._failed(error)
            return SOONEST_S
        self._is_failing = False
        self._revisions = pulled.revision, pulled.agreed_revision
        up = [seen.identity.id for seen in seen_in(pulled) if seen.state == "Up"]
        self._members.saw(up)
        pause_s = min(LATEST_S, max(SOONEST_S, len(up) * PER_MEMBER_S))
        return pause_s * random.uniform(0.9, 1.0)

    def _failed(self, error: EngineError) -> None:
        """A store that is away is told of by the breaker; one that refuses this, and nothing else, only here."""
        if not self._is_failing and not error.transient:
            self._log.warning(
                "headgate cannot find the other nodes of this store, so pass nodes=N: %s", error
            )
        self._is_failing = True


def _leave() -> None:
    """The process ends."""
    ending = [one for one in list(_running) if one.is_here]
    for one in ending:
        one.end()
    ends = time.monotonic() + LEAVE_S
    for one in ending:
        one.wait(max(0.0, ends - time.monotonic()))


atexit.register(_leave)


def _file_of(place: BoardPlace) -> str:
    """Where the members are kept; processes of one machine that share a store share the file."""
    where = f"{place.module} {place.options} {getattr(place.options, 'db', '')} {place.namespace}"
    return f"members-{sha256(where.encode()).hexdigest()[:16]}.json"
