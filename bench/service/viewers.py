"""What people who watch the dashboard cost: decisions with and without 500 viewers, some of whom read nothing.

`python -m bench.service.viewers`. Slices of load alternate, so that a machine that others use disturbs both alike. At
the end viewers stay until those who read nothing have been hung up on.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from tests.servers.process import HOST

from ..harness import facts, save, table
from .contenders import LOAD_CORE, running
from .load import run_wrk, write_scripts

if TYPE_CHECKING:
    from typing import Self

    from .load import Slice

VIEWERS: Final = 500
SLOW: Final = 50
"""Of them, how many read nothing."""
MEDIAN_AT_MOST: Final = 1.05
P99_AT_MOST: Final = 1.25
DROPPED_WITHIN_S: Final = 180.0
"""A viewer is hung up on after 30 s without progress, and before that the system holds some frames for it."""
PING: Final = 9
KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
"""Any 16 bytes will do."""


def pongs_for(received: bytearray) -> bytes:
    """Take all whole frames off what was received, and answer the pings among them, as browsers do."""
    answers = b""
    while len(received) >= 2:
        length, begin = received[1] & 127, 2
        if length >= 126:
            begin = 4 if length == 126 else 10
            length = int.from_bytes(received[2:begin])
        if len(received) < begin + length:
            break
        if received[0] & 15 == PING:
            answers += bytes([0x8A, 0x80 | length, 0, 0, 0, 0]) + received[begin : begin + length]
        del received[: begin + length]
    return answers


class Viewers:
    """Open WebSockets; a thread reads from those that read."""

    def __init__(self, port: int, many: int = VIEWERS, slow: int = SLOW) -> None:
        self._port = port
        self._many, self._slow = many, slow
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._read: dict[int, int] = {}
        self._received: dict[int, bytearray] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading)

    def __enter__(self) -> Self:
        for number in range(self._many):
            opened = self._open(slow=number < self._slow)
            self._sockets.append(opened)
            if number >= self._slow:
                opened.settimeout(0)
                self._read[opened.fileno()] = 0
                self._received[opened.fileno()] = bytearray()
                self._selector.register(opened, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._sockets:
            one.close()
        self._selector.close()

    def least_read(self) -> int:
        """Bytes that the viewer who got least has got."""
        return min(self._read.values(), default=0)

    def _open(self, *, slow: bool) -> socket.socket:
        opened = socket.socket()
        if slow:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        opened.settimeout(30)
        opened.connect((HOST, self._port))
        opened.sendall(
            (
                f"GET /api/live HTTP/1.1\r\nHost: {HOST}:{self._port}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
                "Sec-WebSocket-Protocol: headgate.live.v1\r\n\r\n"
            ).encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += opened.recv(1) or b"\r\n\r\n"
        if not head.startswith(b"HTTP/1.1 101"):
            raise AssertionError(f"a viewer was refused: {head!r}")
        return opened

    def _keep_reading(self) -> None:
        while not self._ended.is_set():
            for found, _ in self._selector.select(0.1):
                one = found.fileobj
                assert isinstance(one, socket.socket)
                try:
                    taken = one.recv(262_144)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    taken = b""
                self._read[one.fileno()] += len(taken)
                received = self._received[one.fileno()]
                received += taken
                if answers := pongs_for(received):
                    one.send(answers)
                if not taken:
                    self._selector.unregister(one)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.service.viewers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute instead of several")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("skipped: there is no wrk to make load with; apt-get install wrk")
        return
    rounds, seconds = (4, 4.0) if options.quick else (9, 6.0)
    machine = facts(("uvicorn", "websockets"))
    if LOAD_CORE in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {LOAD_CORE})  # Viewers are somewhere else than the service.
    alone, watched, dropped_after = measure(rounds, seconds)
    print(shown(alone, watched))
    print(f"{SLOW} viewers who read nothing were hung up on after {dropped_after:.0f} s.")
    save(
        options.out / "viewers.json",
        {
            "machine": machine,
            "alone": [vars_of(one) for one in alone],
            "watched": [vars_of(one) for one in watched],
            "dropped_after_s": dropped_after,
        },
    )


def measure(rounds: int, seconds: float) -> tuple[list[Slice], list[Slice], float]:
    """Slices without viewers and with them, in turn; and how long it takes until slow viewers are dropped."""
    alone: list[Slice] = []
    watched: list[Slice] = []
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        write_scripts(folder)
        service = stack.enter_context(running("headgate, adaptive", folder, ""))
        run_wrk(service, folder, batch=False, seconds=seconds)  # To warm up.
        for _ in range(rounds):
            alone.append(run_wrk(service, folder, batch=False, seconds=seconds))
            with Viewers(service.port) as viewers:
                time.sleep(2.5)  # Until everybody has had the beginning.
                before = viewers.least_read()
                watched.append(run_wrk(service, folder, batch=False, seconds=seconds))
                if viewers.least_read() - before < 500 * (seconds - 2):
                    raise AssertionError("somebody who reads got less than a frame a second")
            time.sleep(1)
        return alone, watched, dropped_after_s(service.port)


def dropped_after_s(port: int) -> float:
    """Seconds until those who read nothing are hung up on; the others must still be there, and be told."""
    with Viewers(port) as viewers:
        begun = time.monotonic()
        for expected in (VIEWERS, VIEWERS - SLOW):
            while (found := watching(port)) != expected:
                if time.monotonic() - begun > DROPPED_WITHIN_S:
                    raise AssertionError(f"{found} viewers are there, not {expected}")
                time.sleep(0.5)
        took, before = time.monotonic() - begun, viewers.least_read()
        time.sleep(3)
        if viewers.least_read() == before:
            raise AssertionError("somebody who reads is told nothing any more")
    return took


def watching(port: int) -> int:
    """How many viewers there are."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/api/live") as answer:
        found: int = json.load(answer)["tick"]["viewers"]
    return found


def shown(alone: list[Slice], watched: list[Slice]) -> str:
    """Both side by side, and whether the bounds hold."""
    rows = []
    for name, most in (("p50_ms", MEDIAN_AT_MOST), ("p99_ms", P99_AT_MOST), ("cpu_us", None)):
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(alone, watched, strict=True)]
        ratio = median(with_viewers / without for without, with_viewers in pairs)
        verdict = "" if most is None else "met" if ratio <= most else "MISSED"
        rows.append(
            [
                name,
                f"{median(a for a, _ in pairs):.2f}",
                f"{median(b for _, b in pairs):.2f}",
                f"{ratio:.2f}x",
                "" if most is None else f"{most:g}x",
                verdict,
            ]
        )
    head = ["a check", "alone", f"{VIEWERS} viewers", "ratio", "at most", ""]
    return table("Viewers of the dashboard", head, rows)


def vars_of(one: Slice) -> dict[str, float]:
    """A slice as it is saved."""
    return {name: getattr(one, name) for name in one.__slots__}


if __name__ == "__main__":
    main()
