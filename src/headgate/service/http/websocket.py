"""A WebSocket on a connection that began with HTTP.

It counts as a connection of its address until it ends. An application that sends the same to many clients can bypass
ASGI (`SharedFrames`): a frame to a client is not masked, so it is built once and written to each.
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
"""The key of a socket's `SharedFrames` in the ASGI scope."""
KERNEL_BUFFER: Final = 65_536
"""Bytes that the system buffers for a client that does not read; the rest is buffered, and noticed, here."""


class SharedFrames:
    """Writes prebuilt frames to one of many clients."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        own = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size()

    def write(self, frame: bytes) -> None:
        """Send it, or buffer it until there is room."""
        if not self._transport.is_closing():
            self._transport.write(frame)

    def abort(self) -> None:
        """Close at once, dropping unsent data."""
        self._transport.abort()


def text_frame(text: bytes) -> bytes:
    r"""A message as a frame; text is UTF-8.

    >>> text_frame(b"{}")
    b'\x81\x02{}'
    """
    return Frame(Opcode.TEXT, text).serialize(mask=False)


class CountedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, with a callback when it has ended."""

    on_end: Callable[[], None] | None = None

    def handle_connect(self, event: Request) -> None:
        """Add `SharedFrames` to the application's scope."""
        super().handle_connect(event)
        # The application starts in the next turn of the loop.
        if self.response.status_code == 101:
            self.scope[SHARED_FRAMES] = SharedFrames(self.transport)  # type: ignore[typeddict-unknown-key]

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        if self.on_end is not None:
            self.on_end()
