"""The systemd unit's command, run with its variables and its environment file, and told to end as systemd would."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.deploy.asking import answers, ask
from tests.deploy.dockerfile import DEPLOY
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports
from tests.service.running import Service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.slow, on_flavours("redis_server", "redis-7.0")]

UNIT = (DEPLOY / "systemd" / "headgate.service").read_text()
ENVIRONMENT = (DEPLOY / "systemd" / "headgate.env").read_text()


def said(name: str) -> str:
    """What the unit says about something."""
    (found,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(found)


def variables(state: Path) -> dict[str, str]:
    """What the unit and the environment file set; `%S` is where services keep their state."""
    words = shlex.split(said("Environment").replace("%S", str(state)))
    lines = [line for line in ENVIRONMENT.splitlines() if line and not line.startswith("#")]
    return dict(word.split("=", 1) for word in [*words, *lines])


def test_the_units_command_serves_and_stops_when_its_parent_is_stopped(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    found = variables(tmp_path)
    (tmp_path / said("StateDirectory")).mkdir()
    create = ["token", "create", "ann", "--role", "admin", "--file", found["HEADGATE_TOKENS"]]
    subprocess.run([sys.executable, "-m", "headgate", *create], capture_output=True, check=True)
    (port,) = free_ports(1)
    program, *arguments = said("ExecStart").split()
    assert program == "/opt/headgate/bin/headgate"
    running = Service(
        [sys.executable, "-m", "headgate", *arguments],
        folder=tmp_path,
        environment={**found, "HEADGATE_PORT": str(port), "HEADGATE_ENGINE": redis_server.url},
        ready=lambda: answers(HOST, port, "/health/ready"),
        start_within_s=30.0,
    )
    with running:
        assert ask(HOST, port, "/check", {"key": "a"})[0] == 200
        assert ask(HOST, port, "/api/nodes")[0] == 401
        assert said("KillMode") == "mixed"  # systemd tells only the process that it started.
        running.interrupt()
        assert running.wait(30) == 0
    assert float(found["HEADGATE_DRAIN_TIMEOUT"]) < float(said("TimeoutStopSec"))
