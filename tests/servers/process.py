"""Real server processes that a test can start, hang, kill and start again.

A test that fails, or a test run that is killed, must leave nothing behind: every process here is
ended by its own pid when its `with` block ends, and the kernel kills it when the test run dies
first. Everything a server writes is in one folder, which goes the same way.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"

# Below the range from which the kernel takes ports for outgoing connections, so that no client is
# given the port of a server that is down and about to come back. Redis Cluster needs port + 10,000
# as well. Each of the test workers that run side by side has its share: between looking at a port and
# starting a server on it there is always an instant in which another could do the same.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(11_000 + _WORKER, 21_000, _WORKERS)
_BUS_OFFSET = 10_000

_PATHS = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(":") if one]
PYTHON_PATH = {"PYTHONPATH": ":".join(_PATHS)} if _PATHS else {}
"""For processes with another environment: they must import what the tests import, from any folder."""


class NotInstalledError(Exception):
    """This machine lacks something a test needs; the message says what, and how to get it."""


class Server:
    """One process, its folder and its log.

    `ready` says whether the server answers. A server is started on entry, and again on the same
    ports and files by `restart`, for its command never changes.

    Start servers from a thread that lives as long as they do: the kernel ends a child together with
    the thread that made it.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        start_within_s: float = 15.0,
    ) -> None:
        # setpriv becomes the server: it asks for the kernel's signal, then executes the command
        # under its own pid. Doing that between fork and exec in Python is not safe with threads.
        setpriv = shutil.which("setpriv")
        guard = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        self.command = [*guard, *map(str, command)]
        self.folder = folder
        self.environment = dict(environment or {})
        self._ready = ready
        self._start_within_s = start_within_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.terminate()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    @property
    def pid(self) -> int:
        """The process id; a server that was never started has none."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a stopped (hung) one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server wrote to its output, over all its lives."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        assert not self.running
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    **PYTHON_PATH,
                    **self.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # An interrupt at the terminal is for the test run.
            )
        try:
            wait_until(
                lambda: not self.running or self._ready(),
                "the server answers",
                within_s=self._start_within_s,
            )
        except TimeoutError:
            self.kill()
        if not self.running:
            tail = "\n".join(self.log.splitlines()[-20:])
            raise RuntimeError(f"{' '.join(self.command)} did not start; its last words:\n{tail}")

    def kill(self) -> None:
        """End the process at once, as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Hang the process: its connections stay open and nothing answers (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped process run on; one that was not stopped does not notice (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def terminate(self, *, within_s: float = 5.0) -> None:
        """End the process the polite way, or by force if it does not listen."""
        if self._process is None:
            return
        self._process.terminate()
        self.resume()  # A stopped process handles no signal.
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Start the process again with the same ports and files, ending it first if it runs."""
        self.terminate()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def wait_until(condition: Callable[[], bool], what: str, *, within_s: float = 10.0) -> float:
    """Poll until `condition` holds and return the seconds it took; `what` names it in the error."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > within_s:
            raise TimeoutError(f"waited {within_s:g} s in vain until {what}")
        time.sleep(0.005)  # Others may tell nobody when they are ready.
    return time.monotonic() - started


def free_ports(count: int) -> list[int]:
    """Return distinct ports on which nothing listens, nor on the bus port of each.

    They are drawn from the system's randomness, not from the generator that tests may seed, so two runs
    side by side hardly draw the same ones.
    """
    free: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if is_free(port) and is_free(port + _BUS_OFFSET):
            free.append(port)
            if len(free) == count:
                return free
    raise RuntimeError(f"there are no {count} free ports from {_PORTS.start} to {_PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether nothing listens on a port."""
    with contextlib.closing(socket.socket()) as probe:
        # Redis binds with this option too; without it a port just closed would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def patient(url: str) -> str:
    """The URL of a store for tests of exact counts: a busy machine must not make callers do without the store."""
    return f"{url}?deadline=5"
