"""Many clients that send a byte now and then, in a process of their own, so that they do not slow the measuring.

`python -m tests.service.dripping PORT COUNT` says `ready` when all have connected and begun a request, and goes on
until its input ends.
"""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.service.raw import Raw, post

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY = 10.0
"""Seconds from one byte of a client to its next."""


@contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """As long as this lasts, so many slow clients are connected."""
    command = [sys.executable, "-m", "tests.service.dripping", str(port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
            assert process.poll() is None, "the slow clients were cut off"
        finally:
            process.stdin.close()


def _drip(port: int, count: int) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(Raw(port)) for _ in range(count)]
        request = post({"key": "slow"})
        for at, raw in enumerate(held):
            raw.send(request[: 1 + at % (len(request) - 1)])
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        at = 0
        while not select.select([sys.stdin], [], [], EVERY / count)[0]:
            held[at % count].send(b"x")
            at += 1


if __name__ == "__main__":
    _drip(int(sys.argv[1]), int(sys.argv[2]))
