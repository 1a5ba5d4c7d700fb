"""Yielding to other threads: reading ten thousand rules must not delay a decision.

CPython lets a waiting thread run only every 5 ms, which is longer than a decision may take. A thread that reads rules
therefore sleeps briefly after every 2 ms of work.

The library does not touch the garbage collector, which belongs to the program. A program may pause it while large rule
sets are read (`LiveRules(while_reading=…)`), as `headgate serve` does.
"""

from __future__ import annotations

from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

WORK_SECONDS: Final = 0.002
REST_SECONDS: Final = 0.000_05
"""Any sleep releases the interpreter; waiting threads decide how long it takes to get it back."""

FEW: Final = 16


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


def with_pauses(things: Iterable[T], pause: Callable[[], None]) -> Iterator[T]:
    """The same things, with a pause every few: for work so small that reading the clock each time would double it."""
    for number, thing in enumerate(things):
        if not number % FEW:
            pause()
        yield thing


def no_pause() -> None:
    """Never pause: for a program with nothing else to do."""


def release_gradually(things: list[Any], pause: Callable[[], None]) -> None:
    """Empty a list bit by bit: freeing ten thousand objects at once stalls all other threads."""
    while things:
        things.pop()
        pause()
