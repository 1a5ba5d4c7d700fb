"""Clocks: the manual one stands still until it is moved."""

from __future__ import annotations

import threading

from headgate.testing import ManualClock


def test_sleeping_moves_the_clock() -> None:
    clock = ManualClock()
    start_us = clock.now_us()
    clock.sleep_us(1_500_000)
    clock.sleep_us(-1)
    assert clock.now_us() == start_us + 1_500_000


def test_two_threads_that_sleep_at_once_take_as_long_as_the_longer_sleep() -> None:
    """Both fall asleep before either of them has moved the clock."""
    clock = ManualClock()
    start_us = clock.now_us()
    asleep = threading.Barrier(2)

    class Lock:
        def __enter__(self) -> None:
            asleep.wait(10)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    lock, clock._lock = clock._lock, Lock()  # type: ignore[assignment]
    threads = [threading.Thread(target=clock.sleep_us, args=(us,)) for us in (300, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_us() == start_us + 1_000
