"""What became of rights between regions: of all keys, as one node has seen it, and of one key, as its region has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class RightsFigures:
    """What a node has done for rights since it started, by the other region; or what several have done together."""

    asked: Counter[str] = field(default_factory=Counter)
    """How often another region was asked."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """How often it did not answer."""
    received: Counter[str] = field(default_factory=Counter)
    """Units that it granted."""
    given: Counter[str] = field(default_factory=Counter)
    """Units that it was granted."""
    lost: int = 0
    """Units that were taken off in one region and did not get to the other: nobody has them until the window ends.

    A message that is lost on its way is not among them: who sent it does not know."""
    lost_at_us: int | None = None
    """When some were lost last; `None` for never."""

    def lose(self, units: int, at_us: int) -> None:
        """Count units that nobody has."""
        if units:
            self.lost += units
            self.lost_at_us = at_us

    def as_json(self) -> list[Any]:
        """As other nodes read it."""
        counted = (self.asked, self.unanswered, self.received, self.given)
        return [*map(dict, counted), self.lost, self.lost_at_us]

    @classmethod
    def from_json(cls, told: list[Any]) -> RightsFigures:
        """Read it back."""
        asked, unanswered, received, given, lost, lost_at_us = told
        counted = Counter(asked), Counter(unanswered), Counter(received), Counter(given)
        return cls(*counted, lost, lost_at_us)

    @classmethod
    def together(cls, every: Iterable[RightsFigures]) -> RightsFigures:
        """All nodes as one."""
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
    """Rights of one region in all windows that one node has asked or given rights of."""

    windows: int
    """How many windows of keys these are."""
    units: int
    """Its shares, and what was granted to it, less what this node has given away."""


class KeyRights(NamedTuple):
    """The rights of one region in the window of a key that is under way."""

    limit: int
    """What all regions may admit together."""
    share: int
    """What it began with."""
    received: Mapping[str, int]
    """What others have granted to it, by region."""
    given: Mapping[str, int]
    """What it has granted to others, by region."""
    admitted: int
    """What it has admitted itself; and what it took off and could not give."""
    left: int
    """What it can still admit."""

    def in_words(self) -> str:
        """What the region can still admit, and how that came about.

        >>> KeyRights(90, 30, {"us": 15}, {}, 38, 7).in_words()
        'this region may admit 7 more: it began with 30, got 15 from us, and admitted 38'
        """
        moved = [f"got {units:,} from {region}" for region, units in self.received.items()]
        moved += [f"gave {units:,} to {region}" for region, units in self.given.items()]
        began = ", ".join([f"it began with {self.share:,}", *moved])
        return f"this region may admit {self.left:,} more: {began}, and admitted {self.admitted:,}"
