"""Shares of regions of which some are dead: a person has taken their rights back, and the others have them. Pure.

It counts for windows that begin after it was said, and until it is undone. What the dead region was to have is given
out to the others by weight, on top of their own. So a region that has not heard of it has less, and never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .shares import shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .escrow import KeyWindow

FOR_EVER: Final = 1 << 53


class TakenBack(NamedTuple):
    """Rights of one region are the others', in windows that begin in this time."""

    from_us: int
    until_us: int = FOR_EVER

    def holds_for(self, window: KeyWindow) -> bool:
        """Whether it counts for a window."""
        return self.from_us <= window.start_us < self.until_us


def escrow_shares(
    window: KeyWindow, weights: Mapping[str, int], taken_back: Mapping[str, TakenBack]
) -> dict[str, int]:
    """What each region begins a window with; together that is at most its limit."""
    given = shares(window.limit, weights)
    dead = [name for name, one in taken_back.items() if name in given and one.holds_for(window)]
    alive = {name: weight for name, weight in weights.items() if name not in dead}
    for name in dead:
        idle, given[name] = given[name], 0
        if any(alive.values()):
            for other, units in shares(idle, alive).items():
                given[other] += units
    return given
