"""The compose file with etcd: three servers and three nodes, run with its commands and variables."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.asking import answers, ask
from tests.deploy.composed import SERVES_ON, Composed
from tests.deploy.dockerfile import DEPLOY, read
from tests.servers.fixtures import installed
from tests.servers.process import HOST, PYTHON_PATH, Server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

IMAGE = read(DEPLOY / "etcd" / "Dockerfile")[-1]


def is_healthy(port: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads(ask(HOST, port, "/health")[1])["health"] == "true")
    return False


def test_three_nodes_on_three_etcd_servers_count_as_one(tmp_path: Path) -> None:
    composed = Composed(DEPLOY / "etcd" / "compose.yaml", tmp_path)
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    for made in (1, 0):
        printed = subprocess.run(
            composed.command("token"),
            env={"PATH": path, **PYTHON_PATH},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.count("hg_") == made
    with installed(), contextlib.ExitStack() as stack:
        started: list[Server] = []
        for number in (1, 2, 3):
            name = f"etcd{number}"
            port = composed.port(name, "2379")
            etcd = Server(
                IMAGE.command,
                folder=composed.volume(name, "/var/lib/etcd"),
                environment=composed.environment(name),
                ready=lambda: True,
            )
            started.append(etcd)
            stack.callback(etcd.kill)
            etcd.start()
        for number in (1, 2, 3):
            port = composed.port(f"etcd{number}", "2379")
            wait_until(lambda port=port: is_healthy(port), "etcd is healthy", within_s=30)  # type: ignore[misc]
        for number in (1, 2, 3):
            name = f"headgate{number}"
            own = tmp_path / name
            own.mkdir()
            port = composed.port(name, SERVES_ON)
            node = Server(
                composed.command(name),
                folder=own,
                environment=composed.environment(name),
                ready=lambda port=port: answers(HOST, port, "/health/ready"),  # type: ignore[misc]
                start_within_s=30.0,
            )
            stack.enter_context(node)
        ports = [composed.port(f"headgate{number}", SERVES_ON) for number in (1, 2, 3)]
        allowed = 0
        for _ in range(20):
            for port in ports:
                status, answer = ask(
                    HOST, port, "/check", {"key": "one", "limit": 50, "window": 86_400}
                )
                assert status == 200, answer
                assert json.loads(answer)["source"] != "fallback", answer
                allowed += json.loads(answer)["allowed"]
        assert allowed == 50
