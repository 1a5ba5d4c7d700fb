"""Forks: how a child process resets the objects it inherits.

Only the thread that forks continues in the child. A lock that another thread held during the fork would stay locked
there forever, and the child must not touch what belongs to the parent (a state file, a slot to renew). Objects with
such a problem have an `after_fork` method and are registered here, weakly; a child calls it on each of them before
anything else runs.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object that must be reset in a child process."""

    def after_fork(self) -> None:
        """Make it usable in the child process that has just started."""


_inherited: WeakSet[ForkAware] = WeakSet()


def reset_after_fork(thing: ForkAware) -> None:
    """Call `thing.after_fork()` in every child process, as long as the object exists."""
    _inherited.add(thing)


def _in_child() -> None:
    for thing in list(_inherited):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_in_child)
