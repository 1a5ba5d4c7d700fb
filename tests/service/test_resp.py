"""The Redis protocol as a door: clients of Redis work against it, and what holds on the other doors holds here."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from headgate import MemoryEngine, SlidingWindow
from headgate.board.key_settings import Ban, KeyOverride
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.remote.engine import RemoteEngine
from headgate.engines.remote.serving import WireError
from headgate.service.resp.session import Session
from headgate.service.security.auth import Auth
from headgate.service.security.tokens import new_token
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports
from tests.servers.tls import make_certificates
from tests.service.resp_node import resp_node
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.redis import RedisServer
    from tests.service.resp_node import RespNode

PING = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
def node() -> Iterator[RespNode]:
    with resp_node() as running:
        yield running


def client(node: RespNode, **options: Any) -> redis.Redis:
    once = Retry(NoBackoff(), 0)
    return redis.Redis(HOST, node.port, **{"socket_timeout": 20, "retry": once, **options})


def connected(node: RespNode) -> socket.socket:
    return socket.create_connection((HOST, node.port), 20)


def everything(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    while data := sock.recv(65_536):
        found += data
    return found


# Clients that people have.


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_in_both_protocols(node: RespNode, protocol: int) -> None:
    with client(node, protocol=protocol, client_name="tests") as asking:
        assert asking.ping()
        assert asking.echo("hello") == b"hello"
        assert asking.execute_command("CL.THROTTLE", "u", 1, 1, 60) == [0, 2, 1, -1, 60]
        assert asking.execute_command("HG.HIT", "v", "2/minute burst 2") == [1, 2, 1, 0, 30_000]
        assert asking.client_getname() in ("tests", b"tests")
        assert asking.info()["engine"] == "memory"
        with asking.pipeline(transaction=False) as pipe:
            for number in range(100):
                pipe.execute_command("HG.HIT", f"key:{number % 10}", "5/minute")
            answers = pipe.execute()
        assert sum(answer[0] for answer in answers) == 50
        with pytest.raises(ResponseError, match="unknown command 'GET'"):
            asking.get("x")
        assert asking.ping()


def test_redis_py_works_under_asyncio(node: RespNode) -> None:
    async def story() -> list[Any]:
        async with redis.asyncio.Redis(host=HOST, port=node.port) as asking:
            ask: Any = asking.execute_command
            return await asyncio.gather(*(ask("HG.HIT", "one", "10/minute") for _ in range(50)))

    assert sum(answer[0] for answer in asyncio.run(story())) == 10


def run(*words: str) -> str:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed; `make servers` does that")
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def test_redis_cli_works(node: RespNode) -> None:
    port = str(node.port)
    assert run("redis-cli", "-p", port, "ping") == "PONG\n"
    answer = run("redis-cli", "-p", port, "cl.throttle", "user123", "15", "30", "60")
    assert answer.split() == ["0", "16", "15", "-1", "2"]
    assert "headgate" in run("redis-cli", "-3", "-p", port, "hello")
    assert "hg.hit" in run("redis-cli", "-p", port, "command", "list")
    assert "quantity" in run("redis-cli", "-p", port, "command", "docs", "cl.throttle")


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_redis_benchmark_works_and_every_command_is_counted(node: RespNode, pipeline: str) -> None:
    words = ("CL.THROTTLE", "bench", "9999", "1000", "86400")
    run("redis-benchmark", "-q", "-p", str(node.port), "-n", "5000", "-P", pipeline, *words)
    with client(node) as asking:
        left = asking.execute_command("CL.THROTTLE", *words[1:], "0")[2]
    assert 10_000 - left >= 5_000
    assert node.node.recorder.resp["CL.THROTTLE", "ok"] == 10_000 - left + 1


def test_a_person_can_type(node: RespNode) -> None:
    with connected(node) as sock:
        sock.sendall(b"HG.HIT me 1/minute\r\nHG.HIT me 1/minute\r\nquit\r\n")
        lines = everything(sock).split(b"\r\n")
    assert (lines[1], lines[7], lines[-2]) == (b":1", b":0", b"+OK")


# What is asked.


def test_commands_share_their_counts_with_every_other_protocol() -> None:
    (port,) = free_ports(1)
    with service("--resp-port", str(port)) as running:
        with redis.Redis(HOST, port) as asking:
            for _ in range(3):
                asking.execute_command("HG.HIT", "user:1", "100/minute")
        looked = running.check(
            "user:1", cost=0, algorithm="sliding_window"
        )  # As a rate is counted.
        assert looked["remaining"] == 97
        _, _, metrics = running.ask("GET", "/metrics")
        assert 'headgate_resp_commands_total{command="HG.HIT",result="ok"} 3.0' in metrics
        assert (
            'algorithm="sliding_window",result="allowed",rule="-",source="engine"} 4.0' in metrics
        )


def test_peeking_takes_nothing_and_a_reset_forgets(node: RespNode) -> None:
    with client(node) as asking:
        ask = asking.execute_command
        assert ask("HG.HIT", "k", "5/minute burst 5", "COST", 3)[:3] == [1, 5, 2]
        assert ask("HG.PEEK", "k", "5/minute burst 5", "COST", 3)[:3] == [0, 5, 2]
        assert ask("HG.PEEK", "k", "5/minute burst 5")[:3] == [1, 5, 2]
        assert ask("HG.HIT", "k", "5/minute burst 5", "COST", 9)[:4] == [0, 5, 2, -1]
        assert ask("HG.RESET", "k", "5/minute burst 5") == b"OK"
        assert ask("HG.PEEK", "k", "5/minute burst 5")[:3] == [1, 5, 5]
    (entry,) = [one for one in node.node.audit.recent(10) if one["action"] == "key.reset"]
    assert entry["target"] == "k"


def test_several_limits_pass_together_or_not_at_all(node: RespNode) -> None:
    with client(node) as asking:
        ask = asking.execute_command
        assert ask("HG.HIT", "k", "1/minute; 100/hour")[0] == 1
        assert ask("HG.HIT", "k", "1/minute; 100/hour")[0] == 0
        assert ask("HG.HIT", "k", "100/hour", "COST", 99)[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("CL.THROTTLE", "k", "1", "1"),
        ("CL.THROTTLE", "k", "1", "1", "60", "1", "1"),
        ("CL.THROTTLE", "k", "-1", "1", "60"),
        ("CL.THROTTLE", "k", "1", "0", "60"),
        ("CL.THROTTLE", "k", "1", "1", "0"),
        ("CL.THROTTLE", "k", "1", "1", "60", "-1"),
        ("CL.THROTTLE", "k", "1", "1", "60", "1.5"),
        ("CL.THROTTLE", "k", "1", "1", "99999999999999999999"),
        ("CL.THROTTLE", "", "1", "1", "60"),
        ("CL.THROTTLE", b"\xff", "1", "1", "60"),
        ("CL.THROTTLE", 9_000 * "x", "1", "1", "60"),
        ("HG.HIT", "k"),
        ("HG.HIT", "k", "many"),
        ("HG.HIT", "k", "1/minute", "COST"),
        ("HG.HIT", "k", "1/minute", "COST", "-1"),
        ("HG.HIT", "k", "1/minute", "ALGORITHM", "luck"),
        ("HG", "take"),
        ("HG", "take", "1", "k", "x"),
        ("HG", "guess", "0"),
        ("HG.RESET", "k", "1/minute", "COST", "1"),
        ("PING", "a", "b"),
        ("HELLO", "4"),
        ("AUTH", "x"),
        ("SELECT", "1"),
    ],
)
def test_what_makes_no_sense_gets_an_error_and_changes_nothing(
    node: RespNode, words: tuple[Any, ...]
) -> None:
    with client(node) as asking:
        with pytest.raises(redis.RedisError) as raised:
            asking.execute_command(*words)
        assert "the command failed" not in str(raised.value)
        assert asking.ping()
    assert node.node.recorder.totals.requests == 0


def test_a_bad_key_in_the_midst_of_a_pipeline_leaves_the_others_alone(node: RespNode) -> None:
    keys = ["a", "", "b", 9_000 * "x", "a"]
    with client(node) as asking, asking.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.execute_command("CL.THROTTLE", key, 9, 10, 60)
        answers = pipe.execute(raise_on_error=False)
    assert [isinstance(one, ResponseError) for one in answers] == [False, True, False, True, False]
    assert [answers[0][2], answers[2][2], answers[4][2]] == [9, 9, 8]


# What people have set for single keys.


def test_bans_and_limits_of_single_keys_hold(node: RespNode) -> None:
    board = node.node.board
    node.wait(board.keep("b", Ban(key="bad", reason="spam")))
    node.wait(board.keep("l", KeyOverride(key="vip", rate="1000/minute")))
    with client(node) as asking:
        ask = asking.execute_command
        assert ask("CL.THROTTLE", "bad", 9, 10, 60)[:1] == [1]
        assert ask("HG.HIT", "bad", "10/minute")[:4] == [0, 10, 0, -1]
        assert ask("HG.HIT", "vip", "1/minute")[:3] == [1, 1_000, 999]
        with asking.pipeline(transaction=False) as pipe:
            for key in ("good", "bad", "good"):
                pipe.execute_command("CL.THROTTLE", key, 9, 10, 60)
            assert [answer[0] for answer in pipe.execute()] == [0, 1, 0]


# Who may ask.


def tokens(*roles: Any) -> tuple[str, dict[str, str]]:
    made = {role: new_token(f"the-{role}", role, now=datetime.now(UTC)) for role in roles}
    kept = [f"sha256:{role}:{token.name}:{token.sha256}" for role, (_, token) in made.items()]
    return ",".join(kept), {role: text for role, (text, _) in made.items()}


def test_a_token_is_needed_where_checks_need_one() -> None:
    kept, shown = tokens("checker", "operator")
    with resp_node(tokens=kept, check_needs_token=True) as node:
        with client(node) as asking, pytest.raises(AuthenticationError):
            asking.execute_command("HG.HIT", "k", "1/minute")
        with client(node, password="hg_wrong") as asking, pytest.raises(AuthenticationError):  # noqa: S106
            asking.ping()
        with client(node, username="ann", password=shown["checker"]) as asking:  # noqa: SIM117
            with pytest.raises(AuthenticationError):
                asking.ping()
        for more in ({}, {"protocol": 3}, {"username": "the-checker"}):
            with client(node, password=shown["checker"], **more) as asking:
                assert asking.execute_command("HG.PEEK", "k", "1/minute")[0] == 1
                with pytest.raises(NoPermissionError):
                    asking.execute_command("HG.RESET", "k", "1/minute")
        with client(node, password=shown["operator"]) as asking:
            assert asking.execute_command("HG.RESET", "k", "1/minute") == b"OK"
        assert node.node.recorder.totals.requests == 0
        assert node.node.audit.recent(1)[0]["who"] == "the-operator"


def test_a_token_that_is_taken_back_ends_on_open_connections(tmp_path: Path) -> None:
    text, token = new_token("ann", "checker", now=datetime.now(UTC))
    _, other = new_token("bob", "checker", now=datetime.now(UTC))
    file = tmp_path / "tokens.json"

    def write(*kept: Any) -> None:
        rows = [{"name": one.name, "role": one.role, "sha256": one.sha256} for one in kept]
        file.write_text(json.dumps({"format": 1, "tokens": rows}))

    write(token, other)
    with (
        resp_node(tokens=str(file), check_needs_token=True) as node,
        client(node, password=text, single_connection_client=True) as asking,
    ):
        assert asking.ping()
        write(other)
        assert refused_within(asking, seconds=30)


def refused_within(asking: redis.Redis, seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            asking.ping()
        except AuthenticationError:
            return True
        time.sleep(0.1)  # The file is looked at once a second.
    return False


def test_long_commands_are_read_only_of_those_who_have_shown_their_token() -> None:
    kept, shown = tokens("checker")
    with resp_node(tokens=kept, check_needs_token=True) as node:
        with connected(node) as sock:
            sock.sendall(b"*2\r\n$4\r\nECHO\r\n$100000\r\n")
            assert everything(sock).startswith(b"-ERR Protocol error: a command has at most 4096")
        with client(node, password=shown["checker"]) as asking:
            assert asking.echo(100_000 * "x") == 100_000 * b"x"


def test_a_client_that_resets_its_connection_shows_its_token_again() -> None:
    """As in Redis: a pool that hands on a connection hands on no rights. The protocol is RESP2 again."""
    kept, shown = tokens("checker")
    token = shown["checker"].encode()
    with resp_node(tokens=kept, check_needs_token=True) as node, connected(node) as sock:

        def told(line: bytes) -> bytes:
            sock.sendall(line + b"\r\n")
            return sock.recv(65_536)

        assert told(b"HELLO 3 AUTH default %b SETNAME me" % token).startswith(b"%7\r\n")
        assert told(b"CLIENT GETNAME") == b"$2\r\nme\r\n"
        assert told(b"RESET") == b"+RESET\r\n"
        for line in (b"PING", b"HG.HIT k 1/minute", b"HELLO 3", b"CLIENT GETNAME"):
            assert told(line).startswith(b"-NOAUTH ")
        assert told(b"AUTH " + token) == b"+OK\r\n"
        assert told(b"CLIENT GETNAME") == b"$-1\r\n"  # RESP3 has another word for nothing.
        long = b"*2\r\n$4\r\nECHO\r\n$10000\r\n" + 10_000 * b"x"
        assert told(long).startswith(b"$10000\r\n")


def test_after_a_reset_long_commands_are_not_read() -> None:
    kept, shown = tokens("checker")
    with resp_node(tokens=kept, check_needs_token=True) as node, connected(node) as sock:
        token = shown["checker"].encode()
        sock.sendall(b"AUTH %b\r\nRESET\r\n" % token)
        assert _lines(sock, 2) == [b"+OK", b"+RESET"]
        sock.sendall(b"*2\r\n$4\r\nECHO\r\n$100000\r\n")
        assert everything(sock).startswith(b"-ERR Protocol error: a command has at most 4096")


def _lines(sock: socket.socket, many: int) -> list[bytes]:
    """The next lines that come."""
    found = b""
    while found.count(b"\r\n") < many:
        found += sock.recv(4_096)
    return found.splitlines()


def test_a_hello_that_is_refused_changes_nothing() -> None:
    """Neither the protocol, nor the name, nor who is there."""
    kept, shown = tokens("checker")
    token = shown["checker"].encode()
    refused = (
        b"HELLO 3 AUTH default %b NONSENSE" % token,
        b"HELLO 3 AUTH default %b SETNAME %b" % (token, 65 * b"x"),
        b"HELLO 4 AUTH default %b" % token,
        b"HELLO 3 SETNAME me AUTH default guess",
    )
    with resp_node(tokens=kept, check_needs_token=True) as node, connected(node) as sock:
        for line in refused:
            sock.sendall(line + b"\r\nPING\r\n")
            error, ping = _lines(sock, 2)
            assert error.split()[0] in (b"-ERR", b"-NOPROTO", b"-WRONGPASS"), error
            assert ping == b"-NOAUTH Authentication required."
        sock.sendall(b"HELLO 2 AUTH the-checker %b SETNAME me\r\nQUIT\r\n" % token)
        assert b"$5\r\nproto\r\n:2\r\n" in everything(sock)


def test_wrong_guesses_leave_nothing_behind() -> None:
    """An error that is raised again and again collects the frames of all that raised it."""
    kept, _ = tokens("checker")
    session = Session(Auth(kept), "192.0.2.1")
    with pytest.raises(WireError) as first:
        session.authenticate(b"", b"guess")
    with pytest.raises(WireError) as second:
        session.authenticate(b"", b"guess")
    assert first.value is not second.value


def test_guesses_are_limited() -> None:
    kept, _ = tokens("checker")
    with resp_node(tokens=kept, check_needs_token=True) as guarded, connected(guarded) as sock:
        sock.sendall(30 * b"*2\r\n$4\r\nAUTH\r\n$5\r\nguess\r\n" + b"*1\r\n$4\r\nQUIT\r\n")
        replies = everything(sock).splitlines()
    assert sum(line.startswith(b"-WRONGPASS") for line in replies) == 30
    assert sum(b"too many wrong tokens" in line for line in replies) == 20


def test_tls_is_spoken_where_the_service_has_a_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    with resp_node(tls_cert=str(files.server), tls_key=str(files.server_key)) as node:
        with client(node, ssl=True, ssl_ca_certs=str(files.authority)) as asking:
            assert asking.execute_command("HG.HIT", "k", "1/minute")[0] == 1
        with client(node, socket_timeout=2) as asking, pytest.raises(redis.RedisError):
            asking.ping()


def test_a_page_cannot_make_a_browser_send_commands(node: RespNode) -> None:
    """Lines of HTTP are no commands, and nothing behind them is listened to."""
    body = b"*3\r\n$6\r\nHG.HIT\r\n$3\r\nkey\r\n$8\r\n1/minute\r\n"
    with connected(node) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 44\r\n\r\n" + body)
        reply = everything(sock)
    assert reply.startswith(b"-ERR unknown command 'POST'")
    assert reply.count(b"\r\n") == 1
    assert node.node.recorder.totals.requests == 0


# Bounds.


def test_a_command_that_is_too_large_is_refused_and_the_connection_closed(node: RespNode) -> None:
    with connected(node) as sock:
        sock.sendall(PING + b"*2\r\n$4\r\nECHO\r\n$99999999\r\n")
        assert everything(sock) == (
            b"+PONG\r\n-ERR Protocol error: a command has at most 1048576 bytes\r\n"
        )


def test_a_command_that_does_not_end_is_given_up() -> None:
    with resp_node(body_timeout=0.2, header_timeout=0.1) as node, connected(node) as sock:
        sock.sendall(PING + b"*2\r\n$4\r\nEC")
        assert everything(sock) == b"+PONG\r\n-ERR a command must arrive within 0.2 s\r\n"


def test_a_client_without_a_token_is_disconnected_in_time() -> None:
    kept, _ = tokens("checker")
    guarded = resp_node(tokens=kept, check_needs_token=True, header_timeout=0.2)
    with guarded as node, connected(node) as sock:
        assert everything(sock) == b"-NOAUTH Authentication required.\r\n"


def test_an_idle_connection_stays() -> None:
    hasty = resp_node(header_timeout=0.05, body_timeout=0.05, idle_timeout=0.05)
    with hasty as node, connected(node) as sock:
        time.sleep(0.5)  # Ten times as long as any patience here.
        sock.sendall(PING)
        assert sock.recv(100) == b"+PONG\r\n"


def test_a_client_that_does_not_read_is_not_read_from_and_ends() -> None:
    """What it is owed stays within bounds, and others are served meanwhile."""
    with resp_node(idle_timeout=1.0, body_timeout=1.0) as node, connected(node) as sock:
        sock.settimeout(0.2)
        echo = b"*2\r\n$4\r\nECHO\r\n$8000\r\n" + 8_000 * b"x" + b"\r\n"
        sent = 0
        with pytest.raises(OSError):  # noqa: PT011, PT012 - its buffers are full, or it is closed
            while sent < 500_000_000:
                sent += sock.send(echo * 10)
        assert sent < 50_000_000
        with client(node) as asking:
            assert asking.ping()
        ends = time.monotonic() + 20
        while node.node.recorder.resp_connections > 1 and time.monotonic() < ends:
            time.sleep(0.05)  # Its patience is a second.
        assert node.node.recorder.resp_connections <= 1


def test_connections_from_one_address_are_bounded() -> None:
    with (
        resp_node(max_connections_per_ip=2) as node,
        connected(node) as one,
        connected(node) as two,
        connected(node) as three,
    ):
        for sock in (one, two):
            sock.sendall(PING)
            assert sock.recv(100) == b"+PONG\r\n"
        assert everything(three) == b"-ERR max number of clients reached\r\n"


def test_a_thousand_pipelined_commands_do_not_delay_other_clients(node: RespNode) -> None:
    """They are taken in slices; another client is served in between."""
    with connected(node) as greedy, client(node) as asking:
        hit = b"*3\r\n$6\r\nHG.HIT\r\n$3\r\nkey\r\n$11\r\n1000/minute\r\n"
        greedy.sendall(20_000 * hit)
        began = time.monotonic()
        assert asking.ping()
        assert time.monotonic() - began < 10


# The store behind it.


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_replies_leave_in_order_when_they_wait_for_the_store(redis_server: RedisServer) -> None:
    with resp_node(AsyncRedisEngine(redis_server.url)) as node, client(node) as asking:
        asking.execute_command("HG.PEEK", "one", "1/minute")  # Now there is a connection.
        with asking.pipeline(transaction=False) as pipe:
            for number in range(500):
                pipe.execute_command("HG.HIT", "one", "1000/day burst 1000")
                pipe.execute_command("ECHO", str(number))
                pipe.execute_command("CL.THROTTLE", "two", 999, 1000, 86_400)
            answers = pipe.execute()
        assert [answer[2] for answer in answers[0::3]] == list(range(999, 499, -1))
        assert answers[1::3] == [str(number).encode() for number in range(500)]
        assert [answer[2] for answer in answers[2::3]] == list(range(999, 499, -1))


def test_an_outage_of_the_store_is_an_error_reply() -> None:
    (port,) = free_ports(1)
    with resp_node(
        AsyncRedisEngine(f"redis://{HOST}:{port}?deadline=0.2"), on_error="raise"
    ) as node:
        with client(node) as asking:
            for words in (("CL.THROTTLE", "k", 1, 1, 60), ("HG.HIT", "k", "1/minute")):
                with pytest.raises(ResponseError, match=r"HGUNAVAILABLE.*nothing was charged"):
                    asking.execute_command(*words)
            assert asking.ping()
        assert node.node.recorder.failures["not_charged"] == 2


def test_while_the_store_is_gone_the_node_answers_from_its_share() -> None:
    """Also to the remote engine, which is told who answered."""
    (port,) = free_ports(1)
    behind = AsyncRedisEngine(f"redis://{HOST}:{port}?deadline=0.2")
    with resp_node(behind, on_error="fallback", nodes=2) as node, client(node) as asking:
        answers = [asking.execute_command("CL.THROTTLE", "k", 9, 10, 86_400) for _ in range(8)]
        assert [answer[0] for answer in answers] == [0, 0, 0, 0, 0, 1, 1, 1]
        engine = RemoteEngine(f"{node.url}?deadline=20")
        decisions = [engine.bind(SlidingWindow(10, 86_400_000_000))("k", 1) for _ in range(8)]
        engine.close()
    assert [decision.allowed for decision in decisions] == 5 * [True] + 3 * [False]
    assert {(decision.source, decision.degraded) for decision in decisions} == {("fallback", True)}


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_two_workers_share_the_port_and_the_counts(redis_server: RedisServer) -> None:
    (port,) = free_ports(1)
    options = ("--engine", redis_server.url, "--workers", "2", "--resp-port", str(port))
    with service(*options), ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis(HOST, port)) for _ in range(8)]
        infos = {client.info()["node_id"] for client in clients}
        answers = [
            client.execute_command("HG.HIT", "shared", "10/day burst 10")
            for _ in range(3)
            for client in clients
        ]
    assert sum(answer[0] for answer in answers) == 10
    assert len(infos) <= 2


# Ending.


def test_a_node_that_ends_answers_what_it_was_asked_and_sends_nodes_elsewhere() -> None:
    (port,) = free_ports(1)
    with service("--resp-port", str(port), "--set", "drain_timeout=10") as running:
        with socket.create_connection((HOST, port), 20) as sock:
            sock.sendall(PING)
            assert sock.recv(100) == b"+PONG\r\n"
            running.interrupt()
            hit = b"*3\r\n$6\r\nHG.HIT\r\n$3\r\nkey\r\n$8\r\n1/minute\r\n"
            time.sleep(0.2)  # The signal has to arrive; either way there is an answer.
            sock.sendall(hit + b"*3\r\n$2\r\nHG\r\n$4\r\nlist\r\n$1\r\n0\r\n")
            replies = everything(sock)
        assert replies.startswith(b"*5\r\n:1\r\n")
        assert b"-HGDRAINING" in replies
        assert running.wait() == 0


def test_engines_other_than_the_usual_ones_are_served_too() -> None:
    with resp_node(MemoryEngine(max_keys=10)) as node, client(node) as asking:
        answers = [asking.execute_command("HG.HIT", f"k{i}", "1/minute") for i in range(30)]
        assert all(len(answer) == 5 for answer in answers)
