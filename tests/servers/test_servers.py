"""The servers that other tests stand on do what those tests count on."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError, ResponseError
from redis.retry import Retry

from tests.servers.fixtures import installed, on_flavours
from tests.servers.link import Link
from tests.servers.machines import Machine, machines
from tests.servers.process import HOST, NotInstalledError, Server, free_ports, wait_until
from tests.servers.redis import (
    FLAVOURS,
    WITH_TLS,
    Cluster,
    Flavour,
    RedisServer,
    SentinelGroup,
    standalone,
)

every_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# One process


def test_every_flavour_answers_with_its_version(redis_server: RedisServer) -> None:
    about = redis_server.info("server")
    version = about.get("valkey_version", about["redis_version"])
    assert f"{version}.".startswith(f"{FLAVOURS[redis_server.flavour].version}.")


@pytest.mark.parametrize("_again", range(2))
def test_a_shared_server_is_empty_and_running_for_every_test(
    redis_server: RedisServer, _again: int
) -> None:
    assert redis_server.call("DBSIZE") == 0
    redis_server.call("SET", "left", "behind")
    redis_server.kill()


def test_a_server_ends_with_its_block_and_leaves_no_files() -> None:
    with installed(), standalone("redis-8") as server:
        assert server.call("PING") == "PONG"
    assert is_gone(server.pid)
    assert not server.folder.exists()


def test_a_stopped_server_ends_with_its_block() -> None:
    with installed(), standalone("redis-8") as server:
        server.stop()
    assert is_gone(server.pid)


def test_a_killed_server_comes_back_on_its_port_with_its_scripts_forgotten() -> None:
    with installed(), standalone("redis-8") as server:
        script = server.call("SCRIPT", "LOAD", "return 1")
        server.kill()
        assert not server.running
        with pytest.raises(RedisConnectionError):
            server.call("PING")
        server.restart()
        with pytest.raises(ResponseError, match="No matching script"):
            server.call("EVALSHA", script, 0)


def test_a_stopped_server_is_silent_until_it_resumes() -> None:
    with installed(), standalone("redis-8") as server:
        server.stop()
        with socket.create_connection((HOST, server.port), timeout=0.05) as link:
            link.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                link.recv(64)
            server.resume()
            link.settimeout(5.0)
            assert link.recv(64) == b"+PONG\r\n"


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        installed(),
        pytest.raises(RuntimeError, match=r"(?s)did not start.*no-such-setting"),
        standalone("redis-8", no_such_setting=1),
    ):
        pass


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv, of util-linux, is not here")
def test_a_server_dies_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import pathlib, time
from tests.servers.process import Server
folder = pathlib.Path({str(tmp_path)!r})
said = folder / "log"
server = Server(
    ["bash", "-c", "echo up; exec sleep 60"], folder=folder, ready=lambda: bool(said.read_text())
)
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as test_run:
        assert test_run.stdout is not None
        pid = int(test_run.stdout.readline())
        test_run.kill()

    def has_ended() -> bool:
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().split()[2] == "Z"

    wait_until(has_ended, "the server has died", within_s=5.0)


def test_a_server_that_ignores_the_request_to_end_is_ended_by_force(tmp_path: Path) -> None:
    deaf = ["bash", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"]
    said = tmp_path / "log"
    with Server(deaf, folder=tmp_path, ready=lambda: said.read_text() == "deaf\n") as process:
        process.terminate(within_s=0.05)
        assert not process.running


def test_free_ports_are_distinct_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) + 10_000 < 32_768


def test_a_missing_server_is_named_with_its_remedy() -> None:
    absent = Flavour("redis-0", "0", lambda: None, "make servers")
    with pytest.raises(NotInstalledError, match="redis-0 is not installed: make servers"):
        absent.binary()


def test_another_version_than_expected_is_refused() -> None:
    with installed():
        path = FLAVOURS["redis-8"].binary()
    with pytest.raises(NotInstalledError, match=r"is version 8\S+, not 7\.0"):
        Flavour("redis-7.0", "7.0", lambda: path, "make servers").binary()


@pytest.mark.parametrize(
    "ci, outcome", [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_something_missing_fails_in_ci_and_skips_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="not here"), installed():
        raise NotInstalledError("not here")


def test_what_takes_root_is_skipped_in_ci_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can help it there. As root, what is missing then is a failure."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    with pytest.raises(pytest.skip.Exception, match="as root"), installed(), machines():
        pass


def test_machines_reach_each_other_unless_one_is_cut_off_and_leave_nothing_behind() -> None:
    def reach(one: Machine, other: Machine) -> bool:
        """Whether a connection is answered, if only by a refusal."""
        script = (
            "import socket, sys; s = socket.socket(); s.settimeout(1.0);"
            "sys.exit(s.connect_ex((sys.argv[1], 9)) != 111)"
        )
        command = one.inside([sys.executable, "-c", script, other.host])
        return subprocess.run(command, check=False).returncode == 0

    with installed(), machines(3) as made:
        first, second, third = made.all
        assert reach(first, second)
        made.cut_off(first)
        assert not reach(first, second)
        assert not reach(second, first)
        assert reach(second, third)
        made.mend()
        wait_until(lambda: reach(second, first), "it is reached again")
        link = Path(f"/sys/class/net/hg{os.getpid()}v0")
        assert link.exists()
    wait_until(lambda: not link.exists(), "the namespaces are gone")


# What a standalone server can be given


def test_settings_are_those_of_redis_conf() -> None:
    with installed(), standalone("redis-7.0", maxmemory_policy="allkeys-lru") as server:
        assert server.call("CONFIG", "GET", "maxmemory-policy") == [
            "maxmemory-policy",
            "allkeys-lru",
        ]
        server.config_set(maxmemory_policy="noeviction")
        assert server.info("memory")["maxmemory_policy"] == "noeviction"


def test_a_password_and_users_can_be_set() -> None:
    users = ["alice on >secret ~* +get", "bob off"]
    with installed(), standalone("redis-8", requirepass="word", user=users) as server:
        assert server.call("ACL", "USERS") == ["alice", "bob", "default"]


@pytest.mark.slow  # Certificates are made, and the library for that is loaded.
def test_a_server_speaks_tls_with_a_certificate_of_its_own_authority() -> None:
    with installed(), standalone(WITH_TLS, tls=True) as server:
        assert server.tls_port is not None
        assert server.certificates is not None
        with redis.Redis(
            host=HOST,
            port=server.tls_port,
            ssl=True,
            ssl_ca_certs=str(server.certificates.authority),
            ssl_certfile=str(server.certificates.client),
            ssl_keyfile=str(server.certificates.client_key),
        ) as client:
            assert client.ping()
        with (
            redis.Redis(
                host=HOST, port=server.tls_port, ssl=True, retry=Retry(NoBackoff(), 0)
            ) as stranger,
            pytest.raises(RedisConnectionError, match="certificate verify failed"),
        ):
            stranger.ping()


@every_flavour
def test_a_server_listens_on_a_unix_socket(flavour: str) -> None:
    with (
        installed(),
        standalone(flavour, unix_socket=True) as server,
        redis.Redis(unix_socket_path=str(server.socket)) as client,
    ):
        assert client.ping()


@every_flavour
@pytest.mark.slow  # The compiler runs.
def test_the_clock_of_one_server_moves_and_nothing_else(flavour: str) -> None:
    with installed(), standalone(flavour, movable_clock=True) as server:
        assert server.clock is not None

        def ahead_s() -> int:
            return round((int(server.call("TIME")[0]) - time.time()) / 10) * 10

        assert ahead_s() == 0
        server.call("SET", "key", "value", "EX", 60)
        server.clock.step(30)
        assert ahead_s() == 30
        assert 20 <= server.call("TTL", "key") <= 30
        server.clock.step(-3630)
        assert ahead_s() == -3600
        server.clock.offset_s = 61
        assert server.call("GET", "key") is None


# Sentinel and Cluster


@on_flavours("redis_sentinel")
@pytest.mark.slow  # Sentinels find each other, and a master's death out, by waiting.
def test_sentinels_replace_a_dead_master_within_five_seconds(redis_sentinel: SentinelGroup) -> None:
    group = redis_sentinel
    group.master.call("SET", "key", "value")
    assert group.master.call("WAIT", 2, 1000) == 2
    old = group.kill_master()
    new = group.wait_for_master(other_than=old, within_s=5.0)
    assert new.call("GET", "key") == "value"
    new.call("SET", "key", "new value")
    group.heal()
    assert sorted(node.is_master() for node in group.nodes) == [False, False, True]
    assert old.call("GET", "key") == "new value"


@on_flavours("redis_cluster")
@pytest.mark.slow  # Nodes find each other, and a master's death out, by waiting.
def test_a_cluster_replaces_a_dead_master_within_five_seconds(redis_cluster: Cluster) -> None:
    group = redis_cluster
    slot = group.slot("key")
    group.owner(slot).call("SET", "key", "value")
    assert group.owner(slot).call("WAIT", 1, 1000) == 1
    old = group.kill_owner(slot)
    new = group.wait_for_owner(slot, other_than=old, within_s=5.0)
    assert new.call("GET", "key") == "value"
    group.heal()
    assert len(group.masters) == 3
    assert group.replica_of(new) is old


@on_flavours("redis_cluster")
@pytest.mark.slow  # A Cluster starts.
def test_a_slot_moves_to_another_master_and_back(redis_cluster: Cluster) -> None:
    group = redis_cluster
    slot = group.slot("{tag}1")
    source = group.owner(slot)
    target = next(node for node in group.masters if node is not source)
    for number in range(25):
        source.call("SET", f"{{tag}}{number}", number, "EX", 100)

    move = group.begin_move(slot, target)
    first, *_ = source.call("CLUSTER", "GETKEYSINSLOT", slot, 1)
    move.move_keys(1)
    with pytest.raises(ResponseError, match=f"{slot} {HOST}:{target.port}"):
        source.call("GET", first)
    while move.move_keys(10):
        pass
    move.finish()

    assert group.wait_for_owner(slot, other_than=source) is target
    assert target.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 25
    assert target.call("TTL", "{tag}24") > 0
    group.move_slot(slot, source)
    assert source.call("GET", "{tag}24") == "24"


@on_flavours("redis_cluster", "valkey-9")
@pytest.mark.slow  # A Cluster starts.
def test_a_move_left_half_way_is_called_off_by_healing(redis_cluster: Cluster) -> None:
    slot = redis_cluster.slot("key")
    source = redis_cluster.owner(slot)
    target = next(node for node in redis_cluster.masters if node is not source)
    redis_cluster.begin_move(slot, target)
    assert "[" in source.call("CLUSTER", "NODES")
    redis_cluster.heal()
    assert "[" not in source.call("CLUSTER", "NODES") + target.call("CLUSTER", "NODES")
    assert redis_cluster.owner(slot) is source


@on_flavours("redis_sentinel", "valkey-9")
@pytest.mark.slow  # Sentinels take their rounds.
def test_sentinels_replace_a_healthy_master_on_request(redis_sentinel: SentinelGroup) -> None:
    old = redis_sentinel.master
    assert redis_sentinel.fail_over().is_master()
    redis_sentinel.heal()
    assert not old.is_master()


@on_flavours("redis_cluster", "valkey-9")
@pytest.mark.slow  # A Cluster starts.
def test_a_cluster_swaps_a_master_and_its_replica_on_request(redis_cluster: Cluster) -> None:
    slot = redis_cluster.slot("key")
    old = redis_cluster.owner(slot)
    old.call("SET", "key", "value")
    new = redis_cluster.fail_over(slot)
    assert new.call("GET", "key") == "value"
    assert redis_cluster.owner(slot) is new


def test_a_demoted_master_refuses_writes_on_open_connections() -> None:
    with installed(), standalone("redis-8") as one, standalone("redis-8") as other:
        one.call("SET", "key", "value")
        one.follow(other)
        with pytest.raises(ResponseError, match="read only replica"):
            one.call("SET", "key", "value")
        one.follow(None)
        one.call("SET", "key", "value")


# The link


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with installed(), standalone("redis-8") as server:
        yield server


@pytest.fixture
def link(server: RedisServer) -> Iterator[Link]:
    with Link(server.port) as link:
        yield link


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, link.port), timeout=5.0) as client:
        assert ask(client, b"PING") == b"+PONG\r\n"
        yield client


def ask(client: socket.socket, command: bytes) -> bytes:
    client.sendall(command + b"\r\n")
    return client.recv(65_536)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5.0)
    return False


def test_a_link_passes_everything_on(link: Link, server: RedisServer) -> None:
    with redis.Redis(port=link.port, protocol=2) as client:
        client.set("key", b"\0" * 1_000_000)
        assert client.get("key") == b"\0" * 1_000_000
    assert server.call("STRLEN", "key") == 1_000_000
    assert link.accepted == 1
    wait_until(lambda: link.open == 0, "the connection has ended")


def test_a_slow_link_delays_both_directions_and_keeps_the_order(
    link: Link, client: socket.socket
) -> None:
    link.delay_s = 0.05
    started = time.monotonic()
    client.sendall(b"ECHO 1\r\n" * 100)
    replies = b""
    while len(replies) < 700:
        replies += client.recv(65_536)
    # All in one round trip: a delay is no limit to what is under way at once.
    assert 0.1 <= time.monotonic() - started < 1.0
    assert replies == b"$1\r\n1\r\n" * 100


def test_a_slicing_link_delivers_byte_by_byte(link: Link, client: socket.socket) -> None:
    link.slice_bytes = 1
    client.sendall(b"ECHO slices\r\n")
    pieces: list[bytes] = []
    while b"".join(pieces) != b"$6\r\nslices\r\n":
        pieces.append(client.recv(65_536))
    assert len(pieces) > 1


def test_a_blackhole_accepts_and_answers_nothing(
    link: Link, client: socket.socket, server: RedisServer
) -> None:
    link.blackhole()
    client.sendall(b"SET key value\r\n")
    assert is_silent(client)
    with socket.create_connection((HOST, link.port), timeout=5.0) as late:
        late.sendall(b"PING\r\n")
        assert is_silent(late)
    assert server.call("EXISTS", "key") == 0


@pytest.mark.parametrize("direction, arrived", [("drop_requests", 0), ("drop_replies", 1)])
def test_one_direction_can_be_dropped(
    link: Link, client: socket.socket, server: RedisServer, direction: str, arrived: int
) -> None:
    setattr(link, direction, True)
    client.sendall(b"SET key value\r\n")
    assert is_silent(client)
    assert server.call("EXISTS", "key") == arrived


def test_mending_resets_damaged_connections_and_spares_the_others(
    link: Link, client: socket.socket
) -> None:
    with socket.create_connection((HOST, link.port), timeout=5.0) as other:
        assert ask(other, b"PING") == b"+PONG\r\n"
        link.blackhole()
        client.sendall(b"PING\r\n")
        assert is_silent(client)
        link.mend()
        with pytest.raises(ConnectionResetError):
            client.recv(64)
        assert ask(other, b"PING") == b"+PONG\r\n"


def test_a_pause_holds_everything_back_and_loses_nothing(
    link: Link, client: socket.socket, server: RedisServer
) -> None:
    link.pause()
    client.sendall(b"SET key value\r\n")
    assert is_silent(client)
    assert server.call("EXISTS", "key") == 0
    link.resume()
    assert client.recv(64) == b"+OK\r\n"


def test_a_reset_reaches_the_client_as_one(link: Link, client: socket.socket) -> None:
    link.reset()
    assert link.open == 0
    with pytest.raises(ConnectionResetError):
        client.recv(64)


def test_after_a_half_close_the_client_can_send_but_not_receive(
    link: Link, client: socket.socket, server: RedisServer
) -> None:
    link.half_close()
    assert client.recv(64) == b""
    client.sendall(b"SET key value\r\n")
    wait_until(lambda: bool(server.call("EXISTS", "key")), "the request has arrived")
    client.close()
    wait_until(lambda: link.open == 0, "the connection has ended")


def test_a_lost_reply_means_done_once_and_cut(
    link: Link, client: socket.socket, server: RedisServer
) -> None:
    link.lose_replies(1, of=b"INCR")
    assert ask(client, b"PING") == b"+PONG\r\n"
    with pytest.raises(ConnectionResetError):
        ask(client, b"INCR key")
    assert server.call("GET", "key") == "1"
    assert link.replies_lost == 1
    with socket.create_connection((HOST, link.port), timeout=5.0) as again:
        assert ask(again, b"INCR key") == b":2\r\n"


def test_a_refusing_link_keeps_open_connections(link: Link, client: socket.socket) -> None:
    link.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, link.port), timeout=5.0)
    assert ask(client, b"PING") == b"+PONG\r\n"
    link.mend()
    with socket.create_connection((HOST, link.port), timeout=5.0) as late:
        assert ask(late, b"PING") == b"+PONG\r\n"


def test_a_dead_server_behind_a_link_is_a_reset(link: Link, server: RedisServer) -> None:
    server.kill()
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection((HOST, link.port), timeout=5.0) as client,
    ):
        client.recv(64)


def test_a_link_leaves_no_thread_behind(server: RedisServer) -> None:
    before = threading.active_count()
    with (
        Link(server.port) as link,
        socket.create_connection((HOST, link.port), timeout=5.0) as client,
    ):
        link.blackhole()
        client.sendall(b"PING\r\n")
    assert threading.active_count() == before
