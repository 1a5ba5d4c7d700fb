"""A lock that costs half as much as `threading.Lock`.

`threading.Lock` parses keyword arguments on every call, which is a tenth of a hit's time. A queue with one item is also
a lock, and its `get` and `put` are C functions without keyword arguments: the thread that got the item holds the lock
until it puts the item back, and the others wait in `get`.

**A signal must not lose it.** Python runs the handlers of signals after a call, so what a handler raises (Ctrl-C, a
time limit) can come between `take()` and the `try` behind it, and the lock would be gone for good. A `with` statement
and the step of a `for` loop have no such gap, as long as all that they call is in C:

- `with lock:` finds `get` and `put` themselves in the slots `__enter__` and `__exit__`. (What `put` is passed then,
  the kind of the exception and more, is as good an item as any.)
- `for _ in lock.turns:`, left from inside by `return`, with `lock.give(None)` in a `finally`: the same for modules
  that are also compiled. Compiled code asks a type for its `__enter__`, and would find a slot without an object.
"""

from __future__ import annotations

from itertools import repeat, starmap
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class FastLock:
    """`with lock: …`, or, where every nanosecond counts, `turns` and `give(None)`."""

    __slots__ = ("__enter__", "__exit__", "_queue", "give", "turns")

    def __init__(self) -> None:
        queue: SimpleQueue[Any] = SimpleQueue()
        self._queue = queue
        self.give = queue.put
        self.turns: Iterator[object] = starmap(queue.get, repeat(()))
        self.__enter__ = queue.get
        self.__exit__ = queue.put
        self.give(None)

    def after_fork(self) -> None:
        """In a child process: the thread that held it in the parent does not exist here."""
        if self._queue.empty():
            self.give(None)
