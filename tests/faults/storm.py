"""A storm of interrupts in a process of its own: a timer whose handler raises at random moments, as Ctrl-C does.

`python -m tests.faults.storm URL ROUNDS` prints what it saw as JSON; a crash shows in how it ends.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from headgate import EngineError, FixedWindow, Limiter
from headgate.engines.redis.sync import RedisEngine

LONG_US = 250 * 86_400_000_000
TTL = 0.5
LIMITS = [FixedWindow(1_000_000 + number, LONG_US) for number in range(7)]


class InterruptedCall(BaseException):
    """What the handler raises."""


def interrupt_at_random(rounds: int, act: Any, longest_s: float) -> Counter[str]:
    """Do something again and again, interrupted at random moments; how it went."""
    chance = random.Random(rounds)
    armed = False

    def strike(*_: object) -> None:
        if armed:
            raise InterruptedCall

    signal.signal(signal.SIGALRM, strike)
    told: Counter[str] = Counter()
    for number in range(rounds):
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00001, longest_s))
                told[act(number)] += 1
            finally:
                armed = False
        except InterruptedCall:
            told["interrupted"] += 1
        except EngineError as error:
            told[str(error)] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return told


def hits(url: str, rounds: int) -> dict[str, Any]:
    """Hits on few connections: each must get its own answer, and every connection be there afterwards."""
    engine = RedisEngine(f"{url}?deadline=2&max_connections=2")
    bound = [engine.bind(limit) for limit in LIMITS]

    def act(number: int) -> str:
        limit = LIMITS[number % len(LIMITS)]
        if number % 3:
            decision = bound[number % len(LIMITS)](f"key {number % 5}", 1)
        else:
            decision = engine.bind(limit)(f"key {number % 5}", 1 + number % 4)
        return "right" if decision.limited_by is limit and decision.allowed else "WRONG"

    told = interrupt_at_random(rounds, act, 0.002)
    began = time.monotonic()
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(bound[0]("after", 1))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    engine.close()
    return {"told": told, "after": len(answers), "took": took}


def slots(url: str, rounds: int) -> dict[str, Any]:
    """Slots: none stays held, and those that are held afterwards are still renewed."""
    limiter = Limiter(f"{url}?deadline=2")
    many = limiter.concurrency("slots", 100_000)

    def act(_: int) -> str:
        with many.slot(ttl=TTL):
            return "held"

    told = interrupt_at_random(rounds, act, 0.004)
    stayed = many.stats().count
    time.sleep(1.5 * TTL)  # What was never let go expires; the store's clock is real.
    left = many.stats().count
    one = many.slot(ttl=TTL)
    with one:
        time.sleep(3 * TTL)  # It is renewed by a thread's timer.
        held = (many.stats().count, one.lost)
    with suppress(EngineError):
        limiter.close()
    return {"told": told, "stayed": stayed, "left": left, "held": held}


if __name__ == "__main__":
    act = {"hits": hits, "slots": slots}[sys.argv[1]]
    print(json.dumps(act(sys.argv[2], int(sys.argv[3]))))  # noqa: T201
