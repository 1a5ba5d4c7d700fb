"""What a caller of the Redis engine is told when the server or the way to it fails.

Every fault here is real: processes are killed, stopped, demoted and filled, replies are lost on the
way. Most tests take a second or more because the faults do.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headgate import Charge, Decision, EngineError
from headgate.charge import ChargeSet
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from tests.faults.load import AsyncLoad, ThreadLoad, report, used, window_of
from tests.servers.fixtures import installed, on_flavours
from tests.servers.link import Link
from tests.servers.process import HOST, free_ports, wait_until
from tests.servers.redis import standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.engines.redis.scripts import Dialect
    from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

PLENTY = window_of(1_000_000)
SLACK_S = 1.0
"""What a busy machine may add to a deadline."""

one_flavour = on_flavours("redis_server", "redis-7.0")


class Both:
    """One way to hit a key, whichever shell is under it."""

    def __init__(self, kind: str, url: str) -> None:
        self._runner: asyncio.Runner | None = None
        self.engine: Any
        if kind == "sync":
            self.engine = RedisEngine(url)
        else:
            self._runner = asyncio.Runner()
            self.engine = AsyncRedisEngine(url)

    def hit(self, key: str = "key", cost: int = 1, limit: Any = PLENTY) -> Decision:
        bound = self.engine.bind(limit)
        if self._runner is None:
            return bound(key, cost)  # type: ignore[no-any-return]

        async def ask() -> Decision:
            return await bound(key, cost)  # type: ignore[no-any-return]

        return self._runner.run(ask())

    def close(self) -> None:
        if self._runner is None:
            self.engine.close()
        else:
            self._runner.run(self.engine.aclose())
            self._runner.close()


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Both]]:
    """Makes an engine for a URL, blocking and awaited in turn."""
    with ExitStack() as stack:

        def make(url: str) -> Both:
            both = Both(request.param, url)
            stack.callback(both.close)
            return both

        yield make


def refusal(both: Both, **words: Any) -> EngineError:
    """The error that a hit ends in."""
    with pytest.raises(EngineError) as caught:
        both.hit(**words)
    return caught.value


async def warm_up(engine: AsyncRedisEngine) -> None:
    """Connect, load the script, and charge the key once."""
    await engine.decide([ChargeSet((Charge("key", PLENTY),))])


def may_have_been_charged(error: EngineError) -> bool:
    assert error.indefinite == ("may have been charged" in str(error))
    return error.indefinite


# --- functions and scripts ----------------------------------------------------------------------


def flush(server: RedisServer, dialect: Dialect) -> None:
    """Forget what the engine calls."""
    if dialect.functions:
        server.flush_functions()
    else:
        server.flush_scripts()


@pytest.mark.parametrize("functions", [True, False], ids=["functions", "scripts"])
def test_flushing_what_we_call_under_async_load_costs_no_error(
    redis_server: RedisServer, *, functions: bool
) -> None:
    async def main() -> None:
        engine = AsyncRedisEngine(redis_server.url)
        engine._dialect.functions = functions
        async with AsyncLoad(engine.bind(PLENTY), "key", 64) as record:
            for _ in range(30):
                await asyncio.to_thread(flush, redis_server, engine._dialect)
                await asyncio.sleep(0.01)  # Of load between two flushes.
        await engine.aclose()
        assert record.errors == []
        assert engine._dialect.functions == functions
        assert used(redis_server.url, "key", PLENTY) == record.allowed > 0

    asyncio.run(main())


@pytest.mark.parametrize("functions", [True, False], ids=["functions", "scripts"])
def test_flushing_what_we_call_under_load_of_threads_costs_no_error(
    redis_server: RedisServer, *, functions: bool
) -> None:
    engine = RedisEngine(redis_server.url)
    engine._dialect.functions = functions
    with ThreadLoad(engine.bind(PLENTY), "key", 8) as record:
        for _ in range(30):
            flush(redis_server, engine._dialect)
            time.sleep(0.01)  # Of load between two flushes.
    engine.close()
    assert record.errors == []
    assert engine._dialect.functions == functions
    assert used(redis_server.url, "key", PLENTY) == record.allowed > 0


@pytest.mark.parametrize("missing", ["FCALL", "FUNCTION"])
def test_a_server_without_functions_is_sent_scripts(
    caller: Callable[[str], Both], missing: str
) -> None:
    """Redis 6.2 has none, and some who run a server rename what they do not want to be called."""
    with installed(), standalone("redis-7.0", rename_command=f'{missing} ""') as server:
        both = caller(server.url)
        for _ in range(3):
            both.hit()
        calls = server.info("commandstats")
        assert "cmdstat_evalsha" in calls
        assert calls.get("cmdstat_fcall", "calls=1,").startswith("calls=1,")  # And never again.


# --- a server that is not there -----------------------------------------------------------------


@one_flavour
def test_a_killed_server_is_a_definite_error_and_its_return_needs_no_help(
    redis_server: RedisServer, caller: Callable[[str], Both]
) -> None:
    both = caller(f"{redis_server.url}?deadline=0.3")
    assert both.hit()
    redis_server.kill()
    error = refusal(both)
    assert error.transient
    assert not may_have_been_charged(error)
    redis_server.start()
    started = time.monotonic()
    assert both.hit().remaining == PLENTY.limit - 1  # It came back empty, and we said it once.
    report(f"recovered {time.monotonic() - started:.3f} s after the restart")


def test_an_engine_may_start_before_its_server(caller: Callable[[str], Both]) -> None:
    with standalone("redis-7.0") as server:
        server.terminate()
        both = caller(f"{server.url}?deadline=0.2")
        error = refusal(both)
        assert error.transient
        assert not may_have_been_charged(error)
        assert "cannot connect to" in str(error)
        server.start()
        assert both.hit()


@one_flavour
def test_a_killed_server_under_load_leaves_no_caller_waiting(redis_server: RedisServer) -> None:
    """Callers in flight are told that they may have been charged, and everyone else for sure."""

    async def main() -> None:
        engine = AsyncRedisEngine(f"{redis_server.url}?deadline=0.5")
        async with AsyncLoad(engine.bind(PLENTY), "key", 64, 0.001) as record:
            await asyncio.sleep(0.3)  # Of load.
            before = record.allowed
            await asyncio.to_thread(redis_server.kill)
            await asyncio.sleep(0.7)  # Of load while it is gone.
            allowed_before_the_restart = record.allowed
            unknown = record.unknown
            await asyncio.to_thread(redis_server.start)
            back = time.monotonic()
            await asyncio.sleep(0.5)  # Of load, for callers to resume in.
        await engine.aclose()
        assert 0 < before <= allowed_before_the_restart
        assert unknown == record.unknown  # Once it was gone, nothing could be sent.
        recovery_s = record.first_allowed_after(back)
        report(f"recovered {recovery_s:.3f} s after the restart, {record.unknown} unknown")
        assert recovery_s < SLACK_S
        assert record.slowest_s < 0.5 + SLACK_S
        assert used(redis_server.url, "key", PLENTY) == record.allowed - allowed_before_the_restart

    asyncio.run(main())


# --- a reply that is lost -----------------------------------------------------------------------


@one_flavour
def test_a_lost_reply_is_counted_once_and_reported_as_indefinite(
    redis_server: RedisServer, caller: Callable[[str], Both]
) -> None:
    with Link(redis_server.port) as link:
        both = caller(link.url)
        both.hit()
        link.lose_replies(1, of=b"FCALL")
        error = refusal(both)
        assert link.replies_lost == 1
        assert error.transient
        assert may_have_been_charged(error)
        assert used(redis_server.url, "key", PLENTY) == 2
        assert both.hit().remaining == PLENTY.limit - 3


@one_flavour
def test_lost_replies_under_load_never_charge_twice(redis_server: RedisServer) -> None:
    async def main() -> None:
        with Link(redis_server.port) as link:
            engine = AsyncRedisEngine(link.url)
            await warm_up(engine)
            async with AsyncLoad(engine.bind(PLENTY), "key", 32, 0.001) as record:
                for _ in range(10):
                    await asyncio.to_thread(link.lose_replies, 1, of=b"FCALL")
                    await asyncio.sleep(0.05)  # Of load between two losses.
            await engine.aclose()
            assert link.replies_lost == 10
        ledger = used(redis_server.url, "key", PLENTY) - 1
        assert record.outcomes["failed"] == 0
        assert record.unknown >= 10
        assert record.allowed < ledger <= record.allowed + record.unknown

    asyncio.run(main())


@one_flavour
def test_a_connection_that_died_in_silence_is_given_up(
    redis_server: RedisServer, caller: Callable[[str], Both]
) -> None:
    """A host that lost power closes nothing: only the deadline can tell."""
    with Link(redis_server.port) as link:
        both = caller(f"{link.url}?deadline=0.3")
        both.hit()
        for connection in link._connections:
            connection._said_last = True  # Nothing more comes back on these.
        started = time.monotonic()
        error = refusal(both)
        assert time.monotonic() - started < 0.3 + SLACK_S
        assert error.transient
        assert may_have_been_charged(error)
        assert both.hit().remaining == PLENTY.limit - 3


# --- a server that hangs ------------------------------------------------------------------------


@one_flavour
def test_nothing_is_sent_once_its_time_is_over(redis_server: RedisServer) -> None:
    """Whoever waited may have been told by then that nothing was sent."""

    async def main() -> None:
        engine = AsyncRedisEngine(redis_server.url)
        await warm_up(engine)
        operations = engine._operations
        part = operations.codec.part(ChargeSet((Charge("key", PLENTY),)))
        routed = operations.routed(operations.slot(part), [part])
        with pytest.raises(EngineError) as refused:
            await engine._run(routed, ends=asyncio.get_running_loop().time())
        await engine.aclose()
        assert not may_have_been_charged(refused.value)
        assert used(redis_server.url, "key", PLENTY) == 1

    asyncio.run(main())


@one_flavour
def test_500_callers_of_a_server_that_hangs_are_all_answered_in_time(
    redis_server: RedisServer,
) -> None:
    async def main() -> None:
        engine = AsyncRedisEngine(f"{redis_server.url}?deadline=0.5")
        await warm_up(engine)
        redis_server.stop()
        async with AsyncLoad(engine.bind(PLENTY), "key", 500, 0.001) as record:
            await asyncio.sleep(5)  # Of load while it hangs.
            tasks = len(asyncio.all_tasks())
            assert record.allowed == 0
            redis_server.resume()
            back = time.monotonic()
            await asyncio.sleep(1)  # Of load, for callers to resume in.
        await engine.aclose()
        recovery_s = record.first_allowed_after(back)
        report(f"slowest {record.slowest_s:.3f} s, recovery {recovery_s:.3f} s, {tasks} tasks")
        assert record.slowest_s < 0.5 + SLACK_S
        assert recovery_s < 0.5 + SLACK_S
        assert tasks < 500 + 50
        ledger = used(redis_server.url, "key", PLENTY) - 1
        assert record.allowed <= ledger <= record.allowed + record.unknown
        assert int(redis_server.info("clients")["connected_clients"]) < 10

    asyncio.run(main())


@one_flavour
def test_threads_that_call_a_server_that_hangs_are_all_answered_in_time(
    redis_server: RedisServer,
) -> None:
    engine = RedisEngine(f"{redis_server.url}?deadline=0.3")
    engine.bind(PLENTY)("key", 1)
    redis_server.stop()
    with ThreadLoad(engine.bind(PLENTY), "key", 8) as record:
        time.sleep(2)  # Of load while it hangs.
        assert record.allowed == 0
        redis_server.resume()
        back = time.monotonic()
        time.sleep(0.5)  # Of load, for callers to resume in.
    engine.close()
    assert record.slowest_s < 0.3 + SLACK_S
    assert record.first_allowed_after(back) < 0.3 + SLACK_S
    ledger = used(redis_server.url, "key", PLENTY) - 1
    assert record.allowed <= ledger <= record.allowed + record.unknown


# --- a server that says no ----------------------------------------------------------------------


def test_a_demoted_server_serves_again_without_a_restart_of_ours(
    caller: Callable[[str], Both],
) -> None:
    with standalone("redis-7.0") as other, standalone("redis-7.0") as server:
        both = caller(f"{server.url}?deadline=0.3")
        assert both.hit()
        server.follow(other)
        error = refusal(both)
        assert error.transient
        assert not may_have_been_charged(error)
        server.follow(None)
        assert both.hit()


def test_a_full_server_refuses_and_charges_nothing(
    redis_server: RedisServer, caller: Callable[[str], Both]
) -> None:
    both = caller(redis_server.url)
    both.hit()
    redis_server.config_set(maxmemory=1_000)
    try:
        error = refusal(both)
        refusal(both, key="other")
    finally:
        redis_server.config_set(maxmemory=0)
    assert error.transient
    assert "OOM" in str(error)
    assert used(redis_server.url, "key", PLENTY) == 1
    assert used(redis_server.url, "other", PLENTY) == 0
    assert both.hit().remaining == PLENTY.limit - 2


def test_a_server_that_is_still_loading_is_waited_for(caller: Callable[[str], Both]) -> None:
    with standalone("redis-7.0", loading_process_events_interval_bytes=1024) as server:
        both = caller(f"{server.url}?deadline=5")
        both.hit()
        server.call("DEBUG", "POPULATE", 8_000)
        server.config_set(key_load_delay=30)
        reload = threading.Thread(target=lambda: server.call("DEBUG", "RELOAD"))
        reload.start()
        wait_until(lambda: _said(server.port, b"PING").startswith(b"-LOADING"), "it loads")
        impatient = caller(f"{server.url}?deadline=0.1")
        assert refusal(impatient).transient
        assert both.hit().remaining == PLENTY.limit - 2
        reload.join()


@one_flavour
def test_a_foreign_busy_script_is_waited_for(
    redis_server: RedisServer, caller: Callable[[str], Both]
) -> None:
    redis_server.config_set(busy_reply_threshold=20)
    both, impatient = (
        caller(f"{redis_server.url}?deadline=30"),
        caller(f"{redis_server.url}?deadline=1"),  # Long enough to be told so on a busy machine.
    )
    both.hit()
    with socket.create_connection((HOST, redis_server.port)) as raw, _usual_patience(redis_server):
        raw.sendall(b'EVAL "while true do end" 0\r\n')
        wait_until(lambda: _said(redis_server.port, b"PING").startswith(b"-BUSY"), "it is busy")
        error = refusal(impatient)
        assert error.transient
        assert not may_have_been_charged(error)
        timer = threading.Timer(0.3, _said, (redis_server.port, b"SCRIPT KILL"))
        timer.start()
        assert both.hit().remaining == PLENTY.limit - 2
        timer.join()


def test_a_server_without_room_for_clients_refuses_and_later_serves(
    caller: Callable[[str], Both],
) -> None:
    with standalone("redis-7.0") as server:
        server.config_set(maxclients=1)  # That one is the test's own.
        both = caller(f"{server.url}?deadline=0.3")
        assert refusal(both).transient
        server.config_set(maxclients=100)
        assert both.hit()
        assert used(server.url, "key", PLENTY) == 1


# --- replies in pieces, and what is no reply ----------------------------------------------------


@one_flavour
def test_replies_split_into_single_bytes_reach_their_callers(redis_server: RedisServer) -> None:
    """Every caller has a limit of its own, and what remains of it names the reply."""

    async def main() -> None:
        with Link(redis_server.port) as link:
            engine = AsyncRedisEngine(f"{link.url}?max_batch=7&deadline=10")
            await engine.usage("own 0", PLENTY)  # So that the script is there.
            link.slice_bytes = 1
            hits: list[Any] = [engine.bind(window_of(100 + n))(f"own {n}", 1) for n in range(64)]
            decisions = await asyncio.gather(*hits)
            await engine.aclose()
        assert [one.remaining for one in decisions] == [99 + n for n in range(64)]
        assert [one.key for one in decisions] == [f"own {n}" for n in range(64)]

    asyncio.run(main())


GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"*6\r\n:1\r\n:1\r\n",
    b"*6\r\n:x\r\n",
    b"*1\r\n:1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b":1\r\n",
    b"+OK\r\n",
    b"$-1\r\n",
    b"$3\r\nabc\r\n",
    b"*6\r\n" + b"$1\r\na\r\n" * 6,
    b"*6\r\n" + b"*0\r\n" * 6,
    b"-ERR something odd\r\n",
    b"-MOVED nonsense\r\n",
    b"-ASK\r\n",
    b"-\r\n",
    b"*6\r\n" + b":1\r\n" * 6 + b":1\r\n" * 6,
    b"*6\r\n" + b":1\r\n" * 5 + b",1.5\r\n",
    b"\0\xff\r\n",
    b"",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_a_malformed_reply_is_an_error_and_never_an_answer(
    garbage: bytes, caller: Callable[[str], Both]
) -> None:
    with _answering(garbage) as port:
        both = caller(f"redis://{HOST}:{port}/0?deadline=0.2")
        started = time.monotonic()
        if garbage.count(b":1\r\n") == 12:  # A whole reply, and then another that nobody asked for.
            assert both.hit()
        else:
            refusal(both)
        assert time.monotonic() - started < 0.2 + SLACK_S


# --- callers who leave, and many of them --------------------------------------------------------


@one_flavour
def test_a_cancelled_caller_does_not_hurt_its_batch(redis_server: RedisServer) -> None:
    async def main() -> None:
        with Link(redis_server.port) as link:
            engine = AsyncRedisEngine(link.url)
            hit: Any = engine.bind(PLENTY)

            async def ask() -> Decision:
                return await hit("key", 1)  # type: ignore[no-any-return]

            await ask()
            link.delay_s = 0.05
            tasks = [asyncio.create_task(ask()) for _ in range(50)]
            tasks[0].cancel()  # Before it has asked.
            await asyncio.sleep(0)
            tasks[1].cancel()  # Before its batch has left.
            await asyncio.sleep(0.02)  # Less than the link takes.
            tasks[2].cancel()  # While the batch is on its way.
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await engine.aclose()
        assert all(isinstance(one, asyncio.CancelledError) for one in outcomes[:3])
        assert all(not isinstance(one, BaseException) and one for one in outcomes[3:])
        assert used(redis_server.url, "key", PLENTY) == 1 + 48

    asyncio.run(main())


def test_512_callers_at_once_are_nothing_special(redis_server: RedisServer) -> None:
    async def main() -> None:
        engine = AsyncRedisEngine(redis_server.url)
        limit = window_of(300)
        hit: Any = engine.bind(limit)
        decisions = await asyncio.gather(*(hit("key", 1) for _ in range(512)))
        await engine.aclose()
        assert sum(map(bool, decisions)) == 300
        assert used(redis_server.url, "key", limit) == 300

    asyncio.run(main())


@one_flavour
@pytest.mark.parametrize("different", [False, True])
def test_a_request_too_large_for_the_wire_is_refused_and_the_next_is_served(
    redis_server: RedisServer,
    different: bool,  # noqa: FBT001
) -> None:
    """More charges than a byte can count, of one limit or of as many limits, beside a usual one."""

    async def main() -> None:
        engine = AsyncRedisEngine(f"{redis_server.url}?deadline=10")
        charges = [Charge(f"key {n}", window_of(9 + n * different)) for n in range(300)]
        hit: Any = engine.bind(PLENTY)
        for _ in range(3):
            huge, usual = await asyncio.wait_for(
                asyncio.gather(
                    engine.decide([ChargeSet(tuple(charges))]),
                    hit("key", 1),
                    return_exceptions=True,
                ),
                5,
            )
            assert isinstance(huge, ValueError)  # A `UsageError` is one.
            assert isinstance(usual, Decision)
            assert usual.allowed
        await engine.aclose()
        assert used(redis_server.url, "key", PLENTY) == 3

    asyncio.run(main())


@one_flavour
def test_one_engine_serves_several_event_loops(redis_server: RedisServer) -> None:
    engine = AsyncRedisEngine(redis_server.url)
    limit = window_of(150)
    allowed: list[int] = []

    async def main() -> None:
        hit: Any = engine.bind(limit)
        for _ in range(5):
            decisions = await asyncio.gather(*(hit("key", 1) for _ in range(10)))
            allowed.extend([sum(map(bool, decisions))])
        await engine.aclose()

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(allowed), sum(allowed)) == (20, 150)


FORKS = """
import os, sys
from headgate import FixedWindow
from headgate.engines.redis.sync import RedisEngine

