"""Connections and links: what is sent, what is handed out, and what happens at the edges."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import resource
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from headgate import EngineError, FixedWindow
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.connection import Pool, require_accepted
from headgate.engines.redis.evictions import Evictions
from headgate.engines.redis.failures import Answered, NotSent, Refused, Unanswered
from headgate.engines.redis.link import Link
from headgate.engines.redis.loops import LoopState
from headgate.engines.redis.options import parse_url
from headgate.engines.redis.parallel_discovery import ParallelDiscovery
from headgate.engines.redis.sync import RedisEngine
from headgate.engines.redis.topology import Cluster, Sentinel, topology_of
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer

PING = b"*1\r\n$4\r\nPING\r\n"
CANARY = "c4n4ry-p4ssw0rd"
LIMIT = FixedWindow(1_000, 250 * 86_400_000_000)
one_flavour = on_flavours("redis_server", "redis-7.0")


# --- blocking connections -------------------------------------------------------------------------


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """A process with all descriptors below 1024 in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip("this process may not open 2,000 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, hard))
    with ExitStack() as stack:
        while (opened := os.open(os.devnull, os.O_RDONLY)) < 1_100:
            stack.callback(os.close, opened)
        stack.callback(os.close, opened)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@one_flavour
@pytest.mark.usefixtures("many_descriptors")
def test_a_process_with_thousands_of_open_files_is_served(redis_server: RedisServer) -> None:
    engine = RedisEngine(f"{redis_server.url}?deadline=10")
    hit = engine.bind(LIMIT)
    assert [hit("key", 1).remaining for _ in range(3)] == [999, 998, 997]
    redis_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert hit("key", 1).remaining == 996  # That the connection had died was seen.
    engine.close()


@one_flavour
def test_a_command_larger_than_the_system_takes_at_once_is_sent_whole(
    redis_server: RedisServer,
) -> None:
    pool = Pool(parse_url(redis_server.url))
    (address,) = parse_url(redis_server.url).addresses
    value = b"0123456789abcdef" * 2_000_000
    assert pool.call(address, (b"SET", b"large", value), 30) == b"OK"
    assert pool.call(address, (b"GET", b"large"), 30) == value
    pool.close()


@one_flavour
def test_a_connection_that_comes_back_to_a_closed_pool_is_closed(redis_server: RedisServer) -> None:
    pool = Pool(parse_url(redis_server.url))
    address = (HOST, redis_server.port)
    lent = pool._take(address, float("inf"), sentinel=False)
    pool.close()
    pool._put(address, lent, sentinel=False)
    with pytest.raises(Unanswered):
        lent.call((b"PING",), 1.0)


FORK_WITH_LOCKS_HELD = """
import os, sys, threading
from headgate import FixedWindow
from headgate.engines.redis.sync import RedisEngine

engine = RedisEngine(sys.argv[1])
twin = engine.scoped("other")
hit, other = (one.bind(FixedWindow(1000, 250 * 86_400_000_000)) for one in (engine, twin))
assert hit("key", 1)
held, ended = threading.Event(), threading.Event()

def hold():
    with engine._pool._lock, engine._pool.discovering:
        held.set()
        ended.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    assert hit("key", 1) and other("key", 1)
    engine._discover(0, 0.0)
    os._exit(0)
ended.set()
assert os.waitpid(child, 0)[1] == 0
"""


@one_flavour
def test_a_child_does_not_wait_for_locks_that_the_parents_threads_held(
    redis_server: RedisServer,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_WITH_LOCKS_HELD, f"{redis_server.url}?deadline=10"],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


FORK_AND_COUNT = """
import os, sys
from headgate import FixedWindow
from headgate.engines.redis.sync import RedisEngine

engine = RedisEngine(sys.argv[1])
hit = engine.bind(FixedWindow(1000, 250 * 86_400_000_000))
before = len(os.listdir("/proc/self/fd"))
assert hit("key", 1).remaining == 999
child = os.fork()
if child == 0:
    assert len(os.listdir("/proc/self/fd")) == before
    assert hit("key", 1).remaining == 998
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
own = [one for each in engine._pool._idle.values() for one in each]
assert hit("key", 1).remaining == 997
assert own == [one for each in engine._pool._idle.values() for one in each]
engine.close()
"""


@one_flavour
@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_a_child_keeps_no_copies_and_leaves_the_parent_its_connections(
    redis_server: RedisServer,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", FORK_AND_COUNT, f"{redis_server.url}?deadline=10"],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words, outcome",
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", Refused),
        ("NOAUTH Authentication required.", Refused),
        ("NOPERM this user has no permissions to run the 'select' command", Refused),
        ("DENIED Redis is running in protected mode", Refused),
        ("ERR invalid password", Refused),
        ("ERR DB index is out of range", Refused),
        ("ERR AUTH <password> called without any password configured", Refused),
        (f"ERR unknown command 'AUTH', with args beginning with: '{CANARY}' ", Refused),
        (f"ERR {CANARY} is odd", NotSent),
        ("ERR max number of clients reached", NotSent),
        ("LOADING Redis is loading the dataset in memory", NotSent),
        ("MASTERDOWN Link with MASTER is down", NotSent),
    ],
)
def test_permanent_and_temporary_refusals_are_distinguished_without_the_password(
    words: str, outcome: type[Exception]
) -> None:
    options = parse_url(f"redis://u:{CANARY}@host")
    with pytest.raises(outcome) as caught:
        require_accepted(Exception(words), ("host", 6379), options)
    assert CANARY not in str(caught.value)


