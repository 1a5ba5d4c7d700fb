"""Limiters of the library on a real Redis, as nodes among others: by how many an outage divides their limits."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow, Limiter, Request, RuleSet, _registration
from tests.faults.load import window_of
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

    from tests.servers.redis import Cluster, RedisServer
    from tests.service.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

LIMIT = window_of(90)
NODES = "hg:b:nodes"
WITHIN_S = 30.0


class Process:
    """One process with a limiter."""

    def __init__(self, url: str, kind: str, *more: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.library_process", url, kind, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let it end by itself, without closing anything."""
        with contextlib.suppress(ValueError, BrokenPipeError):
            self._process.communicate(timeout=WITHIN_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def patient(url: str) -> str:
    """Patient enough for a busy machine, and not too patient with a store that is away."""
    return f"{url}?deadline=1"


def has_begun(limiter: Limiter) -> bool:
    assert limiter._registration is not None
    return limiter._registration.has_begun


def sees(process: Process, nodes: int) -> None:
    wait_until(lambda: process.ask("nodes") == nodes, f"it sees {nodes}", within_s=WITHIN_S)


def fallback_nodes(one: Service) -> int:
    for line in one.ask("GET", "/metrics")[2].splitlines():
        if line.startswith("headgate_fallback_nodes"):
            return int(float(line.split()[-1]))
    return 0


@contextlib.contextmanager
def serving(url: str) -> Iterator[Service]:
    with service("--engine", url) as one:
        yield one


def registered(server: RedisServer) -> list[dict[str, Any]]:
    rows = server.call("HGETALL", NODES)
    return [json.loads(value.split(":", 2)[2]) for value in rows[1::2]]


@on_flavours("redis_server", "redis-7.0")
def test_processes_and_the_service_share_a_limit_among_all_of_them(
    redis_server: RedisServer,
) -> None:
    url = patient(redis_server.url)
    with (
        serving(redis_server.url) as node,
        Process(url, "blocking") as one,
        Process(url, "asyncio") as other,
    ):
        assert one.ask("hit", "warm", 1, 90) == {"engine": 1}
        assert other.ask("hit", "warm", 1, 90) == {"engine": 1}
        sees(one, 3)
        sees(other, 3)
        wait_until(lambda: fallback_nodes(node) == 3, "the service knows", within_s=WITHIN_S)
        health = node.ask("GET", "/health")[2]
        assert health["nodes"] == 1  # A limiter does not answer requests.
        redis_server.kill()
        admitted = [one.ask("hit", "key", 91, 90), other.ask("hit", "key", 91, 90)]
        of_service = [node.check("key", limit=90, window=3600, algorithm="fixed_window")]
        while of_service[-1]["allowed"]:
            of_service.append(node.check("key", limit=90, window=3600, algorithm="fixed_window"))
    assert admitted == [{"fallback": 30}, {"fallback": 30}]
    assert sum(answer["allowed"] for answer in of_service) == 30
    assert {answer["source"] for answer in of_service} == {"fallback"}


@on_flavours("redis_server", "redis-7.0")
def test_fewer_units_than_processes_are_given_once_each(redis_server: RedisServer) -> None:
    url = patient(redis_server.url)
    with contextlib.ExitStack() as stack:
        kinds = ("blocking", "asyncio", "blocking")
        processes = [stack.enter_context(Process(url, kind)) for kind in kinds]
        for process in processes:
            process.ask("hit", "warm", 1, 90)
        for process in processes:
            sees(process, 3)
        redis_server.kill()
        for number in range(10):
            told = [process.ask("hit", f"key-{number}", 3, 2) for process in processes]
            assert sum(one.get("fallback", 0) for one in told) == 2


@on_flavours("redis_server", "redis-7.0")
def test_one_that_was_killed_is_given_up_and_counts_for_an_hour(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = patient(redis_server.url)
    with Process(url, "blocking", "3") as one, Process(url, "asyncio", "3") as other:
        for process in (one, other):
            process.ask("hit", "warm", 1, 90)
        for process in (one, other):
            sees(process, 2)
        other.kill()

        def seen_by_a_new_one() -> int:
            monkeypatch.setenv("HEADGATE_STATE_DIR", str(tmp_path / str(time.monotonic_ns())))
            with Limiter(url, on_error="fallback") as new:
                new.hit("warm", LIMIT)
                wait_until(lambda: new._members.fleet().known, "it has looked", within_s=WITHIN_S)
                return new.nodes

        wait_until(lambda: seen_by_a_new_one() == 2, "the others give it up", within_s=WITHIN_S)
        assert one.ask("nodes") >= 2
        redis_server.kill()
        assert one.ask("hit", "key", 91, 90)["fallback"] <= 45


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_process_that_ends_or_closes_its_limiter_leaves_at_once(
    redis_server: RedisServer, kind: str
) -> None:
    with Process(patient(redis_server.url), kind) as process:
        process.ask("hit", "warm", 1, 90)
        wait_until(lambda: len(registered(redis_server)) == 1, "it is there", within_s=WITHIN_S)
        process.ask("close")
        wait_until(lambda: not registered(redis_server), "it has left", within_s=WITHIN_S)
    with Process(patient(redis_server.url), kind) as process:
        process.ask("hit", "warm", 1, 90)
        wait_until(lambda: len(registered(redis_server)) == 1, "it is there", within_s=WITHIN_S)
        process.end()
        wait_until(lambda: not registered(redis_server), "it has left", within_s=WITHIN_S)


@on_flavours("redis_server", "redis-7.0")
def test_a_limiter_that_needs_no_share_is_not_counted(redis_server: RedisServer) -> None:
    threads = threading.active_count()
    with Limiter(redis_server.url) as limiter, Limiter(redis_server.url, on_error="open") as other:
        for one in (limiter, other):
            one.hit("key", LIMIT)
            assert not has_begun(one)
    with Limiter(redis_server.url, on_error="fallback") as unused:
        assert not has_begun(unused)
    assert threading.active_count() == threads
    assert not registered(redis_server)


@on_flavours("redis_server", "redis-7.0")
def test_a_rule_with_a_fallback_is_enough(redis_server: RedisServer) -> None:
    text = """
rules:
  - {rule_id: strict, match: {path_pattern: /strict}, identifier: ip_address, rate: 5/minute, on_error: raise}
  - {rule_id: shared, match: {path_pattern: /shared}, identifier: ip_address, rate: 5/minute, on_error: fallback}
"""
    rules = RuleSet.parse(text)
    with Limiter(redis_server.url, rules=rules) as limiter:
        assert limiter.decide_request(Request(path="/strict", ip="192.0.2.1"))
        assert not has_begun(limiter)
        assert limiter.decide_request(Request(path="/shared", ip="192.0.2.1"))
        assert has_begun(limiter)
        wait_until(lambda: len(registered(redis_server)) == 1, "it is there", within_s=WITHIN_S)


@on_flavours("redis_server", "redis-7.0")
def test_namespaces_do_not_meet(redis_server: RedisServer) -> None:
    url = patient(redis_server.url)
    with (
        Limiter(url, on_error="fallback", namespace="a") as one,
        Limiter(url, on_error="fallback", namespace="a") as twin,
        Limiter(url, on_error="fallback", namespace="b") as other,
    ):
        for limiter in (one, twin, other):
            limiter.hit("key", LIMIT)
        wait_until(lambda: one.nodes == twin.nodes == 2, "they meet", within_s=WITHIN_S)
        wait_until(lambda: other._members.fleet().known, "it has looked", within_s=WITHIN_S)
        assert other.nodes == 1


@on_flavours("redis_server", "redis-7.0")
def test_a_forked_child_is_another_node(redis_server: RedisServer) -> None:
    script = f"""
import os, signal, sys, time
from headgate import FixedWindow, Limiter
limit = FixedWindow(90, 3_600_000_000)
limiter = Limiter({patient(redis_server.url)!r}, on_error="fallback")

def wait_for(nodes):
    ends = time.monotonic() + {WITHIN_S}
    while limiter.nodes != nodes and time.monotonic() < ends:
        time.sleep(0.01)
    assert limiter.nodes == nodes, limiter.nodes

limiter.hit("key", limit)
wait_for(1)
idle = os.fork()
if not idle:
    time.sleep(60)
    os._exit(0)
seen, told = os.pipe()
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        limiter.hit("key", limit)
        wait_for(2)
        os.read(seen, 1)
        limiter.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
wait_for(2)  # One that decides nothing is not counted.
os.write(told, b".")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
os.kill(idle, signal.SIGKILL)
os.waitpid(idle, 0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not registered(redis_server), "all have left", within_s=WITHIN_S)


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Its connection was not closed.
def test_a_limiter_that_is_forgotten_leaves(redis_server: RedisServer) -> None:
    before = set(_registration._running)
    limiter = Limiter(redis_server.url, on_error="fallback")
    limiter.hit("key", LIMIT)
    wait_until(lambda: len(registered(redis_server)) == 1, "it is there", within_s=WITHIN_S)
    del limiter
    gc.collect()
    wait_until(lambda: not registered(redis_server), "it has left", within_s=WITHIN_S)
    wait_until(lambda: _registration._running <= before, "its thread has ended", within_s=WITHIN_S)
    assert not registered(redis_server)


@on_flavours("redis_server", "redis-7.0")
def test_a_store_that_refuses_it_costs_one_warning_and_no_answer(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.call("ACL", "SETUSER", "app", "on", ">secret", "~hg:s*", "~hg:r*", "+@all")
    url = redis_server.url.replace("redis://", "redis://app:secret@")
    try:
        with caplog.at_level(logging.WARNING), Limiter(patient(url), on_error="fallback") as one:
            assert one.hit("key", LIMIT).source == "engine"
            wait_until(lambda: "nodes=N" in caplog.text, "it warns", within_s=WITHIN_S)
            assert one.hit("key", LIMIT).source == "engine"
    finally:
        redis_server.call("ACL", "DELUSER", "app")
    assert caplog.text.count("nodes=N") == 1


@on_flavours("redis_server", "redis-7.0")
def test_an_outage_from_the_start_is_divided_by_those_of_the_last_hour(
    redis_server: RedisServer,
) -> None:
    url = patient(redis_server.url)
    with Limiter(url, on_error="fallback") as one, Limiter(url, on_error="fallback") as other:
        for limiter in (one, other):
            limiter.hit("warm", LIMIT)
        wait_until(lambda: one.nodes == other.nodes == 2, "they meet", within_s=WITHIN_S)
    redis_server.kill()
    with Limiter(url, on_error="fallback") as late:
        admitted = sum(bool(late.hit("key", LIMIT)) for _ in range(91))
    assert admitted == 30  # It may be a third one: the two are not known to have ended.


def test_limiters_meet_in_a_cluster(redis_cluster: Cluster) -> None:
    url = patient(redis_cluster.url)
    with Limiter(url, on_error="fallback") as one, Limiter(url, on_error="fallback") as other:
        for limiter in (one, other):
            limiter.hit("key", FixedWindow(90, 3_600_000_000))
        wait_until(lambda: one.nodes == other.nodes == 2, "they meet", within_s=WITHIN_S)
        assert [limiter.nodes for limiter in (one, other)] == [2, 2]
