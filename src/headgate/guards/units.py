"""Units that threads take one by one, without a lock.

A lock is a sixth of what an answer from a chunk costs. So units are the steps of an iterator over a range. Python
implements it in C, and holds the GIL during a step, so no two threads get the same unit; each step returns what remains
after it. In builds that can do without a GIL, the iterator gets a lock.

The iterator only has a **block** of the units: it can be emptied only by taking them all.
"""

from __future__ import annotations

import sysconfig
import threading
from operator import length_hint
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 256
"""Emptying a block takes as long as some ten answers."""


class _Locked:
    """An iterator for several threads."""

    def __init__(self, steps: Iterator[int]) -> None:
        self._steps = steps
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._steps)

    def __length_hint__(self) -> int:
        with self._lock:
            return length_hint(self._steps)


GIL_FOR_EVER: Final = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether there is always a GIL. Where it can be off, it may be on now and off before the block is empty."""


def block_of(steps: range) -> Iterator[int]:
    """These numbers, each for one thread only."""
    return iter(steps) if GIL_FOR_EVER else _Locked(iter(steps))


EMPTY: Final = iter(range(0))


class Units:
    """A number of units, to be spent until a deadline.

    `next(units.block, None)` takes one and is safe at any time; everything else needs a lock around it.
    """

    # All that an answer reads, so that it lies close together: with many keys, answers mostly wait for memory.
    __slots__ = ("_outside", "block", "remaining", "resets_ns", "until_ns")

    def __init__(self, remaining: int) -> None:
        self.until_ns = 0
        """The deadline."""
        self.resets_ns = 0
        """When the key counts as unused, by the store's last answer."""
        self.remaining = remaining
        """What the store had left when it was last asked."""
        self._outside = 0
        """Units that are not in the block."""
        self.block = EMPTY
        """Some of the units; each step takes one, and returns how many remain here and in the store."""

    @property
    def left(self) -> int:
        """How many units there are; threads may be taking some of them."""
        return self._outside + length_hint(self.block)

    def hold(self, units: int) -> None:
        """Have so many units, whatever there was."""
        self.empty()
        self._outside = units

    def empty(self) -> int:
        """Take all units; returns how many there were."""
        units, self._outside = self._outside + len(list(self.block)), 0
        return units

    def forget(self) -> None:
        """Have no units, and leave those that there were to whoever else has them."""
        self._outside, self.block = 0, EMPTY

    def take_several(self, cost: int) -> int | None:
        """Take units, and return how many remain; `None` if there are fewer."""
        if self._outside < cost:
            self._outside = self.empty()
            if self._outside < cost:
                return None
        self._outside -= cost
        remaining = self.left + self.remaining
        if cost == 1 and not length_hint(self.block):
            self._next_block()
        return remaining

    def _next_block(self) -> None:
        size = min(self._outside, BLOCK)
        self._outside -= size
        last = self._outside + self.remaining
        self.block = block_of(range(last + size - 1, last - 1, -1))
