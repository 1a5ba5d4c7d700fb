"""A thousand clients that send a byte now and then leave everybody else alone."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack

import pytest

from tests.service.raw import Raw, post
from tests.service.running import Service, service

FULL = os.environ.get("HEADGATE_SLOW_CLIENTS") == "full"
"""All thousand, and the bound that is promised: p99 within 10 %. Too fine for a machine that runs other tests at the same time."""
SLOW = 1_000 if FULL else 300
REQUESTS = 4_000 if FULL else 1_500
ROUNDS = 5
BOUND = 1.10 if FULL else 1.75


@pytest.mark.slow
def test_slow_connections_leave_the_p99_of_others_alone() -> None:
    """Measures for some seconds, with and without them in turn."""
    with service("--set", "header_timeout=60", "--set", "body_timeout=60") as one:
        _p99(one)
        pairs = [(_p99(one), _p99_beside_slow_ones(one)) for _ in range(ROUNDS)]
    alone, beside = (min(column) for column in zip(*pairs, strict=True))
    assert beside < alone * BOUND + 0.000_05, (
        f"p99 {alone * 1e6:.0f} us, then {beside * 1e6:.0f} us"
    )


def _p99_beside_slow_ones(one: Service) -> float:
    with ExitStack() as stack:
        held = [stack.enter_context(Raw(one.port)) for _ in range(SLOW)]
        request = post({"key": "slow"})
        for at, raw in enumerate(held):
            raw.send(request[: 1 + at % (len(request) - 1)])
        done = threading.Event()
        dripping = threading.Thread(target=_drip, args=(held, done))
        dripping.start()
        try:
            return _p99(one)
        finally:
            done.set()
            dripping.join()


def _drip(held: list[Raw], done: threading.Event) -> None:
    """One byte from each in ten seconds."""
    at = 0
    while not done.wait(10 / SLOW):
        try:
            held[at % SLOW].send(b"x")
        except OSError:
            return
        at += 1


def _p99(one: Service) -> float:
    request = post({"key": "quick", "cost": 0})
    took = []
    with Raw(one.port) as raw:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            raw.send(request).answer()
            took.append(time.perf_counter() - began)
    return sorted(took)[len(took) * 99 // 100]
