"""Finding: one place where a history breaks its promise."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What is wrong, and where."""

    check: str
    message: str
    rule: str = ""
    key: str = ""
    line: int = 0
    """The line of the history that shows it."""
    at_us: int = 0
    units: int = 1
    """By how much, if that can be counted."""
