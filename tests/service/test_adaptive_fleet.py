"""Three running nodes on one Redis, under uneven load: they decide by one algorithm, also after faults."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.redis import standalone
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.running import Service

pytestmark = pytest.mark.heavy

ABUSE = {"checks": [{"key": "abuser", "limit": 5, "window": 60}] * 20}


@contextlib.contextmanager
def hammering(node: Service) -> Iterator[None]:
    """Two hundred checks a second of one key that has used up its limit, whatever the node answers."""
    ended = threading.Event()

    def hammer() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(OSError):  # A node that is busy with an outage may hang up.
                node.ask("POST", "/check/batch", ABUSE)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def choice(node: Service) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("GET", "/api/choice")[2]["overall"]
    return found


def until(what: Callable[[], bool], seconds: float) -> float:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "it took too long"
        time.sleep(0.05)  # Nodes beat by the server's clock.
    return time.monotonic() - began


def agree(nodes: list[Service], algorithm: str) -> bool:
    found = {(one["epoch"], one["algorithm"]) for one in map(choice, nodes)}
    return len(found) == 1 and found.pop()[1] == algorithm


def test_three_nodes_decide_by_one_algorithm_also_after_faults() -> None:
    with standalone("redis-7.0") as redis, ExitStack() as running:
        nodes = [
            running.enter_context(service("--engine", redis.url, "--set", f"node_id=node-{i}"))
            for i in range(3)
        ]
        first, second, third = nodes
        with hammering(first):
            until(lambda: choice(first)["algorithm"] == "exponential_backoff", 30)
            assert until(lambda: agree(nodes, "exponential_backoff"), 10) < 2
            assert "denied" in choice(third)["reason"]
            assert third.check("abuser", limit=5, window=60)["algorithm"] == "exponential_backoff"

            second.interrupt()  # One node leaves,
            assert second.wait() == 0
            left, epoch = [first, third], choice(first)["epoch"]
            redis.kill()  # and the store forgets everything.
            time.sleep(1.5)  # While it is away, everybody keeps what there was.
            assert {choice(one)["algorithm"] for one in left} == {"exponential_backoff"}
            redis.restart()
            until(lambda: all(choice(one)["epoch"] > epoch for one in left), 20)
            assert until(lambda: agree(left, "exponential_backoff"), 10) < 2
