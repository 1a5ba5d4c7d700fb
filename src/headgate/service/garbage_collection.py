"""The garbage collector of a process that only serves.

CPython's collector scans all objects again whenever their number has grown by a quarter: with ten thousand rules that
takes a tenth of a second, several times, in which nothing else runs. Only the service, which owns its process, may
change that; the library leaves the collector to the program that it runs in.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

YOUNG: Final = 20_000
"""How many new objects trigger a search for cycles. A batch creates hundreds, none of them in a cycle."""
MANY: Final = 50_000
"""How many new objects make it worthwhile to freeze them."""


def freeze_existing_objects() -> None:
    """Before serving begins: exclude all existing objects from collection, because they stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector for the block, and if it created many objects, exclude them from then on.

    Rules contain no cycles and live long, so there is nothing to find in them; they are freed by reference counting.
    The price is paid only with large sets: other objects that exist at the end are excluded as well, so cycles among
    them that become garbage later stay.
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
