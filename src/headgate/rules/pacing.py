"""Work that lets others run: reading ten thousand rules must not hold up a decision.

CPython hands the interpreter to a waiting thread only every 5 ms, and that is longer than a decision may take. A
thread that reads rules therefore steps aside by itself, after every millisecond of work. And CPython's garbage
collector looks at all objects again each time that they have become a quarter more: with ten thousand rules that takes a
tenth of a second, several times over, in which nobody runs.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORK_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.000_05
"""Any sleep gives the interpreter away; how long the thread rests is then up to those who wanted it."""

MANY: Final = 50_000
"""So many new objects are worth a word with the garbage collector."""


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


def let_go(things: list[Any], pause: Callable[[], None]) -> None:
    """Empty a list bit by bit: whoever drops ten thousand things at once holds up everybody until all are gone."""
    while things:
        things.pop()
        pause()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away from what is made meanwhile, and if that is much, from then on.

    Rules hold no cycles and live long, so there is nothing in them to find; they go when nobody holds them. The price
    is paid only by large sets: what else there was in the process at the end is not looked at again either, so cycles
    among it that become garbage later stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > MANY:
                gc.freeze()
            gc.enable()
