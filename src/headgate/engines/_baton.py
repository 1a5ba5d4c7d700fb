"""A baton: whoever holds it has the turn. What a lock is, at half the price.

`threading.Lock` looks for keywords with every call, and a hit is short enough for that to be a tenth of it. A queue that
holds one item, and whose `get` and `put` are C functions that look for none, is a lock as well: who got the item is alone
until it is put back, and the others wait in `get`.

**A signal must not lose it.** Python runs the handlers of signals after a call, so what a handler raises (Ctrl-C, a time
limit) can come between `take()` and the `try` behind it, and the baton would be gone for good. A `with` statement and the step of a `for`
loop have no such gap, as long as all that they call is in C:

- `with baton:` finds `get` and `put` themselves in the slots `__enter__` and `__exit__`. (What `put` is passed then, the kind of
  the exception and more, is as good an item as any.)
- `for _ in baton.turns:`, left from inside by `return`, with `baton.give(None)` in a `finally`: the same for modules that are
  also compiled. Compiled code asks a type for its `__enter__`, and would find a slot without an object.
"""

from __future__ import annotations

from itertools import repeat, starmap
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Baton:
    """`with baton: …`, or, where every nanosecond counts, `turns` and `give(None)`."""

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
        """In a child: who held it in the parent is not here to put it back."""
        if self._queue.empty():
            self.give(None)
