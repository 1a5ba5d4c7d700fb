"""No input costs more CPU than its size allows: the second half of every promise here."""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .targets import Target

ANY_INPUT_S: Final = 0.05
"""What any input may take: building things for the first time, and a machine that is busy."""
TRIES: Final = 3


def run(target: Target, data: bytes, *, slower: float = 1.0) -> None:
    """Check one input, and what it costs; `slower` is how much longer everything takes while it is watched."""
    check = target.check
    bound_s = slower * (ANY_INPUT_S + target.ms_per_64_kb / 1_000 * len(data) / 65_536)
    took_s = 0.0
    for _ in range(TRIES):  # What only takes long the first time, or by accident, is no fault.
        began_s = process_time()
        check(data)
        took_s = process_time() - began_s
        if took_s <= bound_s:
            return
    raise AssertionError(
        f"{len(data)} bytes took {took_s * 1_000:.0f} ms of CPU, and {bound_s * 1_000:.0f} ms are allowed: "
        f"{data[:120]!r}"
    )
