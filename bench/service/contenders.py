"""The servers: how each is started, and whether it limits at all."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.servers.process import HOST, Server, free_ports

from ..compiled import COMPILED, is_current

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER_CORE, LOAD_CORE = 0, 1
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WINDOW = 3600
FIELDS = ["key", "allowed", "limit", "remaining", "algorithm", "retry_after", "reset_after"]
FIELDS += ["backoff_level", "source"]
"""What everybody answers, in this order."""


class Missing(NamedTuple):
    """Somebody who cannot take part, and why."""

    name: str
    reason: str


class Running(NamedTuple):
    """A server that answers."""

    name: str
    port: int
    server: Server

    def cpu_seconds(self) -> float:
        """What it has used of its core, in user and kernel mode."""
        fields = (
            Path(f"/proc/{self.server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        )
        user, kernel = fields.split()[11:13]
        return (int(user) + int(kernel)) / os.sysconf("SC_CLK_TCK")


def slug(name: str) -> str:
    """A name that a path may have; nginx takes no spaces in its own."""
    return "-".join(name.replace("/", " ").split())


def command_of(name: str, port: int, redis_url: str, folder: Path) -> list[str]:
    """How a server is started."""
    peers = "bench.service.peers"
    uvicorn = [sys.executable, "-m", "uvicorn", "--no-access-log", "--log-level", "warning"]
    adaptive = [sys.executable, "-m", "headgate", "serve", "--log-level", "warning"]
    headgate = [*adaptive, "--set", "default_algorithm=sliding_window"]  # As everybody else counts.
    commands = {
        "headgate": headgate,
        "headgate, compiled": headgate,
        "headgate, adaptive": adaptive,
        "headgate, adaptive, compiled": adaptive,
        "headgate on Redis": [*headgate, "--engine", redis_url],
        "headgate on Redis, adaptive": [*adaptive, "--engine", redis_url],
        "FastAPI": [*uvicorn, f"{peers}.fastapi_memory:app"],
        "FastAPI on Redis": [*uvicorn, f"{peers}.fastapi_redis:app"],
        "Go net/http": [str(folder / "peer"), str(port)],
    }
    command = commands[name]
    return command if name.startswith("Go") else [*command, "--port", str(port)]


def build_go(folder: Path) -> Missing | None:
    """Compile the Go peer, if there is a compiler."""
    go = shutil.which("go")
    if go is None:
        return Missing("Go net/http", "there is no Go compiler: apt-get install golang-go")
    built = subprocess.run(  # noqa: S603 - our own source
        [go, "build", "-o", str(folder / "peer"), str(HERE / "peers" / "go" / "main.go")],
        env={
            **os.environ,
            "GOCACHE": str(folder / "cache"),
            "GO111MODULE": "off",
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return Missing("Go net/http", built.stderr[-200:]) if built.returncode else None


def compiled_build() -> Missing | None:
    """Whether there is a compiled build of these sources."""
    if is_current():
        return None
    return Missing("headgate, compiled", "it is not there, or of other sources: make compiled")


@contextmanager
def running(name: str, folder: Path, redis_url: str) -> Iterator[Running]:
    """A server, alone on its core."""
    (port,) = free_ports(1)
    own = folder / slug(name)
    own.mkdir()
    taskset = shutil.which("taskset")
    pin = [taskset, "-c", str(SERVER_CORE)] if taskset and (os.cpu_count() or 1) > 1 else []
    server = Server(
        [*pin, *command_of(name, port, redis_url, folder)],
        folder=own,
        ready=lambda: _ask(port, "ready")[0] == 200,
        environment={
            # This source, also where another copy is installed.
            "PYTHONPATH": os.pathsep.join(
                (str(COMPILED if "compiled" in name else ROOT / "src"), str(ROOT))
            ),
            "REDIS_URL": redis_url if "Redis" in name else "",
            "GOMAXPROCS": "1",
            "PATH": os.environ["PATH"],
        },
        start_within_s=60.0,
    )
    with server:
        verify(name, port)
        yield Running(name, port, server)


def verify(name: str, port: int) -> None:
    """Refuse to measure a server that is no limiter, answers something else than the others, or leaves out headers."""
    answers = [_ask(port, f"verify:{name}:{port}", limit=5) for _ in range(7)]
    found = [json.loads(body) for _, _, body in answers]
    told = [(one["allowed"], one["remaining"]) for one in found]
    if told != [(True, left) for left in (4, 3, 2, 1, 0)] + [(False, 0)] * 2:
        raise AssertionError(f"{name} should admit 5 and then deny, but answered {told}")
    if any(list(one) != FIELDS for one in found):
        raise AssertionError(f"{name} should answer {FIELDS}, but answered {found}")
    headers = {header.lower() for header, _ in answers[-1][1]}
    wanted = {"ratelimit", "ratelimit-policy", "retry-after", "x-process-time", "x-ratelimit-reset"}
    if wanted - headers:
        raise AssertionError(f"{name} sends no {', '.join(sorted(wanted - headers))}")
    if "Redis" not in name:
        verify_batch(name, port, found[-1])


def verify_batch(name: str, port: int, denied: dict[str, Any]) -> None:
    """The same for a batch: a key that was denied, and another one."""
    checks = [{"key": key, "limit": 5, "window": WINDOW} for key in (denied["key"], f"{name}:one")]
    _, headers, body = _post(port, "/check/batch", {"checks": checks})
    again, other = json.loads(body)["decisions"]
    if [list(again), list(other)] != [FIELDS] * 2 or (again["allowed"], other["remaining"]) != (
        False,
        4,
    ):
        raise AssertionError(f"{name} should deny one of a batch and admit the other: {body!r}")
    # Full from one window on: it takes a fifth of the next until one unit has faded.
    if abs(again["reset_after"] - WINDOW * 4 / 5 - again["retry_after"]) > 1:
        raise AssertionError(f"{name} should say when a unit has faded, not {again}")
    if "x-process-time" not in {header.lower() for header, _ in headers}:
        raise AssertionError(f"{name} sends no x-process-time with a batch")


def _ask(port: int, key: str, limit: int = 100) -> tuple[int, list[tuple[str, str]], bytes]:
    return _post(port, "/check", {"key": key, "limit": limit, "window": WINDOW})


def _post(port: int, path: str, body: object) -> tuple[int, list[tuple[str, str]], bytes]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except OSError:
            return 0, [], b""
