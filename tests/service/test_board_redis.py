"""The board on real servers: the same words as in memory, one round trip, and every topology."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from headgate.board import Ban, Board, KeyOverride, NodeIdentity, Report, Totals
from headgate.board.redis import RedisStore
from headgate.board.shared_lists import blocks_to_bytes, top_to_bytes
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST
from tests.servers.redis import Cluster, RedisServer, SentinelGroup, standalone
from tests.service import board_stories as stories

T = TypeVar("T")


def run(story: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await story()

    return asyncio.run(main())


def board_on(url: str, name: str, report: Callable[[], Report] = Report) -> Board:
    return stories.board_on(RedisStore(url), name, report)


async def exercise(url: str) -> None:
    """Everything a board can do, on whatever is at this address."""
    await stories.nodes_see_each_other_and_what_people_set(lambda: RedisStore(url))


@on_flavours("redis_server")
def test_the_board_works_on_one_server(redis_server: RedisServer) -> None:
    run(lambda: exercise(redis_server.url))


def test_the_board_works_behind_sentinels(redis_sentinel: SentinelGroup) -> None:
    run(lambda: exercise(redis_sentinel.url))


def test_the_board_works_on_a_cluster(redis_cluster: Cluster) -> None:
    run(lambda: exercise(redis_cluster.url))


@on_flavours("redis_server", "redis-7.0")
def test_a_beat_is_one_command(redis_server: RedisServer) -> None:
    async def story() -> int:
        board = board_on(redis_server.url, "a")
        await board.beat()
        before = int(redis_server.info("stats")["total_commands_processed"])
        for _ in range(10):
            await board.beat()
        after = int(redis_server.info("stats")["total_commands_processed"])
        await board.stop()
        return after - before

    # Commands inside the script count, too; what we want to know is how often we asked.
    run(story)
    redis_server.call("CONFIG", "RESETSTAT")
    run(story)
    calls = redis_server.info("commandstats")
    assert calls["cmdstat_evalsha"].startswith("calls=13,")  # 1 + 10, and the last beat and leave.
    assert "cmdstat_eval" not in calls


@on_flavours("redis_server", "redis-7.0")
def test_everything_expires_by_itself_except_what_a_person_set_to_stay(
    redis_server: RedisServer,
) -> None:
    async def story() -> None:
        lists = {"blocks": blocks_to_bytes([]), "top": top_to_bytes([], 0)}
        board = board_on(redis_server.url, "a", lambda: Report(Totals(1, 0), lists))
        await board.beat()
        await board.keep("l", KeyOverride(key="k", rate="5/minute"))
        await board.beat()
        await board._store.aclose()

    run(story)
    names = redis_server.call("KEYS", "*")
    lasting = {name for name in names if redis_server.call("PTTL", name) == -1}
    assert lasting == {"hg:b:kept"}
    assert set(names) - lasting == {"hg:b:nodes", "hg:b:counts", "hg:b:sheets", "hg:b:meta"}


@on_flavours("redis_server", "redis-7.0")
def test_when_the_revision_is_gone_everybody_reads_again(redis_server: RedisServer) -> None:
    async def story() -> None:
        a, b = board_on(redis_server.url, "a"), board_on(redis_server.url, "b")
        await a.keep("b", Ban(key="bad"))
        await b.beat()
        redis_server.call("DEL", "hg:b:meta")
        await a.keep("b", Ban(key="worse"))
        assert redis_server.call("PTTL", "hg:b:meta") > 0
        await b.beat()
        assert set(b.view.bans) == {"bad", "worse"}
        await a.stop()
        await b.stop()

    run(story)


@on_flavours("redis_server", "valkey-9")
def test_an_override_ends_in_the_store_and_everywhere(redis_server: RedisServer) -> None:
    async def story() -> None:
        a, b = board_on(redis_server.url, "a"), board_on(redis_server.url, "b")
        until_us = time.time_ns() // 1000 + 300_000
        await a.keep("o", KeyOverride(key="k", rate="5/minute", until_us=until_us))
        await b.beat()
        assert set(b.view.overrides) == {"k"}
        await asyncio.sleep(0.35)  # It ends by the server's clock.
        await a.beat()
        await b.beat()
        assert not a.view.overrides
        assert not b.view.overrides
        assert redis_server.call("HLEN", "hg:b:kept") == 0
        assert redis_server.call("EXISTS", "hg:b:ends") == 0
        await a.stop()
        await b.stop()

    run(story)


@on_flavours("redis_server", "redis-7.0")
def test_two_namespaces_are_two_boards(redis_server: RedisServer) -> None:
    async def story() -> None:
        stores = [RedisStore(redis_server.url, namespace=name) for name in ("one", "two")]
        boards = [Board(store, NodeIdentity(id="n", address="")) for store in stores]
        await boards[0].keep("b", Ban(key="k"))
        await boards[1].beat()
        assert not boards[1].view.bans
        for board in boards:
            await board.stop()

    run(story)


def test_the_board_outlives_its_store() -> None:
    """Killed, it leaves the last view; back again, the node registers anew and the ban is gone with the data."""

    async def story(server: RedisServer) -> None:
        board = board_on(server.url, "a", lambda: Report(Totals(5, 0)))
        assert await board.beat()
        await board.keep("b", Ban(key="k"))
        server.kill()
        assert not await board.beat()
        assert board.problem is not None
        assert "store" in board.problem
        assert set(board.view.bans) == {"k"}
        server.restart()
        for _ in range(3):
            assert await board.beat(), board.problem
        assert [one.identity.id for one in board.view.nodes] == ["a"]
        assert not board.view.bans
        await board.stop()

    with standalone("redis-7.0") as server:
        run(lambda: story(server))


def test_the_documented_access_list_is_enough() -> None:
    rights = (
        "+eval +evalsha +time +get +set +del +exists +pexpire +pttl +zadd +zscore +zrange +zrangebyscore "
        "+zrevrangebyscore +zrem +zremrangebyscore +hget +hgetall +hmget +hset +hsetnx +hincrby +hdel +lrange "
        "+rpush +scan"
    )
    with standalone("redis-7.0") as server:
        words = ["on", ">pw", "resetkeys", "~hg:*", "resetchannels", "-@all", *rights.split()]
        server.call("ACL", "SETUSER", "headgate", *words)
        run(lambda: exercise(f"redis://headgate:pw@{HOST}:{server.port}/0"))


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_seconds_of_two_nodes_meet_whatever_their_clocks_say(redis_server: RedisServer) -> None:
    """Real seconds pass: buckets are those of the server's clock."""

    async def story() -> None:
        counts = {"a": 0, "b": 0}
        a = board_on(redis_server.url, "a", lambda: Report(Totals(counts["a"], 0)))
        b = board_on(redis_server.url, "b", lambda: Report(Totals(counts["b"], 0)))
        b._clock.epoch_ns -= 90_000_000_000  # type: ignore[misc] # Its clock is far behind.
        await a.start()
        await b.start()
        for _ in range(30):
            counts["a"] += 1
            counts["b"] += 2
            await asyncio.sleep(0.1)  # Buckets are those of the server's clock.
        await asyncio.sleep(2.1)  # As above: the last two of them must be over.
        assert sum(one.requests for one in a.view.seconds) == 90
        assert a.view.seconds == b.view.seconds or a.view.seconds[1:] == b.view.seconds[:-1]
        await a.stop()
        await b.stop()

    run(story)
