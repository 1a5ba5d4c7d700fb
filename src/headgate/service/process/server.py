"""Listening, and shutting down cleanly.

On SIGTERM a node keeps answering while it drains. It is not ready any more, and every answer closes its connection, so
that clients go elsewhere. Then it turns new connections away, accepts those that are already in the queue, and stops
listening. A connection is closed after its answer, or when it has been quiet for a moment. A second signal ends the
process at once.

Without the quiet moment, a request on its way to an idle connection would be lost: closing on this side and sending on
the other can cross on the wire, and HTTP/1.1 has no way to prevent that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from ..app import build_app
from ..garbage_collection import freeze_existing_objects
from ..http.connection import HttpConnection
from ..http.endpoints import Endpoints
from ..http.protocol import bound_to
from ..http.websocket import CountedWebSocket
from ..live.hub import MAX_RECEIVED
from ..resp.commands import Commands
from ..resp.connection import RespConnection
from .listening import BACKLOG, refuse_new_connections

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ..http.plain_heads import Route
    from ..node import Node

QUIET: Final = 2.0
"""A connection that has been idle for this many seconds is closed while draining."""
HANDSHAKE: Final = 0.3
"""Seconds to complete connections that had begun when new ones were turned away: one round trip anywhere on earth."""
TICKS_PER_SECOND: Final = 10
ACCEPTED: Final = 256
ACCEPTED_OF_SHARED: Final = 4
"""How many connections are accepted per turn of the loop, alone and with other workers."""
ACCEPT_AGAIN: Final = 0.1
"""Seconds to wait after that fails."""


def run_node(
    node: Node,
    sockets: list[socket.socket],
    *,
    nobody_stays: Callable[[], bool] = lambda: True,
    on_serving: Callable[[], None] = lambda: None,
) -> None:
    """Serve on these sockets until a signal ends it; `on_serving` is called when it begins.

    The first is for HTTP, and the second, if there is one, for the Redis protocol. Workers share the sockets, and one
    that ends alone must not turn new connections away from the others: `nobody_stays` returns whether all end.
    """
    server = make_server(node, nobody_stays, on_serving)
    freeze_existing_objects()
    server.run(sockets=sockets)


def make_server(
    node: Node,
    nobody_stays: Callable[[], bool] = lambda: True,
    on_serving: Callable[[], None] = lambda: None,
) -> NodeServer:
    """A uvicorn server with our protocol and our shutdown."""
    certificate = node.certificate
    endpoints = Endpoints(node)
    max_body, max_batch_body = node.settings.max_body, node.settings.max_batch_body
    hot: dict[bytes, Route] = {
        b"/check": (endpoints.check, False, max_body),
        b"/check?status=1": (endpoints.check, True, max_body),
        b"/check/batch": (endpoints.batch, False, max_batch_body),
        b"/decide": (endpoints.decide, False, max_body),
        b"/decide?status=1": (endpoints.decide, True, max_body),
    }
    config = uvicorn.Config(
        build_app(node, endpoints),
        http=bound_to(node, hot),
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws=CountedWebSocket,
        ws_max_size=MAX_RECEIVED,
        ws_per_message_deflate=False,
        backlog=BACKLOG,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    return NodeServer(config, node, nobody_stays, on_serving)


class NodeServer(uvicorn.Server):
    """The server of one node."""

    def __init__(
        self,
        config: uvicorn.Config,
        node: Node,
        nobody_stays: Callable[[], bool],
        on_serving: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._node = node
        self._certificate = node.certificate
        self._nobody_stays = nobody_stays
        self._on_serving = on_serving
        self._commands = Commands(node) if node.settings.resp_port else None
        self._arriving: set[asyncio.Task[Any]] = set()
        self._doors: dict[socket.socket, Callable[[], asyncio.Protocol]] = {}
        self._log = logging.getLogger("headgate.service")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening.

        Connections are accepted here, many at a time, and not by uvloop, which accepts one per turn of the loop: under
        load new connections would wait for seconds.
        """
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self.servers = []
        self._doors = dict(
            zip(sockets or (), (self._protocol, self._resp_connection), strict=False)
        )
        for sock in self._doors:
            self._listen(sock)
        self.started = True
        self._on_serving()
        self._log.info("serving", extra={"worker": self._node.worker, "port": self._node.port})

    def _listen(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0 and not self.should_exit:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        """Accept waiting connections; with several workers only a few, so that each gets some."""
        loop = asyncio.get_running_loop()
        try:
            for _ in range(ACCEPTED if self._node.settings.workers == 1 else ACCEPTED_OF_SHARED):
                self._serve_socket(sock.accept()[0], sock)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # None left, or they closed first.
        except OSError as error:
            # Most likely out of file descriptors; without a pause it would be logged at every turn.
            self._log.error("connections cannot be accepted: %s", error)
            loop.remove_reader(sock)
            loop.call_later(ACCEPT_AGAIN, self._listen, sock)

    def _serve_socket(self, found: socket.socket, listening: socket.socket) -> None:
        """Create a connection for an accepted socket."""
        found.settimeout(0)
        door = self._doors.get(listening, self._protocol)
        task = asyncio.get_running_loop().create_task(self._connect(found, door))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, found: socket.socket, door: Callable[[], asyncio.Protocol]) -> None:
        patience = self._node.settings.header_timeout
        secure: dict[str, Any] = {}
        if self._certificate is not None:
            secure = {"ssl": self._certificate.context, "ssl_handshake_timeout": patience}
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(door, found, **secure)
        except OSError as error:  # They closed, or it is not TLS.
            self._log.debug("a connection failed: %s", error)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: among other things, check the certificate and the parent process."""
        if counter % TICKS_PER_SECOND == 0:
            if self._certificate is not None:
                self._certificate.refresh()
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                self._log.error("the parent process is gone")
                self.handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down by our own rules; a process that ended cleanly must not then die of the signal."""
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGTERM, signal.SIGINT)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, exit on the second."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._node.draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and shut down."""
        settings = self._node.settings
        self._node.draining = True
        self._log.info("draining", extra={"connections": len(self.server_state.connections)})
        await self._node.hand_over()
        await self._wait_until(lambda: False, settings.drain_delay)
        await self._stop_listening(sockets or [])
        await self._wait_until(self._is_empty, settings.drain_timeout)
        left = len(self.server_state.connections)
        for connection in list(self.server_state.connections):
            _transport(connection).abort()
        for task in self.server_state.tasks:
            task.cancel()
        await asyncio.sleep(0)
        await self.lifespan.shutdown()
        self._log.info("ended", extra={"cut_off": left})

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept the connections that are already queued, and close; no new ones come in between."""
        if self._nobody_stays() and all(map(refuse_new_connections, sockets)):
            await self._wait_until(lambda: False, HANDSHAKE)
        loop = asyncio.get_running_loop()
        for sock in sockets:
            loop.remove_reader(sock)
            with contextlib.suppress(OSError):
                while True:
                    self._serve_socket(sock.accept()[0], sock)
            sock.close()

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def _resp_connection(self) -> asyncio.Protocol:
        assert self._commands is not None  # There is a socket for it.
        connections: Any = self.server_state.connections
        return RespConnection(self._node, self._commands, connections)

    def _is_empty(self) -> bool:
        """Close quiet connections; returns whether none is left."""
        for connection in list(self.server_state.connections):
            known: Any = connection
            ours = isinstance(known, HttpConnection | RespConnection)
            if not ours or known.idle_for() >= QUIET:
                known.shutdown()
        state = self.server_state
        return not (state.connections or state.tasks or self._arriving)

    async def _wait_until(self, condition: Any, seconds: float) -> None:
        ends = time.monotonic() + seconds
        # A quiet connection triggers no event that could be awaited.
        while not condition() and time.monotonic() < ends and not self.force_exit:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def _transport(connection: Any) -> asyncio.WriteTransport:
    transport: asyncio.WriteTransport = connection.transport
    return transport
