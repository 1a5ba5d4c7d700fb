"""A service inside the test's own process: the same application, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from headgate.service.app import build_app
from headgate.service.node import Node
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Self


T = TypeVar("T")
BASE = "http://127.0.0.1:8080"


class Inside:
    """A node and a client that calls its application directly."""

    def __init__(self, **settings: Any) -> None:
        self.node = Node(Settings(**settings))
        self.app = build_app(self.node)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=BASE)

    def let_pass(self, seconds: float) -> None:
        """Move the clock of the board, by which bans and overrides end, and that of the place where it lies."""
        board: Any = self.node.board
        for keeper in (board, board._store):
            keeper._clock.epoch_ns += round(seconds * 1e9)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send one request; names of headers are written with underscores."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            return await self.client.request(method, path, headers=given)
        return await self.client.request(method, path, json=body, headers=given)

    async def __aenter__(self) -> Self:
        await self.node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.node.stop()


def inside(story: Callable[[Inside], Awaitable[T]], **settings: Any) -> T:
    """Tell a story of one service."""

    async def run() -> T:
        async with Inside(**settings) as service:
            return await story(service)

    return asyncio.run(run())


@contextlib.contextmanager
def shared_inside(**settings: Any) -> Iterator[Callable[[Callable[[Inside], Awaitable[Any]]], Any]]:
    """One service for many stories, for those that leave it as it was: building one takes a while."""
    with asyncio.Runner() as runner:
        service = Inside(**settings)
        runner.run(service.__aenter__())
        try:
            yield lambda story: runner.run(_told(story, service))
        finally:
            runner.run(service.__aexit__())


async def _told(story: Callable[[Inside], Awaitable[T]], service: Inside) -> T:
    return await story(service)