# --- links ----------------------------------------------------------------------------------------


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def linked() -> tuple[Link, Wire]:
    link, wire = Link(("a", 1)), Wire()
    link.connection_made(wire)  # type: ignore[arg-type]
    return link, wire


def test_what_cannot_be_packed_waits_for_no_reply() -> None:
    async def main() -> None:
        link, wire = linked()
        replies: list[Any] = []
        with pytest.raises(TypeError):
            await link.call((object(),), asking=True)
        link.send(PING, replies.append)
        link.data_received(b"+PONG\r\n")
        assert replies == [b"PONG"]
        assert not wire.aborted

    asyncio.run(main())


def test_our_own_bug_is_not_mistaken_for_a_broken_server() -> None:
    link, wire = linked()

    def buggy(_: Any) -> None:
        raise IndexError("a bug")

    link.send(PING, buggy)
    with pytest.raises(IndexError, match="a bug"):
        link.data_received(b"+PONG\r\n")
    assert not wire.aborted
    link.data_received(b"+NOBODY ASKED\r\n")
    assert wire.aborted


def test_a_request_does_not_wait_for_advice_about_the_server() -> None:
    """INFO goes out after the first request, and that it stays unanswered is nobody's failure."""

    async def main() -> bytes:
        heard = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while b"FCALL" not in heard:
                heard.extend(await reader.read(100_000))
            writer.write(b"-ERR no\r\n")
            while data := await reader.read(100_000):
                heard.extend(data)
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        engine = AsyncRedisEngine(f"redis://{HOST}:{port}?deadline=0.5")
        with pytest.raises(EngineError, match="ERR no") as caught:
            await engine.bind(LIMIT)("key", 1)  # type: ignore[misc]
        assert not caught.value.indefinite
        await engine.aclose()
        server.close()
        return bytes(heard)

    heard = asyncio.run(main())
    assert 0 < heard.index(b"FCALL") < heard.index(b"INFO")


# --- topologies -----------------------------------------------------------------------------------


def test_searches_at_the_same_time_do_not_disturb_each_other() -> None:
    """Two loops in two threads share a topology: lists are replaced and never changed."""
    for url, kind in (
        ("redis+sentinel://a,b,c/name", Sentinel),
        ("redis+cluster://a,b,c", Cluster),
    ):
        topology: Any = kind(parse_url(url))
        if kind is Cluster:
            rows = [[0, 16_383, *([name, 6379] for name in (b"a", b"b", b"c"))]]
            search = ParallelDiscovery(topology.discovery())
            search.process_reply(search.due()[0], rows)
            assert search.ended
        known = "_sentinels" if kind is Sentinel else "_nodes"
        seen = getattr(topology, known)
        before = list(seen)
        searches = [ParallelDiscovery(topology.discovery()) for _ in range(2)]
        asked: list[list[Any]] = [[], []]
        for _ in before:
            for place, one in enumerate(searches):
                (question,) = one.due()
                asked[place].append(question.address)
                one.process_reply(question, NotSent("down"))
        assert asked == [before, before]  # Each asks everyone once.
        assert all(one.ended for one in searches)
        assert seen == before