hit = RedisEngine(sys.argv[1]).bind(FixedWindow(1000, 250 * 86_400_000_000))
assert hit("key", 1)
child = os.fork()
for _ in range(100):
    assert hit("key", 1)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert hit("key", 1).remaining == 1000 - 202
"""


@one_flavour
def test_a_fork_leaves_parent_and_child_with_connections_of_their_own(
    redis_server: RedisServer,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, redis_server.url], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- tools ---------------------------------------------------------------------------------------


def _said(port: int, command: bytes) -> bytes:
    """What a server answers, in its own words, also when it is in no state to."""
    with socket.create_connection((HOST, port), timeout=1.0) as raw:
        raw.settimeout(0.2)
        raw.sendall(command + b"\r\n")
        try:
            return raw.recv(1000)
        except TimeoutError:
            return b""


@contextmanager
def _usual_patience(server: RedisServer) -> Iterator[None]:
    """Leave the server as it was, also when the test fails while a script runs."""
    try:
        yield
    finally:
        _said(server.port, b"SCRIPT KILL")
        wait_until(lambda: _said(server.port, b"PING").startswith(b"+PONG"), "it answers")
        server.config_set(busy_reply_threshold=5_000)


@contextmanager
def _answering(words: bytes) -> Iterator[int]:
    """A server that answers everything with the same words; with none it hangs up."""
    (port,) = free_ports(1)
    ended = threading.Event()
    listener = socket.create_server((HOST, port))
    listener.settimeout(0.02)

    def serve() -> None:
        with ExitStack() as stack:
            while not ended.is_set():
                try:
                    one, _ = listener.accept()
                except TimeoutError:
                    continue
                stack.enter_context(one)
                one.settimeout(0.5)
                try:
                    one.recv(100_000)
                    one.sendall(words)
                except OSError:
                    continue
                if not words:
                    one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield port
    finally:
        ended.set()
        thread.join()
        listener.close()
