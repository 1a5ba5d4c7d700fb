"""A WebSocket on a connection that began with HTTP.

It counts as a connection of its address until it ends. Whoever sends the same to many may do it past the application
(`SharedFrames`): a frame to a client is not masked, so it is made once and written to each.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from websockets.http11 import Request

SHARED_FRAMES: Final = "headgate.shared_frames"
"""Where an application finds the `SharedFrames` of its socket, in the scope."""
KERNEL_BUFFER: Final = 65_536
"""Bytes that the system buffers for a client that does not read; the rest is buffered, and noticed, here."""


class SharedFrames:
    """Writes frames that were made once to one of many."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        own = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)

    @property
    def unsent(self) -> int:
        """Bytes that the other side has no room for yet."""
        return self._transport.get_write_buffer_size()

    def write(self, frame: bytes) -> None:
        """Send it, or hold it until there is room."""
        if not self._transport.is_closing():
            self._transport.write(frame)

    def abort(self) -> None:
        """Hang up, with whatever is unsent."""
        self._transport.abort()


def text_frame(text: bytes) -> bytes:
    r"""A message as it stands on the wire; text is UTF-8.

    >>> text_frame(b"{}")
    b'\x81\x02{}'
    """
    return Frame(Opcode.TEXT, text).serialize(mask=False)


class CountedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which tells when it has ended."""

    on_end: Callable[[], None] | None = None

    def handle_connect(self, event: Request) -> None:
        """Let the application find what is past it."""
        super().handle_connect(event)
        if (
            self.response.status_code == 101
        ):  # The application begins with the next turn of the loop.
            self.scope[SHARED_FRAMES] = SharedFrames(self.transport)  # type: ignore[typeddict-unknown-key]

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone."""
        super().connection_lost(exc)
        if self.on_end is not None:
            self.on_end()
