"""A lock keeps threads apart, and a child gets one that nobody has run away with."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from headgate.engines._lock import FastLock


def test_one_thread_at_a_time_has_it() -> None:
    lock, inside, most = FastLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(2_000):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_it_comes_back_when_its_holder_fails() -> None:
    lock = FastLock()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    with lock:
        pass


def test_a_child_finds_exactly_one() -> None:
    lock = FastLock()
    lock.after_fork()  # Nobody had it.
    next(lock.turns)
    waiting = threading.Thread(target=next, args=(lock.turns,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()  # There is no second one.
    lock.after_fork()  # Its holder is gone.
    waiting.join(5.0)
    assert not waiting.is_alive()


INTERRUPTED = """
import signal, sys, threading, time
from headgate import Charge, Limiter

class Soon(Exception): pass

def interrupt(*_):
    raise Soon

limiter = Limiter()
igdb = limiter.limit("a", "5/minute")
run = limiter.engine.bind_run(igdb._spec.limits[0])
calls = {
    "hit": lambda: limiter.hit("a", "5/minute"),
    "decide": lambda: limiter.decide([Charge("a", "5/minute"), Charge("b", "9/minute")]),
    "stats": igdb.stats,
    "run": lambda: run(["a", "b"], 1),
}
call = calls[sys.argv[1]]
signal.signal(signal.SIGALRM, interrupt)
for at in range(1_500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.000_05 + at % 50 / 1_000_000)
        while True:
            call()
    except Soon:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
other = threading.Thread(target=call, daemon=True)
other.start()
other.join(5)
sys.exit(other.is_alive())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("call", ["hit", "decide", "stats", "run"])
def test_what_a_signal_handler_raises_does_not_lose_it(call: str) -> None:
    """In a process of its own, interrupted some thousand times in the middle of what it does."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, call], timeout=60, check=False)
    assert ended.returncode == 0
