"""How many units a limit may give at most between two moments of the real clock, and callers who try to get more."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

THREADS: Final = 8
WINDOW_US: Final = 5_000
LIMITS: Final[list[Limit]] = [
    FixedWindow(5, WINDOW_US),
    SlidingWindow(5, WINDOW_US),
    SlidingLog(5, WINDOW_US),
    TokenBucket(5, WINDOW_US),
    ExponentialBackoff(5, WINDOW_US, denials_per_level=1_000_000),
    *(Adaptive(5, WINDOW_US, chosen=one) for one in CANDIDATES),
    Concurrency(5, WINDOW_US),
]


def most(limit: Limit, from_us: int, to_us: int) -> int:
    """What a key that was never used may be given between two moments."""
    passed_us = to_us - from_us
    chosen = limit.chosen if isinstance(limit, Adaptive) else limit.name
    if chosen == TokenBucket.name:
        return limit.limit + limit.limit * passed_us // WINDOW_US
    if chosen in {SlidingLog.name, Concurrency.name}:
        return limit.limit * (1 + passed_us // WINDOW_US)
    return limit.limit * (1 + to_us // WINDOW_US - from_us // WINDOW_US)


@contextmanager
def tiny_switch_interval() -> Iterator[None]:
    """Threads are switched wherever they can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def hammered(hit: Callable[[], object], seconds: float) -> int:
    """How many of the calls were allowed that so many threads could make meanwhile."""
    counts = [0] * THREADS
    ends = time.monotonic() + seconds
    failures: list[BaseException] = []

    def call(number: int) -> None:
        try:
            while time.monotonic() < ends:
                counts[number] += bool(hit())
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=call, args=(number,)) for number in range(THREADS)]
    with tiny_switch_interval():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    return sum(counts)
