"""Membership: how many nodes share a store, for when they cannot ask it.

It is the largest number of nodes that were seen together within the last hour, and never less than what the operator
has said: nodes that are gone for a moment come back, and a share that is too small admits too little, but one that is
too large admits too much. With a file it outlives a restart, so a node that starts while the store is away knows it;
processes of one machine may share the file. Safe under threads.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from .._atomic_file import replace_file
from ..algorithms.base import MAX_EXACT, require_whole
from .shares import Fleet

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

PERIOD_S: Final = 300
PERIODS: Final = 12
"""So many periods are remembered, with the one that runs now: an hour."""
Periods: TypeAlias = dict[int, tuple[str, ...]]
log: Final = logging.getLogger("headgate")


class Membership:
    """The nodes that share the store. `nodes` is the least number; without it, none is known until nodes are seen."""

    def __init__(
        self,
        nodes: int | None = None,
        *,
        me: str = "",
        path: str | os.PathLike[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if nodes is not None:
            require_whole("nodes", nodes, 1, MAX_EXACT)
        self._nodes = nodes
        self._me = me
        self._path: Path | None = None
        self._now = now
        self.join: Callable[[], None] | None = None
        """Called by who may have to know the members some day, until it is `None`: it begins to look for them."""
        self._largest: Periods = {}
        """The members of each period, when there were most of them, and of several such sets the last: of names that
        come and go, those count that are there. The oldest is first; periods are counted from 1970. Never changed in
        place, for others may be reading it."""
        if path is not None:
            self.keep_in(path)

    def rename(self, me: str) -> None:
        """Be known to the others by this name from now on."""
        self._me = me

    def keep_in(self, path: str | os.PathLike[str]) -> None:
        """Keep what is seen in this file from now on, and begin with what is in there."""
        self._path = Path(path)
        self._largest = _larger(self._largest, self._read())

    def saw(self, members: Iterable[str]) -> None:
        """These nodes are there now."""
        seen, period = tuple(sorted(members)), int(self._now()) // PERIOD_S
        known = self._largest.get(period)
        if known is not None and (known == seen or len(known) > len(seen)):
            return
        largest = _larger({**self._largest, period: seen}, self._read())
        self._largest = {at: one for at, one in largest.items() if at > period - PERIODS}
        self._write()

    def fleet(self) -> Fleet:
        """Who shares a limit now. This node is one more if it was never seen with the others."""
        period = int(self._now()) // PERIOD_S
        sets = [one for at, one in self._largest.items() if at > period - PERIODS]
        members = max(reversed(sets), key=len, default=())
        unseen = bool(members and self._me) and self._me not in members
        nodes = max(len(members) + unseen, self._nodes or 1)
        return Fleet(nodes, members, self._me, known=bool(members) or self._nodes is not None)

    def _read(self) -> Periods:
        """What the file holds; nothing if it is missing or unreadable."""
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text())["largest"]
            return {int(at): tuple(map(str, members)) for at, members in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "who shared the store is not known: %s cannot be read (%s)", self._path, error
            )
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        content = json.dumps({"largest": self._largest}).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, private=True)
        except OSError as error:
            log.warning("who shares the store cannot be kept in %s: %s", self._path, error)
            self._path = None


def _larger(one: Periods, other: Periods) -> Periods:
    """The larger membership of each period, in their order; that of `one` where they are as large."""
    periods = sorted({**one, **other})
    return {at: max(one.get(at, ()), other.get(at, ()), key=len) for at in periods}
