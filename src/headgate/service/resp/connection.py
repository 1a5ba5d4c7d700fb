"""One client of the Redis protocol: commands run in turn, and replies are sent in order.

Input is read in slices, one per turn of the loop, and none while the client does not read its replies or many of them
wait for the store: a client that sends much at once gets no more time than the others, and nothing piles up.

There are time limits for showing a required token, for finishing a command, and for reading replies. A client may be
idle for as long as it likes, as with Redis.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ..front import Pending
from . import replies
from .reading import CommandReader
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..node import Node
    from .commands import Commands, LaterReply
    from .reading import Words

SLICE: Final = 16_384
"""Bytes to process per turn of the loop."""
MAX_UNAUTHENTICATED_BYTES: Final = 4_096
"""The maximum size of a command before a required token is shown."""
MAX_WAITING: Final = 1_024
"""Replies of one client that may wait for the store before reading stops."""
LINGER: Final = 1.0
"""Seconds that a client has to read the last reply and to close."""


class RespConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, node: Node, commands: Commands, connections: set[Any]) -> None:
        self._node = node
        self._commands = commands
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._reader = CommandReader(MAX_UNAUTHENTICATED_BYTES)
        self._unread: list[bytes] = []
        self._reading = False  # Whether another slice is scheduled.
        self._waiting: deque[list[bytes | None]] = deque()
        self._ignores_input = False
        self._stuck_since: float | None = None
        self._since = self._loop.time()
        self._unfinished_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.transport: Any = None
        self._session: Session

    # Life cycle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self._session = Session(self._node.auth, peer[0] if peer else "")
        self._trust()
        self._connections.add(self)
        self._node.recorder.resp_connections += 1
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        cap = self._node.settings.max_connections_per_ip
        if cap and self._from_same_address() > cap:
            self._end(replies.error("ERR max number of clients reached"))
            return
        self._timer = self._loop.call_later(self._node.settings.header_timeout, self._on_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._ignores_input = True
        self._connections.discard(self)
        self._node.recorder.resp_connections -= 1
        self._unread.clear()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """The client does not read its replies: stop reading its commands."""
        self._stuck_since = self._loop.time()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck_since = None
        self._read_on()

    def _trust(self) -> None:
        """Accept long commands only from clients with access."""
        if self._session.welcome:
            self._reader.max_bytes = self._node.settings.max_batch_body

    def _begin_again(self) -> None:
        """The client gave up its token. Who had shown one has the usual time to show another."""
        self._session.began_again = False
        if self._timer is not None and self._reader.max_bytes != MAX_UNAUTHENTICATED_BYTES:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._node.settings.header_timeout, self._on_time)
        self._reader.max_bytes = MAX_UNAUTHENTICATED_BYTES
        self._trust()

    def _from_same_address(self) -> int:
        own = self._session.address
        return sum(
            isinstance(one, RespConnection) and one._session.address == own
            for one in self._connections
        )

    # Input

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._ignores_input:
            return
        if self._unread or len(data) > SLICE:
            self._unread += [data[at : at + SLICE] for at in range(0, len(data), SLICE)]
            self.transport.pause_reading()
            self._read_on()
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Read a slice and answer the complete commands in it."""
        commands = self._reader.feed(data)
        self._since = now = self._loop.time()
        if not self._reader.unfinished:
            self._unfinished_since = None
        elif self._unfinished_since is None or commands:
            self._unfinished_since = now
        if commands:
            self._answer(commands)
        if self._reader.error and not self._ignores_input:
            self._end_in_turn(replies.error(f"ERR Protocol error: {self._reader.error}"))

    def _read_on(self) -> None:
        if not self._reading and not self._ignores_input:
            self._reading = True
            self._loop.call_soon(self._read_slice)

    def _read_slice(self) -> None:
        self._reading = False
        if self._ignores_input or self._must_wait():
            return
        if self._unread:
            self._take(self._unread.pop(0))
        if self._unread:
            self._read_on()
        elif not self._must_wait() and not self._ignores_input and not self.transport.is_closing():
            self.transport.resume_reading()

    def _must_wait(self) -> bool:
        return self._stuck_since is not None or len(self._waiting) >= MAX_WAITING

    # Output, in order

    def _answer(self, commands: Sequence[Words]) -> None:
        out: list[bytes] = []
        for reply in self._commands.answers(self._session, commands):
            if isinstance(reply, bytes):
                if self._waiting:
                    self._waiting.append([reply])
                else:
                    out.append(reply)
            else:
                self._wait_for(reply)
        if self._session.began_again:
            self._begin_again()
        elif self._reader.max_bytes == MAX_UNAUTHENTICATED_BYTES:
            self._trust()
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._session.ended:
            self._end_in_turn(b"")
        elif self._must_wait():
            self.transport.pause_reading()

    def _wait_for(self, later: LaterReply) -> None:
        answer, finish = later
        slot: list[bytes | None] = [None]
        self._waiting.append(slot)
        if isinstance(answer, Pending):
            future, result = answer
        else:
            future = asyncio.ensure_future(answer)
            result = future.result
        future.add_done_callback(lambda _: self._deliver(slot, finish(result)))

    def _deliver(self, slot: list[bytes | None], reply: bytes) -> None:
        """A reply has come from the store: send it, and those that waited for it."""
        slot[0] = reply
        waiting = self._waiting
        if not waiting or waiting[0] is not slot:
            return
        out = []
        while waiting and waiting[0][0] is not None:
            out.append(waiting.popleft()[0] or b"")
        self._since = self._loop.time()
        if not self.transport.is_closing():
            self.transport.write(b"".join(out))
        if self._ignores_input and not waiting:
            self._end(b"")
        elif len(waiting) < MAX_WAITING:
            self._read_on()

    # Closing

    def _end_in_turn(self, last: bytes) -> None:
        """Send this after all pending replies, and close."""
        self._ignores_input = True
        self._unread.clear()
        if self._waiting:
            self._waiting.append([last])
        else:
            self._end(last)

    def _end(self, last: bytes) -> None:
        """Send this, and wait a moment for the client to close: closing with unread input would lose it."""
        self._ignores_input = True
        transport = self.transport
        if transport.is_closing():
            return
        if last:
            transport.write(last)
        transport.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._timer = self._loop.call_later(LINGER, transport.abort)

    @property
    def idle(self) -> bool:
        """Whether no reply is pending on this connection."""
        return not (self._waiting or self._unread or self._reader.unfinished)

    def idle_for(self) -> float:
        """Seconds since the last activity; 0 while a reply is pending."""
        return self._loop.time() - self._since if self.idle else 0.0

    def shutdown(self) -> None:
        """Close after all pending replies."""
        if not self._ignores_input:
            self._end_in_turn(b"")

    def _on_time(self) -> None:
        """Close if the client has run out of time; else check again later."""
        self._timer = None
        if self._ignores_input:
            return
        now, settings = self._loop.time(), self._node.settings
        if not self._session.welcome and not self._waiting:
            self._end(replies.error("NOAUTH Authentication required."))
            return
        if self._stuck_since is not None and now - self._stuck_since >= settings.idle_timeout:
            self._ignores_input = True
            self.transport.abort()
            return
        begun = self._unfinished_since
        if begun is not None and not self._must_wait() and now - begun >= settings.body_timeout:
            self._end_in_turn(
                replies.error(f"ERR a command must arrive within {settings.body_timeout:g} s")
            )
            return
        pause = min(settings.header_timeout, settings.body_timeout, settings.idle_timeout)
        self._timer = self._loop.call_later(pause, self._on_time)
