"""A link: one connection to one server, shared by all tasks of an event loop.

Commands are sent in order and replies return in that order, so many can be in flight at once. Written on
`asyncio.Protocol` and hiredis because the client library costs more than the decision: measured, the same batched
script runs half again to twice as fast here as through redis-py (`docs/decisions`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis

from .connection import ASKING, handshake, require_accepted
from .failures import NotConnected, NotSent, Unanswered
from .names import addresses_of_async
from .options import shown
from .packing import packed_command

if TYPE_CHECKING:
    from .options import Address, Options
    from .topology import Command

OnReply: TypeAlias = Callable[[Any], None]
"""Called with the reply; an error reply is an exception object, and so is `Unanswered`."""


class Link(asyncio.Protocol):
    """Sends commands, and passes each reply to its sender."""

    def __init__(self, address: Address, *, at_once: bool = False) -> None:
        self.address = address
        self._at_once = at_once
        self._reader = hiredis.Reader()
        self._waiting: deque[OnReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._received = 0
        self.on_lost: Callable[[Address], None] | None = None
        """Called when the connection has ended for any reason, before pending replies fail."""

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, packed: bytes, on_reply: OnReply) -> bool:
        """Send a command if the link is open, and return whether it was; `on_reply` is called once, later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(packed)
        self._waiting.append(on_reply)
        return True

    async def call(self, command: Command, *, asking: bool = False) -> Any:
        """Send a command and wait for its reply; an error reply is returned, not raised."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Any) -> None:
            if not answer.done():
                answer.set_result(reply)

        # First, so that a command that cannot be packed is not sent by half.
        packed = packed_command(command)
        if asking:
            self.send(ASKING, lambda _: None)
        if not self.send(packed, on_reply):
            raise NotConnected("the connection is closed")
        reply = await answer
        if isinstance(reply, Unanswered):
            raise reply
        return reply

    def close(self) -> None:
        """Close the connection; pending replies fail."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping unsent data."""
        if self._transport is not None:
            self._transport.abort()

    def suspect(self, until: float) -> None:
        """A caller got no answer: close at this time, unless the server sends something before."""
        loop = asyncio.get_running_loop()
        if loop.time() >= until:
            self.abort()
        else:
            loop.call_at(until, self._abort_if_silent_since, self._received)

    def _abort_if_silent_since(self, received: int) -> None:
        if self._received == received:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        stream: Any = transport
        if self._at_once:  # uvloop would buffer writes until all ready callbacks have run.
            stream.set_write_buffer_limits(0)
        self._transport = stream

    def data_received(self, data: bytes) -> None:
        """Called by the loop: hand out every complete reply.

        A callback may send again at once, so expected replies are counted first: a surplus reply must not count as the
        answer to a later command.
        """
        reader, waiting = self._reader, self._waiting
        self._received += 1
        reader.feed(data)
        asked, replies = len(waiting), []
        try:
            while (reply := reader.gets()) is not False:
                replies.append(reply)
            surplus = len(replies) > asked or (len(replies) == asked and reader.has_data())
        except hiredis.ProtocolError:  # Not a Redis server.
            surplus = True
        if surplus:
            self.abort()
        for reply in replies[:asked]:
            waiting.popleft()(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop: fail all pending replies."""
        self._transport = None
        if self.on_lost is not None:
            self.on_lost(self.address)
        reason = str(error or "the server closed the connection")
        while self._waiting:
            self._waiting.popleft()(Unanswered(reason))


async def _connect(link: Link, options: Options, *, sentinel: bool) -> None:
    """Connect to the first address of the host that accepts."""
    host, port = link.address
    tls = options.tls_to(sentinel=sentinel)
    loop, name = asyncio.get_running_loop(), host if tls is not None else None
    *others, last = await addresses_of_async(host)
    for one in others:
        with suppress(OSError):
            await loop.create_connection(lambda: link, one, port, ssl=tls, server_hostname=name)
            return
    await loop.create_connection(lambda: link, last, port, ssl=tls, server_hostname=name)


async def connect(address: Address, options: Options, *, sentinel: bool = False) -> Link:
    """Open a link and authenticate; raises `NotSent` if that fails, `Refused` if it always will."""
    loop = asyncio.get_running_loop()
    host, port = address
    # On Cluster there is a call per slot: those of one tick should be sent together.
    link = Link(address, at_once=options.topology != "cluster")
    try:
        async with asyncio.timeout(options.connect_timeout):
            if port == 0:
                await loop.create_unix_connection(lambda: link, host)
            else:
                await _connect(link, options, sentinel=sentinel)
            for command in handshake(options, sentinel=sentinel):
                require_accepted(await link.call(command), address, options)
    except (OSError, TimeoutError, Unanswered) as error:
        link.abort()
        reason = str(error) or "timed out"
        kind = NotSent if isinstance(error, TimeoutError) else NotConnected
        raise kind(f"cannot connect to {shown(address)}: {reason}") from error
    except BaseException:
        link.abort()
        raise
    return link
