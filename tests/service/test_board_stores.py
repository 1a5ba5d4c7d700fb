"""The board on every store: the same stories in memory, on Redis and on etcd, on real servers and the real clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headgate.board import MemoryStore
from headgate.board.redis import RedisStore
from tests.servers.etcd import Etcd, etcd
from tests.servers.fixtures import installed
from tests.service.board_stories import STORIES
from tests.service.etcd_boards import etcd_store, new_board

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headgate.board import BoardStore
    from tests.servers.redis import RedisServer

    Story = Callable[[Callable[[], BoardStore]], Awaitable[None]]


@pytest.fixture(scope="module")
def servers() -> Iterator[Etcd]:
    with installed(), etcd(1) as started:
        yield started


@pytest.fixture(params=["memory", "redis", "etcd"])
def open_store(request: pytest.FixtureRequest) -> Callable[[], BoardStore]:
    """Gives one more connection to a board that is empty when the test begins."""
    if request.param == "memory":
        shared = MemoryStore()
        return lambda: shared
    if request.param == "redis":
        get: Any = request.getfixturevalue("redis_servers")
        with installed():
            server: RedisServer = get("redis-7.0")
        server.heal()
        server.flush()
        return lambda: RedisStore(server.url)
    url = new_board(request.getfixturevalue("servers"))
    return lambda: etcd_store(url)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_story_on_every_store(story: Story, open_store: Callable[[], BoardStore]) -> None:
    asyncio.run(_run(story, open_store))


async def _run(story: Story, open_store: Callable[[], BoardStore]) -> None:
    await story(open_store)
