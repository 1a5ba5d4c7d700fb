"""Serving as an operator sees it: time-outs, draining, workers, TLS, settings that are refused."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headgate.cli import main
from headgate.service.security.tokens import new_token, write_tokens
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, PYTHON_PATH, free_ports, patient, wait_until
from tests.servers.tls import make_certificates
from tests.service.raw import Raw, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def impatient() -> Iterator[Service]:
    with service(
        *("--set", "header_timeout=0.3", "--set", "body_timeout=0.3"),
        *("--set", "idle_timeout=0.6", "--set", "max_connections_per_ip=20"),
    ) as one:
        yield one


@pytest.mark.parametrize("sent", [1, 40, -3], ids=["first byte", "in the head", "in the body"])
def test_a_request_that_takes_too_long_is_ended(impatient: Service, sent: int) -> None:
    with Raw(impatient.port) as raw:
        began = time.monotonic()
        answer = raw.send(post({"key": "slow"})[:sent]).answer()
        assert (answer.status, answer.json["code"]) == (408, "timed-out")
        assert 0.25 < time.monotonic() - began < 3
        assert raw.is_closed()


def test_dripping_bytes_buys_no_time(impatient: Service) -> None:
    with Raw(impatient.port) as raw:
        began = time.monotonic()
        raw.send(b"POST /check HTTP/1.1\r\n")
        raw.socket.settimeout(0.02)
        while time.monotonic() - began < 5:
            raw.send(b"X-Drip: y\r\n")
            try:
                status = raw.answer().status
                break
            except TimeoutError:
                continue
        assert status == 408
        assert time.monotonic() - began < 3


def test_an_idle_connection_is_closed_in_silence(impatient: Service) -> None:
    with Raw(impatient.port) as raw:
        assert raw.send(post({"key": "idle"})).answer().status == 200
        began = time.monotonic()
        assert raw.is_closed()
        assert 0.5 < time.monotonic() - began < 3


@pytest.mark.parametrize(
    "path", ["/", "/about", "/health", "/health/live", "/health/ready", "/metrics"]
)
def test_head_is_answered_like_get_without_a_body(impatient: Service, path: str) -> None:
    """On one connection: a byte of a body would spoil the answer behind it."""
    found = []
    connection = http.client.HTTPConnection(HOST, impatient.port, timeout=10)
    for method in ("HEAD", "GET"):
        connection.request(method, path)
        answer = connection.getresponse()
        length = len(answer.read())
        found.append((answer.status, answer.headers["content-type"], length > 0))
        assert int(answer.headers["content-length"]) > 0
    connection.close()
    head, get = found
    assert get == (200, get[1], True)
    assert head == (200, get[1], False)


def test_a_connection_in_use_is_not_idle(impatient: Service) -> None:
    with Raw(impatient.port) as raw:
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            assert raw.send(post({"key": "busy", "cost": 0})).answer().status == 200
            time.sleep(0.1)  # Less than it may be idle, by the clock of another process.


def test_connections_per_address_are_limited(impatient: Service) -> None:
    held = [Raw(impatient.port) for _ in range(20)]
    try:
        assert all(raw.send(post({"key": "c", "cost": 0})).answer().status == 200 for raw in held)
        with Raw(impatient.port) as one_more:
            answer = one_more.answer()
            assert (answer.status, answer.json["code"]) == (429, "too-many-connections")
            assert one_more.is_closed()
    finally:
        for raw in held:
            raw.socket.close()
    wait_until(lambda: impatient.check("c", cost=0)["allowed"], "connections are given back")


def test_checks_can_be_made_to_need_a_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    secret, kept = new_token("gateway", "checker", now=datetime.now(UTC))
    write_tokens(tokens, [kept])
    options = ("--tokens", str(tokens), "--set", "check_needs_token=true")
    with service(*options) as one:
        for path in ("/check", "/check?x=1", "/acquire", "/check/batch"):
            status, headers, answer = one.ask("POST", path, {"key": "k"})
            assert (status, answer["code"]) == (401, "unauthorized")
            assert headers["www-authenticate"] == "Bearer"
        bearer = {"Authorization": f"Bearer {secret}"}
        for path in ("/check", "/check?x=1"):
            assert one.ask("POST", path, {"key": "k"}, bearer)[0] == 200
            assert one.ask("POST", path, {"key": "k"}, {"Authorization": "Bearer no"})[0] == 401


class Load:
    """Clients that keep their connection while the server lets them; a request that is not answered has failed."""

    def __init__(self, port: int, clients: int) -> None:
        self._port = port
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        self.answered = 0
        self.failed: list[str] = []
        self.refused = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)

    def _run(self) -> None:
        while True:
            try:
                raw = Raw(self._port, timeout=5)
            except ConnectionRefusedError:  # It listens no more; nothing was asked.
                with self._lock:
                    self.refused += 1
                return
            except OSError as error:
                with self._lock:
                    self.failed.append(f"connecting: {error!r}")
                return
            with raw:
                if not self._use(raw):
                    return

    def _use(self, raw: Raw) -> bool:
        """Ask until the server closes politely; false when a request was lost."""
        while True:
            try:
                answer = raw.send(post({"key": "load", "cost": 0})).answer()
            except OSError as error:
                with self._lock:
                    self.failed.append(repr(error))
                return False
            with self._lock:
                self.answered += 1
            if answer.headers.get("connection") == "close":
                return True


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_fails_no_request(redis_server: RedisServer, workers: int) -> None:
    """Runs a load for a while, and then until nobody listens."""
    options = (
        () if workers == 1 else ("--engine", patient(redis_server.url), "--workers", str(workers))
    )
    with service(*options) as one:
        wait_until(lambda: one.log.count('"serving"') == workers, "all serve", within_s=30)
        load = Load(one.port, clients=16)
        load.start()
        wait_until(lambda: load.answered > 500, "the load runs", within_s=30)
        one.interrupt()
        load.join()
        assert one.wait() == 0
        assert load.failed == []
        assert load.refused == 16
        assert one.log.count('"cut_off": 0') == workers


def test_while_draining_it_is_not_ready_but_answers() -> None:
    with service("--set", "drain_delay=1") as one, Raw(one.port) as kept:
        assert kept.send(post({"key": "k"})).answer().headers.get("connection") is None
        one.interrupt()
        wait_until(lambda: "draining" in one.log, "it drains")
        answer = kept.send(post({"key": "k"})).answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        status, _, _ = one.ask("GET", "/health/ready")
        assert status == 503
        assert one.check("k")["allowed"] is True
        assert one.wait() == 0


def test_a_second_signal_ends_it_at_once() -> None:
    with service("--set", "drain_delay=60") as one:
        one.interrupt()
        wait_until(lambda: "draining" in one.log, "it drains")
        began = time.monotonic()
        one.interrupt()
        one.wait()
        assert time.monotonic() - began < 3


def test_a_half_sent_request_does_not_hold_up_the_end() -> None:
    with service("--set", "drain_timeout=0.5") as one, Raw(one.port) as raw:
        raw.send(post({"key": "k"})[:-3])
        time.sleep(0.1)  # Most likely it has been read then; if not, the test is easier to pass.
        one.interrupt()
        assert one.wait() == 0


def _admitted(port: int, key: str, hits: int, limit: int) -> int:
    admitted = 0
    with Raw(port) as raw:
        body = {"key": key, "limit": limit, "window": 3600, "algorithm": "fixed_window"}
        for _ in range(hits):
            admitted += raw.send(post(body)).answer().json["allowed"]
    return admitted


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_four_workers_on_one_redis_admit_exactly_the_limit(redis_server: RedisServer) -> None:
    """Starts four interpreters."""
    with service("--engine", patient(redis_server.url), "--workers", "4") as one:
        wait_until(lambda: one.log.count('"serving"') == 4, "all workers serve", within_s=30)
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(_admitted(one.port, "all", 40, 200)))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(counts), sum(counts)) == (12, 200)
        one.interrupt()
        assert one.wait(20) == 0
        assert one.log.count('"message": "ended"') == 4


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_dies_is_replaced_without_affecting_others(
    redis_server: RedisServer, end: signal.Signals
) -> None:
    """Starts three interpreters."""
    with service("--engine", patient(redis_server.url), "--workers", "2") as one:
        wait_until(lambda: one.log.count('"serving"') == 2, "both workers serve", within_s=30)
        children = subprocess.run(
            ["/usr/bin/pgrep", "-P", str(one.pid), "-f", "spawn_main"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert len(children) == 2
        os.kill(int(children[0]), end)
        while "a worker died" not in one.log:  # A minute at most, by the limit on every test.
            assert one.check("meanwhile", cost=0)["allowed"] is True
        for _ in range(20):
            assert one.check("after")["allowed"] is True


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_workers_do_not_outlive_their_parent(redis_server: RedisServer) -> None:
    """Starts three interpreters."""
    with service("--engine", patient(redis_server.url), "--workers", "2") as one:
        wait_until(lambda: one.log.count('"serving"') == 2, "both workers serve", within_s=30)
        one.kill()
        wait_until(lambda: one.log.count('"ended"') == 2, "they end by themselves", within_s=20)
        assert "the parent process is gone" in one.log


def test_the_certificate_is_read_again_when_it_changes(tmp_path: Path) -> None:
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made.append(make_certificates(tmp_path / name))
    first, second = made
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(first.server.read_bytes())
    key.write_bytes(first.server_key.read_bytes())
    with service("--tls-cert", str(cert), "--tls-key", str(key), tls=True) as one:
        assert _shown(one.port) == _der(first.server)
        cert.write_bytes(second.server.read_bytes()[:200])
        wait_until(lambda: "the old one stays" in one.log, "it notices half a file")
        assert _shown(one.port) == _der(first.server)
        cert.write_bytes(second.server.read_bytes())
        key.write_bytes(second.server_key.read_bytes())
        wait_until(lambda: "was reloaded" in one.log, "it reads the new certificate")
        assert _shown(one.port) == _der(second.server)
        context = ssl.create_default_context(cafile=second.authority)
        secure = http.client.HTTPSConnection(HOST, one.port, context=context, timeout=5)
        secure.request("POST", "/check", b'{"key":"k"}', {"Content-Type": "application/json"})
        assert json.loads(secure.getresponse().read())["allowed"] is True
        secure.close()


def _der(pem: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.read_text())


def _shown(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((HOST, port), timeout=5) as plain,
        context.wrap_socket(plain) as secure,
    ):
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "options, environment, message",
    [
        (["--workers", "4"], {}, "workers (from --workers): 4 workers that count in memory"),
        (["--host", "0.0.0.0"], {}, "host (from --host): 0.0.0.0 is reachable from other machines"),  # noqa: S104
        (["--port", "http"], {}, "port (from --port): it must be a whole number, not 'http'"),
        ([], {"PORT": "http"}, "port (from PORT): it must be a whole number, not 'http'"),
        (
            [],
            {"HEADGATE_PORT": "99999"},
            "port (from HEADGATE_PORT): it must be between 0 and 65535",
        ),
        (["--engine", "postgres://u:canary@db"], {}, "engine (from --engine): there is no engine"),
        (
            [],
            {"REDIS_URL": "postgres://u:canary@db"},
            "engine (from REDIS_URL): there is no engine ",
        ),
        (["--rules", "/nowhere.yaml"], {}, "rules (from --rules): /nowhere.yaml cannot be read"),
        (["--tokens", "/nowhere"], {}, "tokens (from --tokens): /nowhere: the tokens cannot be "),
        (["--tls-cert", "/x.pem"], {}, "tls_cert (from --tls-cert): a certificate and its key"),
        (
            ["--tls-cert", "/x.pem", "--tls-key", "/x.key"],
            {},
            "tls_cert (from --tls-cert): /x.pem and /x.key cannot be used",
        ),
        (
            [],
            {"HEADGATE_BOARD": "memory://?fil=x"},
            "board (from HEADGATE_BOARD): there is no option",
        ),
        ([], {"HEADGATE_AUDIT_LOG": "/proc/x/y"}, "audit_log (from HEADGATE_AUDIT_LOG): /proc/x/"),
        (["--set", "limit=5"], {}, "there is no such setting"),
        (["--config", "/nowhere.toml"], {}, "/nowhere.toml: it cannot be read"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_with_their_source(
    options: list[str], environment: dict[str, str], message: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headgate", "serve", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "PORT": "0",
            **PYTHON_PATH,
            **environment,
        },  # The usual port may be taken.
    )
    typed = bool(options) and options[0] != "--config"
    assert ended.returncode == (2 if typed else 1)
    assert message in ended.stderr
    assert ended.stdout == ""  # Nobody is told that it listens.
    assert "Traceback" not in ended.stderr
    assert "canary" not in ended.stderr + ended.stdout


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    (port,) = free_ports(1)
    with socket.create_server((HOST, port)):
        ended = subprocess.run(
            [sys.executable, "-m", "headgate", "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 1
    assert "cannot listen on port" in ended.stderr
    assert "--port" in ended.stderr


def test_commands_say_when_a_certificate_is_not_to_be_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_certificates(tmp_path)
    with (
        service(
            "--tls-cert", str(made.server), "--tls-key", str(made.server_key), tls=True
        ) as secure,
        service() as plain,
    ):
        asked = ["check", "k", "--url", f"https://127.0.0.1:{secure.port}"]
        assert main([*asked, "--ca-file", str(made.authority)]) == 0
        assert "99 of 100 left" in capsys.readouterr().out
        assert main(asked) == 1
        told = capsys.readouterr().err
        assert f"the certificate of https://127.0.0.1:{secure.port} is not trusted" in told
        assert "--ca-file" in told
        assert main(["check", "k", "--url", f"https://127.0.0.1:{plain.port}"]) == 1
        assert "does it serve https?" in capsys.readouterr().err
