"""Work that lets others run: reading ten thousand rules must not hold up a decision.

CPython hands the interpreter to a waiting thread only every 5 ms, and that is longer than a decision may take. A
thread that reads rules therefore steps aside by itself, after every millisecond of work.
"""

from __future__ import annotations

from time import perf_counter, sleep
from typing import Final

WORK_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.000_05
"""Any sleep gives the interpreter away; how long the thread rests is then up to those who wanted it."""


class Pacer:
    """A function to call between small pieces of work; it rests when enough has been done."""

    def __init__(
        self, *, work_seconds: float = WORK_SECONDS, rest_seconds: float = REST_SECONDS
    ) -> None:
        self._work_seconds = work_seconds
        self._rest_seconds = rest_seconds
        self._since = perf_counter()

    def __call__(self) -> None:
        """Rest, if it is time to."""
        if perf_counter() - self._since >= self._work_seconds:
            sleep(self._rest_seconds)
            self._since = perf_counter()


def unhurried() -> None:
    """No pause at all: for a program that has nothing else to do."""
