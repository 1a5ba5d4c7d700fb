"""Answers that wait for a store leave in the order of their requests; the engine answers when the test says so."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import uvloop

from headgate import EngineError
from headgate.clock import SystemClock
from headgate.decision import ENGINE, Decision
from headgate.engines.base import EngineDescription
from headgate.service.node import Node
from headgate.service.process.listening import listen
from headgate.service.process.server import make_server
from headgate.service.settings import Settings
from tests.service.raw import post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headgate.algorithms import Limit
    from headgate.engines.base import AsyncEngine

GET = b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


class SlowEngine:
    """Answers nobody until told to."""

    nowait = None

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.waiting: dict[str, asyncio.Future[Decision]] = {}
        self._limits: dict[str, Limit] = {}

    @property
    def unguarded(self) -> SlowEngine:
        return self

    def describe(self) -> EngineDescription:
        return EngineDescription(
            store="slow", shared=False, promise="Nothing.", when_lost=("nothing", "nothing")
        )

    def bind(self, limit: Limit, rule: str | None = None) -> Callable[[str, int], Any]:
        def hit(key: str, _: int) -> asyncio.Future[Decision]:
            self._limits[key] = limit
            self.waiting[key] = asyncio.get_running_loop().create_future()
            return self.waiting[key]

        return hit

    def answer(self, *keys: str) -> None:
        for key in keys:
            self.waiting.pop(key).set_result(
                Decision(key, self._limits[key], (True, 1, 0, 1_000_000, 0), ENGINE)
            )

    async def decide(self, requests: Any) -> Any:
        raise NotImplementedError

    async def usage(self, *_: object) -> None:
        """The probe of a store that is back."""

    async def aclose(self) -> None:
        """Nothing to close."""


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 5)
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        body = await self._reader.readexactly(int(lines[b"content-length"]))
        return int(head.split()[1]), body

    async def keys(self, count: int) -> list[str]:
        """What the next answers are about."""
        found = [(await self.answer())[1] for _ in range(count)]
        return [json.loads(one)["key"] if one.startswith(b"{") else "page" for one in found]

    async def is_silent(self) -> bool:
        try:
            await asyncio.wait_for(self._reader.read(1), 0.05)
        except TimeoutError:
            return True
        return False

    async def at_end(self) -> bool:
        return await asyncio.wait_for(self._reader.read(), 5) == b""

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[SlowEngine, Client, Node]]:
    settings = Settings(port=0, **options)
    engine = SlowEngine()
    node = Node(settings, engine=cast("AsyncEngine", engine))
    with listen(settings) as sock:
        port = sock.getsockname()[1]
        server = make_server(node)
        running = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.01)  # As above.
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield engine, client, node
        finally:
            client.close()
            server.should_exit = True
            await running


def ask(key: str) -> bytes:
    return post({"key": key})


async def arrived(engine: SlowEngine, *keys: str) -> None:
    async with asyncio.timeout(5):
        while not set(keys) <= set(engine.waiting):  # noqa: ASYNC110 - it is a few ticks
            await asyncio.sleep(0.001)  # As above.


def test_answers_that_come_early_wait_for_those_before_them() -> None:
    async def story() -> None:
        async with serving() as (engine, client, _):
            client.send(ask("a") + ask("b") + ask("c"))
            await arrived(engine, "a", "b", "c")
            engine.answer("c", "b")
            assert await client.is_silent()
            engine.answer("a")
            assert await client.keys(3) == ["a", "b", "c"]

    asyncio.run(story())


def test_the_application_waits_for_checks_before_it_and_checks_for_the_application() -> None:
    async def story() -> None:
        async with serving() as (engine, client, _):
            client.send(ask("a") + GET + ask("b") + GET)
            await arrived(engine, "a")
            assert await client.is_silent()
            engine.answer("a")
            assert await client.keys(2) == ["a", "page"]
            await arrived(engine, "b")
            engine.answer("b")
            assert await client.keys(2) == ["b", "page"]
            client.send(ask("c"))
            await arrived(engine, "c")
            engine.answer("c")
            assert await client.keys(1) == ["c"]

    asyncio.run(story())


def test_a_bad_request_is_answered_after_the_earlier_ones() -> None:
    async def story() -> None:
        async with serving() as (engine, client, _):
            client.send(ask("a") + b"garbage\r\n\r\n")
            await arrived(engine, "a")
            assert await client.is_silent()
            engine.answer("a")
            assert (await client.answer())[0] == 200
            assert (await client.answer())[0] == 400
            assert await client.at_end()

    asyncio.run(story())


def test_a_client_that_left_does_not_disturb_its_answer() -> None:
    async def story() -> None:
        async with serving() as (engine, client, node):
            client.send(ask("a"))
            await arrived(engine, "a")
            client.close()
            await asyncio.sleep(0.05)  # For the server to see that it left.
            engine.answer("a")
            await asyncio.sleep(0.05)  # For the answer to go nowhere.
            assert node.store.up

    asyncio.run(story())


def test_a_failed_call_is_reported_as_503_and_is_no_outage_if_a_probe_succeeds() -> None:
    async def story() -> None:
        async with serving() as (engine, client, node):
            client.send(ask("a") + ask("b"))
            await arrived(engine, "a", "b")
            engine.waiting.pop("a").set_exception(EngineError("gone", transient=True))
            engine.answer("b")
            status, body = await client.answer()
            assert (status, json.loads(body)["code"]) == (503, "store-unavailable")
            assert "gone" not in body.decode()
            assert await client.keys(1) == ["b"]
            await asyncio.sleep(0)  # For the probe to be answered.
            assert (node.store.outages, node.store.up) == (0, True)

    asyncio.run(story())


def test_answers_in_flight_are_finished_when_the_node_drains() -> None:
    async def story() -> None:
        async with serving() as (engine, client, node):
            client.send(ask("a"))
            await arrived(engine, "a")
            node.draining = True
            engine.answer("a")
            assert await client.keys(1) == ["a"]
            assert await client.at_end()

    asyncio.run(story())


def test_no_more_is_read_from_a_connection_with_many_answers_to_wait_for() -> None:
    async def story() -> None:
        async with serving() as (engine, client, _):
            keys = [f"k{at}" for at in range(5_000)]
            client.send(b"".join(map(ask, keys)))
            await arrived(engine, "k63")
            await asyncio.sleep(0.05)  # For the server to read what it should not.
            first = len(engine.waiting)
            assert first < 5_000
            got: list[str] = []
            while len(got) < 5_000:
                engine.answer(*list(engine.waiting))
                got.append((await client.keys(1))[0])
            assert got == keys

    asyncio.run(story())


def test_new_connections_are_accepted_together_however_busy_the_loop_is() -> None:
    """One in each turn of the loop, as uvloop does it, would make the last wait for as many turns as they are."""

    async def story() -> None:
        settings = Settings(port=0)
        node = Node(settings, engine=cast("AsyncEngine", SlowEngine()))
        with listen(settings) as sock, ExitStack() as stack:
            port = sock.getsockname()[1]
            server = make_server(node)
            running = asyncio.create_task(server.serve(sockets=[sock]))
            while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.01)  # As above.
            for _ in range(50):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(server.server_state.connections) == 50
            server.should_exit = server.force_exit = True
            await running

    uvloop.run(story())