def searched(url: str, *replies: Any) -> Any:
    """What a search says that got these replies, to one question after the other."""
    search = ParallelDiscovery(topology_of(parse_url(url)).discovery())
    for reply in replies:
        (question,) = search.due()
        search.process_reply(question, reply)
    assert search.ended
    return search.reason


def test_another_server_is_asked_whenever_none_answers_for_a_while() -> None:
    search = ParallelDiscovery(topology_of(parse_url("redis+cluster://a,b,c")).discovery())
    (first,) = search.due()
    assert search.due() == []
    search.ask_another()
    (second,) = search.due()
    search.process_reply(first, NotSent("down"))
    assert search.due() == []  # One is still waited for.
    search.process_reply(second, [[0, 16_383, [b"a", 6379]]])
    assert search.ended
    assert search.reason is None
    assert [first.address[0], second.address[0]] == ["a", "b"]


def test_a_master_that_was_named_is_asked_at_once_and_only_once() -> None:
    search = ParallelDiscovery(topology_of(parse_url("redis+sentinel://a,b,c/m")).discovery())
    search.ask_another()
    first, second = search.due()
    search.process_reply(first, [b"h", b"1"])
    (role,) = search.due()
    search.process_reply(second, [b"h", b"1"])
    assert (role.address, search.due()) == (("h", 1), [])
    search.process_reply(role, [b"master"])
    assert search.ended
    assert search.reason is None


DISABLED = Exception("ERR This instance has cluster support disabled")
UNKNOWN = Exception("ERR unknown command 'SENTINEL', with args beginning with: 'GET-MASTER-…'")
DOWN = NotSent("cannot connect")


@pytest.mark.parametrize(
    "url, replies, outcome, words",
    [
        ("redis+sentinel://a/bad", [None], Answered, "the Sentinel at a:26379 has no master named 'bad'"),
        ("redis+sentinel://a,b/bad", [None, DOWN], Answered, "the Sentinel at a:26379 has no master named 'bad'"),
        ("redis+sentinel://a,b/m", [DOWN, DOWN], NotSent, "cannot connect"),
        ("redis+sentinel://a,b/m", [DOWN, UNKNOWN], Refused, "b:26379 answered: ERR unknown command"),
        ("redis+sentinel://a/m", [[b"h", b"1"], [b"slave"]], Answered, "Sentinel names h:1, which is not a master"),
        ("redis+sentinel://a,b/m", [[b"h", b"1"], DOWN, UNKNOWN], NotSent, "cannot connect"),
        (
            "redis+cluster://a",
            [DISABLED],
            Refused,
            r"a:6379 is not part of a Cluster \(ERR This .* disabled\); use a redis:// URL",
        ),
        ("redis+cluster://a,b", [Exception("NOPERM no"), DOWN], Refused, "a:6379 answered: NOPERM no"),
        ("redis+cluster://a", [[]], Answered, "the Cluster of a:6379 has no slots yet"),
        ("redis+cluster://a", [Unanswered("timed out")], Unanswered, "timed out"),
    ],
)  # fmt: skip
def test_a_search_says_what_it_was_answered(
    url: str, replies: list[Any], outcome: type[Exception], words: str
) -> None:
    reason = searched(url, *replies)
    assert type(reason) is outcome
    assert re.match(words, str(reason))


def test_a_moving_slot_does_not_disturb_others() -> None:
    topology = Cluster(parse_url("redis+cluster://a"))
    topology.moved(1, ("a", 1))
    slots = topology._slots
    topology.moved(2, ("b", 1))
    assert len(slots) == 1
    assert topology.masters == [("a", 1), ("b", 1)]


def test_work_of_a_loop_that_ends_before_it_has_begun_is_never_made() -> None:
    """Not even as a coroutine, which Python would complain about."""
    made: list[str] = []

    async def work() -> None:
        made.append("begun")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        options = parse_url("redis://127.0.0.1:1")
        state = LoopState(
            loop, options, lambda *_: None, lambda _: None, Evictions(logging.getLogger())
        )
        waiting = loop.create_task(state.run_shared("work", work))
        await asyncio.sleep(0)  # The work is about to begin.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([waiting])

    asyncio.run(main())
    gc.collect()
    assert not made
