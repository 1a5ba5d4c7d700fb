"""A baton keeps threads apart, and a child gets one that nobody has run away with."""

from __future__ import annotations

import threading

import pytest

from headgate.engines._baton import Baton


def test_one_thread_at_a_time_has_it() -> None:
    baton, inside, most = Baton(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(2_000):
            with baton:
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
    baton = Baton()
    with pytest.raises(ZeroDivisionError), baton:
        _ = 1 / 0
    with baton:
        pass


def test_a_child_finds_exactly_one() -> None:
    baton = Baton()
    baton.after_fork()  # Nobody had it.
    baton.take()
    waiting = threading.Thread(target=baton.take, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()  # There is no second one.
    baton.after_fork()  # Its holder is gone.
    waiting.join(5.0)
    assert not waiting.is_alive()
