"""Running a service: one process, or several that share their listening sockets.

For each protocol, workers inherit one socket from their parent instead of listening separately (SO_REUSEPORT): there is
one queue of new connections, so a worker that ends or crashes loses nobody's connection; another worker accepts it.

The parent only supervises. It restarts workers that died, forwards signals, and ends when its workers have.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import signal
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..node import Node
from ..telemetry.logs import configure_logs
from .listening import listen_all
from .server import run_node

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from ..settings import Settings

SETTLED: Final = 5.0
"""A worker that has served for this many seconds has started well, however long the start took."""
MAX_FALSE_STARTS: Final = 3
LOOK_EVERY: Final = 0.1
"""The maximum delay before a signal is forwarded, in seconds."""


def serve(settings: Settings, *, on_listening: Callable[[int], None]) -> int:
    """Serve until a signal stops it; returns the exit code. `on_listening` is called with the port."""
    configure_logs(settings.log_level)
    with ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in listen_all(settings)]
        port: int = sockets[0].getsockname()[1]
        if settings.workers == 1:
            node = Node(settings, port=port)
            on_listening(port)
            run_node(node, sockets)
            return 0
        Node(settings, port=port).close()  # Errors in the settings are reported here, once.
        with tempfile.TemporaryDirectory(prefix="headgate-") as shared:
            supervisor = Supervisor(settings, sockets, Path(shared))
            supervisor.handle_signals()
            on_listening(port)
            return supervisor.run()


def run_worker(
    settings: Settings,
    sockets: list[socket.socket],
    worker: int,
    shared: Path,
    *,
    all_end: ctypes.c_bool,
    serves_since: ctypes.c_double,
) -> None:
    """The main function of a worker; `all_end` is set when it does not end alone. It also ends without its parent.

    It records in `serves_since` when it began to serve.
    """
    # The terminal's signal is for the parent, which forwards it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logs(settings.log_level)
    port: int = sockets[0].getsockname()[1]
    for sock in sockets:
        sock.settimeout(0)
    node = Node(settings, port=port, worker=worker, shared_dir=shared)
    parent = multiprocessing.parent_process()

    def nobody_stays() -> bool:
        return all_end.value or (parent is not None and not parent.is_alive())

    def note_time() -> None:
        serves_since.value = time.monotonic()

    run_node(node, sockets, nobody_stays=nobody_stays, on_serving=note_time)


class Supervisor:
    """The parent of worker processes.

    A signal may come at any moment, even while a worker is being started. So its handler only records it: the main
    loop, which knows all workers, closes the sockets and notifies them.
    """

    def __init__(self, settings: Settings, sockets: list[socket.socket], shared: Path) -> None:
        self._settings = settings
        self._sockets = sockets
        self._shared = shared
        self._context: Any = multiprocessing.get_context("spawn")
        self._workers: dict[int, tuple[BaseProcess, ctypes.c_double]] = {}
        self._false_starts = 0
        self._signals_received = 0
        # Shared with workers. A signal handler sets it, so it has no lock: waiting for one could take forever.
        self._ending: ctypes.c_bool = self._context.RawValue(ctypes.c_bool, False)  # noqa: FBT003
        self._log = logging.getLogger("headgate.service")

    def handle_signals(self) -> None:
        """From now on, end on a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())

    def run(self) -> int:
        """Start the workers, and watch until all of them have ended."""
        for worker in range(self._settings.workers):
            if not self._ending.value:
                self._start(worker)
        passed_on = 0
        while self._workers:
            if passed_on < self._signals_received:
                passed_on += 1
                self._signal_workers()
            wait([process.sentinel for process, _ in self._workers.values()], timeout=LOOK_EVERY)
            for worker, (process, since) in list(self._workers.items()):
                if not process.is_alive():
                    self._on_death(worker, process, since)
        return 1 if self._false_starts >= MAX_FALSE_STARTS else 0

    def _start(self, worker: int) -> None:
        serves_since: ctypes.c_double = self._context.RawValue(ctypes.c_double, 0.0)
        process = self._context.Process(
            target=run_worker,
            args=(self._settings, self._sockets, worker, self._shared),
            kwargs={"all_end": self._ending, "serves_since": serves_since},
            name=f"headgate-worker-{worker}",
        )
        process.start()
        self._workers[worker] = (process, serves_since)

    def _on_death(self, worker: int, process: BaseProcess, since: ctypes.c_double) -> None:
        process.join()
        del self._workers[worker]
        if self._ending.value:
            return
        served = time.monotonic() - since.value if since.value else 0.0
        self._false_starts = 0 if served > SETTLED else self._false_starts + 1
        self._log.error(
            "a worker died",
            extra={"worker": worker, "exit_code": process.exitcode, "served": round(served, 1)},
        )
        if self._false_starts >= MAX_FALSE_STARTS:
            self._log.error("workers do not start; giving up")
            self._end()
        else:
            self._start(worker)

    def _end(self) -> None:
        """Record that all are to end; on the second call, at once."""
        self._ending.value = True
        self._signals_received += 1

    def _signal_workers(self) -> None:
        for sock in self._sockets:
            sock.close()
        for process, _ in self._workers.values():
            if process.is_alive():
                process.terminate()
