"""Three nodes on a real Redis agree within two seconds, also after one has stopped and after Redis was restarted."""

import asyncio
import time
from collections.abc import Callable

from headgate.adaptive.monitor import OVERALL
from headgate.adaptive.selector import BACKOFF, WINDOW
from headgate.board.redis import RedisStore
from headgate.board.store import MAX_AGREED, ChoiceProposal, StoredChoice
from tests.servers.fixtures import on_flavours
from tests.servers.redis import Cluster, RedisServer, standalone
from tests.service.board_stories import AdaptiveNode, choices_are_compared_and_set


class Node(AdaptiveNode):
    """A node whose board is on a Redis."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(RedisStore(url), name)


async def until(what: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "it took too long"
        await asyncio.sleep(0.01)  # Nodes beat by the server's clock.
    return time.monotonic() - began


def all_know(nodes: list[Node], algorithm: str) -> Callable[[], bool]:
    return lambda: len({node.known() for node in nodes}) == 1 and nodes[0].known()[1] == algorithm


async def load(node: Node, requests: int, denied: int) -> None:
    """So many a second, until it is cancelled."""
    while True:
        node.count.requests += requests // 10
        node.count.denied += denied // 10
        await asyncio.sleep(0.1)  # The load of a tenth of a second.


def test_three_nodes_agree_under_uneven_load_and_after_faults() -> None:
    async def story(server: RedisServer) -> None:
        nodes = [Node(server.url, f"node {i}") for i in range(3)]
        for node in nodes:
            await node.board.start()
        await until(lambda: len(nodes[2].board.view.nodes) == 3, 5)
        abuse = asyncio.create_task(load(nodes[0], 200, 190))
        try:
            first = nodes[0]
            await until(lambda: first.known()[1] == BACKOFF, 10)
            assert await until(all_know(nodes, BACKOFF), 5) < 2
            assert nodes[2].control.agreement.known(OVERALL).algorithm == BACKOFF
            await nodes[1].board.stop()  # One node leaves,
            left = [nodes[0], nodes[2]]
            server.kill()  # and the store forgets everything.
            await asyncio.sleep(1.5)  # While it is away, everybody keeps what there was.
            assert {node.known()[1] for node in left} == {BACKOFF}
            epoch = max(node.known()[0] for node in left)
            server.restart()
            await until(lambda: all(node.known()[0] > epoch for node in left), 8)
            assert await until(all_know(left, BACKOFF), 5) < 2
        finally:
            abuse.cancel()
        await until(all_know(left, WINDOW), 20)
        for node in left:
            await node.board.stop()

    with standalone("redis-7.0") as server:
        asyncio.run(story(server))


async def exercise(url: str) -> None:
    await choices_are_compared_and_set(lambda: RedisStore(url))


@on_flavours("redis_server")
def test_choices_are_kept_on_one_server(redis_server: RedisServer) -> None:
    asyncio.run(exercise(redis_server.url))
    names = redis_server.call("KEYS", "*")
    assert {"hg:b:agreed", "hg:b:scopes"} <= set(names)
    assert all(redis_server.call("PTTL", name) > 0 for name in names)


def test_choices_are_kept_on_a_cluster(redis_cluster: Cluster) -> None:
    asyncio.run(exercise(redis_cluster.url))


@on_flavours("redis_server", "redis-7.0")
def test_a_store_holds_choices_for_a_bounded_number_of_scopes(redis_server: RedisServer) -> None:
    async def story() -> None:
        store = RedisStore(redis_server.url)
        most = 0
        for i in range(MAX_AGREED + 20):
            await store.agree(ChoiceProposal(f"rule {i}", 0, StoredChoice(1, b"[]")))
            if i % 10 == 0:
                most = max(most, redis_server.call("HLEN", "hg:b:agreed"))
        assert 1_000 < most <= MAX_AGREED
        assert redis_server.call("HLEN", "hg:b:agreed") == 20
        await store.aclose()

    asyncio.run(story())
