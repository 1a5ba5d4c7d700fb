"""ChargeKind: what a charge does to its limit.

Not in `charge.py`, which is also compiled: compiled code refuses instances of classes that are not compiled, with its
own message.
"""

from __future__ import annotations

from enum import Enum


class ChargeKind(Enum):
    """What a charge does."""

    TAKE = "take"
    """Take the units if every charge of the request fits."""
    PEEK = "peek"
    """Say whether they would fit; change nothing."""
    FORCE = "force"
    """Charge without asking, if the others fit."""
    SHADOW = "shadow"
    """Count and report, but never deny."""
