"""`headgate serve` that measures how long it takes to answer: `python -m tests.faults.campaign.node FIGURES serve …`.

Time is taken in the node, from when bytes were read to when the answer was written, so neither clients nor a busy
machine between them add to it. Figures are in a mapped file, so that they can be read while the node runs, and after it
was killed. `LATE_MS` says from when on an answer is late. SIGUSR1 blocks the event loop for half a second. The host
`NAME` is this machine, unless the file that `NAME_SERVER` names says that it cannot be looked up.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

LATE_MS = "HEADGATE_TEST_LATE_MS"
ON_TIME_MS = 30
"""The deadline of a decision where somebody answers in the store's place, and 5 ms."""
PATIENT_ON_TIME_MS = 1_005
"""The same where nobody does."""
STALL_S = 0.5
CLOSED = ".closed"
NAME = "store.test"
NAME_SERVER = "HEADGATE_TEST_NAME_SERVER"
SILENT_S = 5.0
_LAYOUT = struct.Struct("<4Q")


class NodeFigures(NamedTuple):
    """What one node has measured, over all its lives."""

    answers: int
    late: int
    worst_us: int
    total_us: int

    def since(self, before: NodeFigures) -> NodeFigures:
        """What came after that; the worst of all times stays."""
        answers, late = self.answers - before.answers, self.late - before.late
        return NodeFigures(answers, late, self.worst_us, self.total_us - before.total_us)


def read_figures(path: Path) -> NodeFigures:
    return NodeFigures(*_LAYOUT.unpack(path.read_bytes()[: _LAYOUT.size]))


def reset_worst(path: Path) -> None:
    """Let the worst be that of the next run."""
    with path.open("r+b", buffering=0) as file:
        file.seek(16)
        file.write(b"\0" * 8)


def new_figures(path: Path) -> None:
    path.write_bytes(b"\0" * _LAYOUT.size)


class Figures:
    """The mapped file."""

    def __init__(self, path: str) -> None:
        self._late_ns = int(os.environ.get(LATE_MS, ON_TIME_MS)) * 1_000_000
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def note(self, took_ns: int) -> None:
        answers, late, worst_us, total_us = _LAYOUT.unpack_from(self._map)
        took_us = took_ns // 1000
        worst_us = max(worst_us, took_us)
        late += took_ns > self._late_ns
        _LAYOUT.pack_into(self._map, 0, answers + 1, late, worst_us, total_us + took_us)


class TimedTransport:
    """A transport that notes when an answer leaves."""

    def __init__(self, transport: Any, figures: Figures) -> None:
        self._transport, self._figures = transport, figures
        self.read_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self.read_ns:
            self._figures.note(time.monotonic_ns() - self.read_ns)
            self.read_ns = 0


def measure(figures: Figures) -> None:
    """Let the HTTP protocol take the time."""
    from headgate.service.http.protocol import FastPathProtocol  # noqa: PLC0415

    made, received = FastPathProtocol.connection_made, FastPathProtocol.data_received

    def connection_made(self: Any, transport: Any) -> None:
        made(self, TimedTransport(transport, figures))  # type: ignore[arg-type]

    def data_received(self: Any, data: bytes) -> None:
        transport = self.transport
        if isinstance(transport, TimedTransport) and not transport.read_ns:
            transport.read_ns = time.monotonic_ns()
        received(self, data)

    FastPathProtocol.connection_made = connection_made  # type: ignore[method-assign]
    FastPathProtocol.data_received = data_received  # type: ignore[method-assign]


def note_closings(path: Path) -> None:
    """Write down when the store decides again, and when it has been charged for all that was given without it.

    Either may come without the other: a single call that was late opens no breaker.
    """
    from headgate.guards.breaker import Breaker  # noqa: PLC0415
    from headgate.guards.local_counts import LocalCounts  # noqa: PLC0415

    def noting(done: Any) -> Any:
        def noted(self: Any) -> None:
            done(self)
            with path.open("a") as file:
                file.write(f"{time.monotonic_ns() // 1000}\n")

        return noted

    Breaker.close = noting(Breaker.close)  # type: ignore[method-assign]
    LocalCounts.end_outage = noting(LocalCounts.end_outage)  # type: ignore[method-assign]


def closings(figures: Path) -> list[int]:
    """When that was, in microseconds of the clock of histories."""
    path = figures.with_suffix(CLOSED)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def look_up_names(trouble: Path) -> None:
    """Let there be a name server that can be told to fail, or not to answer for a while."""
    look_up = socket.getaddrinfo

    def looked_up(host: Any, *args: Any, **more: Any) -> Any:
        if host != NAME:
            return look_up(host, *args, **more)
        ends = time.monotonic() + SILENT_S
        while (said := trouble.read_text()) == "silent" and time.monotonic() < ends:
            time.sleep(0.02)  # The fault itself: there is no answer.
        if said:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return look_up("127.0.0.1", *args, **more)

    socket.getaddrinfo = looked_up


def stall(*_: object) -> None:
    time.sleep(STALL_S)  # The fault itself: nothing else runs meanwhile.


def main() -> int:
    from headgate.cli import main as headgate  # noqa: PLC0415

    measure(Figures(sys.argv[1]))
    note_closings(Path(sys.argv[1]).with_suffix(CLOSED))
    look_up_names(Path(os.environ[NAME_SERVER]))
    signal.signal(signal.SIGUSR1, stall)
    return headgate(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
