"""Figures about rights: of all keys, as seen by one node, and of one key, as recorded by its region."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class RightsFigures:
    """Traffic in rights since the start, by the other region; of one node, or of several together."""

    asked: Counter[str] = field(default_factory=Counter)
    """Asks sent to it."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """Asks that it did not answer."""
    received: Counter[str] = field(default_factory=Counter)
    """Units that it granted."""
    given: Counter[str] = field(default_factory=Counter)
    """Units that it was granted."""
    lost: int = 0
    """Units that were taken off in one region and did not reach the other: nobody has them until the window ends.

    Messages lost on the way are not included: the sender does not know about them."""
    lost_at_us: int | None = None
    """When units were last lost; `None` for never."""

    def lose(self, units: int, at_us: int) -> None:
        """Record units that nobody has."""
        if units:
            self.lost += units
            self.lost_at_us = at_us

    def as_json(self) -> list[Any]:
        """Serialise it for other nodes."""
        counted = (self.asked, self.unanswered, self.received, self.given)
        return [*map(dict, counted), self.lost, self.lost_at_us]

    @classmethod
    def from_json(cls, row: list[Any]) -> RightsFigures:
        """Read it back."""
        asked, unanswered, received, given, lost, lost_at_us = row
        counted = Counter(asked), Counter(unanswered), Counter(received), Counter(given)
        return cls(*counted, lost, lost_at_us)

    @classmethod
    def combined(cls, every: Iterable[RightsFigures]) -> RightsFigures:
        """The sum over several nodes."""
        total = cls()
        for one in every:
            total.asked.update(one.asked)
            total.unanswered.update(one.unanswered)
            total.received.update(one.received)
            total.given.update(one.given)
            total.lost += one.lost
            total.lost_at_us = max(total.lost_at_us or 0, one.lost_at_us or 0) or None
        return total


class RightsHeld(NamedTuple):
    """The rights of a region in all windows in which this node has asked for or given rights."""

    windows: int
    """The number of these windows."""
    units: int
    """Shares and grants received, minus what this node has given away."""


class KeyRights(NamedTuple):
    """The rights of a region in the current window of a key."""

    limit: int
    """The units that all regions together may admit."""
    share: int
    """The units that it started with."""
    received: Mapping[str, int]
    """Units granted to it, by region."""
    given: Mapping[str, int]
    """Units that it granted to others, by region."""
    admitted: int
    """Units that it admitted, including those taken off that could not be given."""
    left: int
    """Units that it can still admit."""

    def in_words(self) -> str:
        """What the region can still admit, and how that came about.

        >>> KeyRights(90, 30, {"us": 15}, {}, 38, 7).in_words()
        'this region may admit 7 more: it began with 30, got 15 from us, and admitted 38'
        """
        moved = [f"got {units:,} from {region}" for region, units in self.received.items()]
        moved += [f"gave {units:,} to {region}" for region, units in self.given.items()]
        began = ", ".join([f"it began with {self.share:,}", *moved])
        return f"this region may admit {self.left:,} more: {began}, and admitted {self.admitted:,}"
