"""A node inside the test's own process that speaks the Redis protocol on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.service.node import Node
from headgate.service.resp.commands import Commands
from headgate.service.resp.connection import RespConnection
from headgate.service.settings import Settings
from tests.servers.process import HOST

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")


class RespNode:
    """A running node. `port` is where it listens."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: Node, port: int, commands: Commands
    ) -> None:
        self._loop = loop
        self.node = node
        self.commands = commands
        self.port = port
        self.url = f"headgate://{HOST}:{port}"

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the node."""
        return self.begin(work).result(20)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Let something run in the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@contextlib.contextmanager
def resp_node(
    engine: Any = None, *, url: str = "memory://", listen: str = HOST, **settings: Any
) -> Iterator[RespNode]:
    """Start a node with this engine, or with the one of a URL; it ends with the block."""
    node = Node(Settings(port=0, engine=url, **settings), engine=engine)
    loop = asyncio.new_event_loop()
    started: Future[RespNode] = Future()
    ended: Future[None] = Future()
    stop = asyncio.Event()
    connections: set[Any] = set()

    async def serve() -> None:
        commands = Commands(node)
        await node.start()
        certificate = node.certificate
        server = await loop.create_server(
            lambda: RespConnection(node, commands, connections),
            listen,
            node.settings.resp_port,
            ssl=None if certificate is None else certificate.context,
        )
        port = server.sockets[0].getsockname()[1]
        started.set_result(RespNode(loop, node, port, commands))
        await stop.wait()
        server.close()
        for connection in list(connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # Those that were closed are told.
        await node.stop()
        if hasattr(engine, "aclose"):
            await engine.aclose()

    def run() -> None:
        try:
            ended.set_result(loop.run_until_complete(serve()))
        except BaseException as error:  # noqa: BLE001 - the test is told
            (ended if started.done() else started).set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield started.result(30)
        loop.call_soon_threadsafe(stop.set)
        ended.result(30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
