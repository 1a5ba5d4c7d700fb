"""Work that lets others run: reading ten thousand rules must not hold up a decision.

CPython hands the interpreter to a waiting thread only every 5 ms, and that is longer than a decision may take. A
thread that reads rules therefore steps aside by itself, after every two milliseconds of work. And CPython's garbage
collector looks at all objects again each time that they have become a quarter more: with ten thousand rules that takes a
tenth of a second, several times over, in which nobody runs.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

WORK_SECONDS: Final = 0.002
REST_SECONDS: Final = 0.000_05
"""Any sleep gives the interpreter away; how long the thread rests is then up to those who wanted it."""

FEW: Final = 16
MANY: Final = 50_000
"""So many new objects are worth a word with the garbage collector."""


def pacer(
    *, work_seconds: float = WORK_SECONDS, rest_seconds: float = REST_SECONDS
) -> Callable[[], None]:
    """A function to call between small pieces of work; it rests when enough has been done.

    It is called a hundred thousand times while large rules are read: hence a function with two cells, and no object.
    """
    due = perf_counter() + work_seconds

    def pause() -> None:
        nonlocal due
        if perf_counter() >= due:
            sleep(rest_seconds)
            due = perf_counter() + work_seconds

    return pause


def spaced(things: Iterable[T], pause: Callable[[], None]) -> Iterator[T]:
    """The same things, with a pause before every few: for work so small that each look at the clock would double it."""
    for number, thing in enumerate(things):
        if not number % FEW:
            pause()
        yield thing


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
