"""Forks: what a child process does about the things it inherits.

Only the thread that forks lives on in the child. A lock that another thread held at that moment would stay
locked for ever there, and what belongs to the parent (a state file, a slot to be renewed) is not the child's to
touch. Things with such a problem have an `after_fork` and are remembered here, weakly; a child calls it on
each of them before anything else runs.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that must be put right in a child."""

    def after_fork(self) -> None:
        """Make it usable in the child, which has just begun."""


_inherited: WeakSet[Inherited] = WeakSet()


def remember(thing: Inherited) -> None:
    """Call `thing.after_fork()` in every child, for as long as the thing lives."""
    _inherited.add(thing)


def _in_child() -> None:
    for thing in list(_inherited):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_in_child)
