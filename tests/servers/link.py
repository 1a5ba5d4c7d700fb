"""A network that misbehaves on request, between a client and one server.

A link listens on a port of its own and passes bytes on to the server's. A test bends it while it is
in use: slow, silent, one-way, cut, or losing exactly the reply that matters. It needs no privilege
and touches nothing else on the machine, which firewall rules and traffic shaping would.

The link runs an event loop in a thread of its own, so that neither a blocked test nor a blocked
client slows it down. Switches are plain attributes, read for every chunk that passes; what acts on
open connections is a method, and has been done when it returns.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self

from tests.servers.process import HOST, free_ports

_CHUNK = 65_536
_LINGER_NONE = struct.pack("ii", 1, 0)  # The peer of a socket closed this way gets a reset.


class Link:
    """A way to the server on `server_port` that a test can break and mend.

    `delay_s`        how much later everything arrives, in either direction
    `slice_bytes`    the most that is passed on in one piece; 1 tears every reply apart
    `drop_requests`  what the client sends is thrown away, and nobody is told
    `drop_replies`   what the server sends is thrown away, and nobody is told
    `accepted`       connections that clients made so far
    `replies_lost`   replies lost by `lose_replies` so far
    `tap`            is called with every chunk that clients send, and with a name for their connection
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        (self.port,) = free_ports(1)
        self.url = f"redis://{HOST}:{self.port}/0"
        self.accepted = 0
        self.replies_lost = 0
        self.tap: Callable[[int, bytes], None] | None = None
        self._straighten()
        self._connections: set[_Connection] = set()
        self._listening: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def _straighten(self) -> None:
        self.delay_s = 0.0
        self.slice_bytes = _CHUNK
        self.drop_requests = False
        self.drop_replies = False
        self._to_lose = 0
        self._to_lose_of = b""
        self._to_keep = 0
        self._to_keep_of = b""
        self._passable = asyncio.Event()
        self._passable.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._connections)

    def blackhole(self) -> None:
        """Accept everything, forward nothing: the network is gone and nobody is told."""
        self.drop_requests = self.drop_replies = True

    def pause(self) -> None:
        """Hold all bytes back, in order, until `resume` or `mend`: a short outage that heals."""
        self._do(self._hold())

    def resume(self) -> None:
        """Deliver what `pause` held back."""
        self._do(self._release())

    def lose_replies(self, count: int = 1, *, of: bytes = b"") -> None:
        """Let the next `count` requests reach the server, and cut the connection at their reply.

        Only requests that contain `of` count: b"EVALSHA" passes over what a client says when it
        connects. The server has done the work for sure; the client cannot know.
        """
        self._do(self._set_to_lose(count, of))

    def keep_requests(self, count: int = 1, *, of: bytes = b"") -> None:
        """Take the next `count` requests off the line, and cut their connections: only `tap` has them.

        Whoever sent one does not know whether it arrived, and the test may deliver it later.
        """
        self._do(self._set_to_keep(count, of))

    def reset(self) -> None:
        """Cut every connection; the client gets a reset."""
        self._do(self._reset())

    def half_close(self) -> None:
        """Tell every client that its server will say no more; what it sends still arrives."""
        self._do(self._half_close())

    def refuse(self) -> None:
        """Refuse new connections, as a host without the server would; open ones stay."""
        self._do(self._stop_listening())

    def mend(self) -> None:
        """Undo every switch. Connections in which bytes were lost are reset: they cannot be mended."""
        self._do(self._mend())

    # What follows runs in the thread of the loop.

    async def _listen(self) -> None:
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.port), backlog=1024)
            self._listening.settimeout(0.0)
            self._loop.add_reader(self._listening, self._accept, self._listening)

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept(self, listening: socket.socket) -> None:
        # Accepted and known in one step: asyncio's own servers may lose one that comes while they
        # are being closed, and a lost socket fails a test that has nothing to do with it.
        client, _ = listening.accept()
        client.settimeout(0.0)
        # asyncio does so only if it has made the socket itself. Without it, a reply that follows another one closely
        # waits until that is acknowledged, for up to 40 ms.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        connection = _Connection(self, client)
        self._connections.add(connection)
        connection.task.add_done_callback(partial(self._forget, connection))

    def _forget(self, connection: "_Connection", _: asyncio.Task[None]) -> None:
        self._connections.discard(connection)

    async def _hold(self) -> None:
        self._passable.clear()

    async def _release(self) -> None:
        self._passable.set()

    async def _set_to_lose(self, count: int, of: bytes) -> None:
        self._to_lose, self._to_lose_of = count, of

    async def _set_to_keep(self, count: int, of: bytes) -> None:
        self._to_keep, self._to_keep_of = count, of

    async def _half_close(self) -> None:
        for connection in self._connections:
            connection.half_close()

    async def _reset(self) -> None:
        for connection in list(self._connections):
            await connection.cut()

    async def _mend(self) -> None:
        self._passable.set()
        self._straighten()
        for connection in [one for one in self._connections if one.damaged]:
            await connection.cut()
        await self._listen()

    async def _close(self) -> None:
        await self._stop_listening()
        await self._reset()

    def _do(self, act: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop's thread and wait for it."""
        asyncio.run_coroutine_threadsafe(act, self._loop).result(10.0)


class _Connection:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(self, link: Link, client: socket.socket) -> None:
        self.damaged = False  # Bytes are missing: what follows would make no sense to a reader.
        self._link = link
        self._client = client
        self._to_client: asyncio.StreamWriter | None = None
        self._said_last = False
        self._losing = False
        self.task = link._loop.create_task(self._run())

    async def _run(self) -> None:
        requests, self._to_client = await asyncio.open_connection(sock=self._client)
        to_server: asyncio.StreamWriter | None = None
        try:
            replies, to_server = await asyncio.open_connection(HOST, self._link.server_port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(requests, to_server, self._request))
                both.create_task(self._carry(replies, self._to_client, self._reply))
        except* OSError:
            self._break()  # One side broke; so it must look from the other.
        finally:
            self._to_client.close()
            if to_server is not None:
                # Not by a reset: the server shall see everything that was sent before the cut.
                to_server.close()

    async def cut(self) -> None:
        """Reset the client's side, whatever is under way, and close the server's."""
        self._break()
        self.task.cancel()
        await asyncio.wait([self.task])
        if self._to_client is None:  # The task had not begun.
            self._client.close()

    def half_close(self) -> None:
        """End the replies; requests go on."""
        if self._to_client is not None:
            self._said_last = True
            self._to_client.write_eof()

    def _break(self) -> None:
        if self._client.fileno() >= 0:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        if self._to_client is not None:
            self._to_client.transport.abort()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inspect: Callable[[bytes], bool],
    ) -> None:
        """Pass bytes on in one direction until their source has no more."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def receive() -> None:
            chunk = b"-"
            while chunk:
                chunk = await reader.read(_CHUNK)
                due.put_nowait((time.monotonic() + self._link.delay_s, chunk))

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            while True:
                arrives, chunk = await due.get()
                await asyncio.sleep(max(0.0, arrives - time.monotonic()))  # That is the delay.
                await self._link._passable.wait()
                if not inspect(chunk):
                    self.damaged = True
                elif chunk:
                    await self._send(writer, chunk)
                else:
                    break
            writer.write_eof()

    def _request(self, chunk: bytes) -> bool:
        """Whether a request goes on to the server."""
        link = self._link
        if link.drop_requests:
            return False
        if chunk and link.tap is not None:
            link.tap(id(self), chunk)
        if chunk and link._to_keep and link._to_keep_of in chunk:
            link._to_keep -= 1
            raise ConnectionResetError
        if chunk and link._to_lose and link._to_lose_of in chunk:
            link._to_lose -= 1
            self._losing = True
        return True

    def _reply(self, chunk: bytes) -> bool:
        """Whether a reply goes on to the client."""
        if self._losing:
            self._link.replies_lost += 1
            raise ConnectionResetError
        return not (self._link.drop_replies or (chunk and self._said_last))

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        size = self._link.slice_bytes
        for start in range(0, len(chunk), size):
            if writer is self._to_client and self._said_last:
                return
            writer.write(chunk[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
