"""The page that starts a cluster with three commands: whatever a person kills, the count is right."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.etcd import installed_etcd
from tests.servers.fixtures import installed
from tests.servers.process import HOST, is_free, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-a-cluster.md"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 # Where there is one, no disk makes an election late.
UNITS = 3_000
"""Fewer than on the page, but enough for the load to outlast what is done to the cluster."""

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


def typed(beginning: str) -> list[str]:
    """The commands on the page that begin so."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found = [line for block in blocks for line in block.splitlines() if line.startswith(beginning)]
    assert found, f"the page has no command that begins with {beginning}"
    return found


def first_port() -> int:
    """A FIRST_PORT whose ports are free; they lie where neither other tests nor the kernel take any."""
    offsets = [10 * machine + port for machine in (1, 2, 3) for port in range(4)]
    rows = random.SystemRandom().sample(range(31_000, 32_700, 50), 34)
    return next(row for row in rows if all(is_free(row + offset) for offset in offsets))


class Cluster:
    """What a person types, in a clone, with variables that keep this cluster to itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first_port = first_port()
        self._environment = {
            **os.environ,
            "CLUSTER": str(folder),
            "FIRST_PORT": str(self._first_port),
        }
        self.terminals: list[subprocess.Popen[str]] = []

    def open(self, command: str) -> subprocess.Popen[str]:
        """Run a command in a terminal of its own."""
        started = subprocess.Popen(
            # A test run in the background ignores SIGINT, and hands that on.
            ["/usr/bin/env", "--default-signal=INT", "/bin/bash", "-c", f"exec {command}"],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.terminals.append(started)
        return started

    def run(self, command: str) -> None:
        """Run a command to its end."""
        subprocess.run(["/bin/bash", "-ec", command], cwd=ROOT, env=self._environment, check=True)

    def pid(self, name: str) -> int:
        """The process that was started last under this name."""
        return int((self._folder / f"{name}.pid").read_text())

    def serves(self, machine: int) -> bool:
        """Whether the node of a machine takes requests."""
        url = f"http://{HOST}:{self._first_port + 10 * machine}/health/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def interrupt(self) -> None:
        """Ctrl-C in every terminal; what does not end is a failure."""
        for terminal in self.terminals:
            terminal.send_signal(signal.SIGINT)
        for terminal in self.terminals:
            terminal.wait(60)

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        for terminal in self.terminals:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(terminal.pid, signal.SIGKILL)
            terminal.wait()
            if terminal.stdout is not None:
                terminal.stdout.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with installed():
        installed_etcd()
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory("-cluster", dir=where) as folder:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            made.end()


def wait_for_more(client: subprocess.Popen[str], admitted: int) -> int:
    """Read what the client prints until it has got more units than these; how many."""
    assert client.stdout is not None
    for line in client.stdout:
        found = re.match(r"\s*\d+ s: (\d+) admitted", line)
        if found and int(found[1]) > admitted:
            return int(found[1])
    raise AssertionError("the client ended before everything was done")


def test_the_count_is_right_whatever_is_killed(cluster: Cluster) -> None:
    machines = typed("deploy/etcd/machine ")
    assert len(machines) == 3
    for machine in machines:
        cluster.open(machine)
    for number in (1, 2, 3):
        # The lambda is called at once.
        wait_until(lambda at=number: cluster.serves(at), f"node {number} serves", within_s=60)  # type: ignore[misc]

    (hammer,) = typed(".venv/bin/python deploy/etcd/hammer.py")
    client = cluster.open(f"{hammer} --units {UNITS}")
    before = {name: cluster.pid(name) for name in ("etcd1", "node2")}
    admitted = 0
    for kill in typed("kill -9 "):
        admitted = wait_for_more(client, admitted)
        cluster.run(kill)
    assert client.stdout is not None
    told = client.stdout.read()
    assert client.wait(120) == 0, told
    assert "right to the unit" in told

    for name, pid in before.items():
        wait_until(lambda name=name, pid=pid: cluster.pid(name) != pid, f"{name} is back")  # type: ignore[misc]
    for number in (1, 2, 3):
        wait_until(lambda at=number: cluster.serves(at), f"node {number} serves", within_s=60)  # type: ignore[misc]
    cluster.interrupt()
