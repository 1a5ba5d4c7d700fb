"""The garbage collector of a process that does nothing but serve.

CPython's collector looks at all objects again each time that they have become a quarter more: with ten thousand rules
that takes a tenth of a second, several times over, in which nobody runs. Only the service, to which its process
belongs, may say otherwise; the library leaves the collector to the program that it runs in.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

YOUNG: Final = 20_000
"""How many objects may be new before the collector looks for rings among them. A batch makes hundreds, and none of them
is in one."""
MANY: Final = 50_000
"""So many new objects are worth a word with the garbage collector."""


def settle_down() -> None:
    """Before serving begins: what is there now stays, and the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


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
