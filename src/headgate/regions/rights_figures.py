"""What became of rights between regions: of all keys, as one node has seen it, and of one key, as its region has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class RightsFigures:
    """What one node has done for rights since it started, by the other region."""

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
