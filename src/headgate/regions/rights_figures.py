"""Figures about rights: of all keys, as seen by one node, and of one key, as recorded by its region."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class RightsFigures:
    """A node's traffic in rights since it started, by the other region."""

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
