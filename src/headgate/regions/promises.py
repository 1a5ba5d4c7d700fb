"""What regions guarantee together, in words: for each mode, while all are connected and while some are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Regions


def promise_of(mode: str, regions: Regions, *, cut_off: bool = False) -> str:
    """What a mode guarantees now."""
    many = len(regions.weights)
    if mode == "split":
        return "each region admits its share; together at most the limit"
    if mode == "merge" and cut_off:
        return (
            f"a region cannot be reached: together at most {many} times the limit, or the limit where a rule says "
            "when_cut_off: share; counts converge when it can be reached again"
        )
    if mode == "merge":
        return (
            f"together at most the limit, and what {'the other' if many == 2 else 'others'} admitted within the lag: "
            f"at most {many - 1} times the smaller of the limit and rate times lag"
        )
    if mode == "escrow":
        idle = "; rights of a region that cannot be reached lie idle until the window ends"
        return f"together at most the limit{idle if cut_off else ', while stores keep what they confirmed'}"
    raise AssertionError(f"nothing is promised for {mode}")
