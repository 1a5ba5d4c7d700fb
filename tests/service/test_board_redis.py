"""The board on real servers: the same words as in memory, one round trip, and every topology."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from headgate.board import Ban, Board, Identity, KeyLimit, Report, Totals
from headgate.board.model import Block
from headgate.board.redis import RedisStore
from headgate.board.sheets import blocks_sheet, top_sheet
from headgate.board.sketch import Hot
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST
from tests.servers.redis import Cluster, RedisServer, SentinelGroup, standalone

T = TypeVar("T")


def run(story: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await story()

    return asyncio.run(main())


def board_on(
    url: str, name: str, report: Callable[[], Report] = Report, *, ttl: float = 30
) -> Board:
    identity = Identity(id=name, address=f"{name}:80", ttl_us=round(ttl * 1e6))
    return Board(RedisStore(url), identity, report=report, heartbeat_us=100_000)


async def exercise(url: str) -> None:
    """Everything a board can do, on whatever is at this address."""
    until_us = time.time_ns() // 1000 + 60_000_000
    sheets = {
        "blocks": blocks_sheet([Block("blocked", until_us, "why")]),
        "top": top_sheet([Hot("k", 3, 0)], 0),
    }
    a = board_on(url, "a")
    b = board_on(url, "b", lambda: Report(Totals(10, 4), sheets))
    assert await b.beat(), b.problem
    assert await a.beat(), a.problem
    assert [(one.identity.id, one.state) for one in a.view.nodes] == [("a", "Up"), ("b", "Up")]
    assert a.view.nodes[1].identity.address == "b:80"
    assert a.view.totals == Totals(10, 4)
    assert await a.blocks() == [Block("blocked", until_us, "why")]
    assert await a.top(([], 0), 5) == [Hot("k", 3, 0)]
    await a.keep("l", KeyLimit(key="ключ{}", rate="5/minute", by="ann", reason="slow down"))
    await a.keep("b", Ban(key="bad"))
    await b.beat()
    assert b.view.limits["ключ{}"].limit == 5
    assert b.view.key_limits == a.view.key_limits
    assert set(b.view.bans) == {"bad"}
    assert await b.remove("b", "bad") is True
    assert await b.remove("b", "bad") is False
    await a.beat()
    assert not a.view.bans
    await b.stop()
    await a.beat()
    assert [one.identity.id for one in a.view.nodes] == ["a"]
    assert a.view.totals == Totals(10, 4)
    await a.stop()


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
        sheets = {"blocks": blocks_sheet([]), "top": top_sheet([], 0)}
        board = board_on(redis_server.url, "a", lambda: Report(Totals(1, 0), sheets))
        await board.beat()
        await board.keep("l", KeyLimit(key="k", rate="5/minute"))
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
        await a.keep("o", KeyLimit(key="k", rate="5/minute", until_us=until_us))
        await b.beat()
        assert set(b.view.overrides) == {"k"}
        await asyncio.sleep(0.35)
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
        boards = [Board(store, Identity(id="n", address="")) for store in stores]
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
        assert "redis" in board.problem
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
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.1)
        assert sum(one.requests for one in a.view.seconds) == 90
        assert a.view.seconds == b.view.seconds or a.view.seconds[1:] == b.view.seconds[:-1]
        await a.stop()
        await b.stop()

    run(story)
