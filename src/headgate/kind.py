"""Kind: what a charge does to the limit that it names.

Not in `charge.py`, which is also compiled: compiled code refuses, in its own words, what is no instance of a class that it has
compiled as well.
"""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What a charge does."""

    TAKE = "take"
    """Take the units if every charge of the request fits."""
    PEEK = "peek"
    """Say whether they would fit; change nothing."""
    FORCE = "force"
    """Charge without asking, if the others fit."""
    SHADOW = "shadow"
    """Count and report, but never deny."""
