"""Shares after an operator has taken back the rights of dead regions, so that the others have them. Pure.

It applies to windows that begin after the announcement, until it is undone. The dead region's share is distributed to
the others by weight, on top of their own. So a region that has not been informed has less, never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .shares import shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .escrow import KeyWindow

FOR_EVER: Final = 1 << 53


class TakenBack(NamedTuple):
    """A region's rights belong to the others, in windows that begin in this time span."""

    from_us: int
    until_us: int = FOR_EVER

    def holds_for(self, window: KeyWindow) -> bool:
        """Whether it applies to a window."""
        return self.from_us <= window.start_us < self.until_us


def escrow_shares(
    window: KeyWindow, weights: Mapping[str, int], taken_back: Mapping[str, TakenBack]
) -> dict[str, int]:
    """The units that each region starts a window with; together at most the limit."""
    given = shares(window.limit, weights)
    dead = [name for name, one in taken_back.items() if name in given and one.holds_for(window)]
    alive = {name: weight for name, weight in weights.items() if name not in dead}
    for name in dead:
        idle, given[name] = given[name], 0
        if any(alive.values()):
            for other, units in shares(idle, alive).items():
                given[other] += units
    return given
