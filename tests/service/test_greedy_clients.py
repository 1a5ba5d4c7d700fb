"""Clients that send many requests and never read an answer get no more than anybody else, and are let go in time."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.servers.process import HOST, wait_until
from tests.service.raw import Raw, post
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Iterator

GREEDY = 200
LONGEST = 3.0
"""Seconds that somebody else may wait for an answer on a machine that runs other tests; it was 46 once."""


@contextlib.contextmanager
def greedy_clients(port: int, many: int) -> Iterator[None]:
    """So many connections that send as fast as they are read from, and never read."""
    packet = post({"key": "greedy", "cost": 0}) * 2_000
    over = threading.Event()
    watched = selectors.DefaultSelector()
    for _ in range(many):
        one = socket.create_connection((HOST, port))
        one.settimeout(0)
        watched.register(one, selectors.EVENT_WRITE, [0])

    def send() -> None:
        while not over.is_set():
            for key, _ in watched.select(0.05):
                with contextlib.suppress(OSError):
                    sent = key.fileobj.send(packet[key.data[0] :])  # type: ignore[union-attr]
                    key.data[0] = (key.data[0] + sent) % len(packet)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        for key in list(watched.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        watched.close()


@pytest.mark.slow
def test_others_are_answered_beside_clients_that_never_read() -> None:
    took = []
    with service() as running, greedy_clients(running.port, GREEDY):
        ends = time.monotonic() + 6
        while time.monotonic() < ends:
            began = time.monotonic()
            with Raw(running.port, timeout=60) as raw:
                assert raw.send(post({"key": "modest"})).answer().status == 200
            took.append(time.monotonic() - began)
    assert max(took) < LONGEST, sorted(took)[-5:]


def test_a_client_that_never_reads_is_let_go() -> None:
    with (
        service("--set", "idle_timeout=1", "--set", "header_timeout=0.5") as running,
        socket.create_connection((HOST, running.port)) as greedy,
    ):
        greedy.settimeout(0.2)
        packet = post({"key": "greedy", "cost": 0}) * 2_000

        def is_cut_off() -> bool:
            try:
                greedy.sendall(packet)
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        wait_until(is_cut_off, "the service lets go of it", within_s=20.0)
        assert running.check("modest")["allowed"]
