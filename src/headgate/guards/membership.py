"""Membership: how many nodes share a store, for when they cannot ask it.

It is the largest number of nodes seen together within the last hour, and never less than the operator configured: nodes
that are briefly gone come back, and too small a share admits too little, but too large a share admits too much. Stored
in a file it survives restarts, so a node that starts during an outage knows it; processes on one machine may share the
file. Safe under threads.
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
"""How many periods are remembered, including the current one: an hour in all."""
Periods: TypeAlias = dict[int, tuple[str, ...]]
log: Final = logging.getLogger("headgate")


class Membership:
    """The nodes that share the store. `nodes` is the minimum; without it, none is known until nodes are seen."""

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
        """Starts looking for members; called by guards that may need them, until it is `None`."""
        self._largest: Periods = {}
        """The largest membership of each period, and the latest of several equally large ones: with nodes that come and
        go, those count that are still there. Oldest first; periods are counted from 1970. Never changed in place, as
        other threads may be reading it."""
        if path is not None:
            self.keep_in(path)

    def rename(self, me: str) -> None:
        """Change the name under which the other nodes know this one."""
        self._me = me

    def keep_in(self, path: str | os.PathLike[str]) -> None:
        """Store the membership in this file from now on, and start with its contents."""
        self._path = Path(path)
        self._largest = _larger(self._largest, self._read())

    def saw(self, members: Iterable[str]) -> None:
        """Record that these nodes are alive now."""
        seen, period = tuple(sorted(members)), int(self._now()) // PERIOD_S
        known = self._largest.get(period)
        if known is not None and (known == seen or len(known) > len(seen)):
            return
        largest = _larger({**self._largest, period: seen}, self._read())
        self._largest = {at: one for at, one in largest.items() if at > period - PERIODS}
        self._write()

    def fleet(self) -> Fleet:
        """The nodes that share a limit now, counting this one even if it was never seen with the others."""
        period = int(self._now()) // PERIOD_S
        sets = [one for at, one in self._largest.items() if at > period - PERIODS]
        members = max(reversed(sets), key=len, default=())
        unseen = bool(members and self._me) and self._me not in members
        nodes = max(len(members) + unseen, self._nodes or 1)
        return Fleet(nodes, members, self._me, known=bool(members) or self._nodes is not None)

    def _read(self) -> Periods:
        """The contents of the file; empty if it is missing or unreadable."""
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text())["largest"]
            return {int(at): tuple(map(str, members)) for at, members in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("cannot read which nodes share the store from %s: %s", self._path, error)
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        content = json.dumps({"largest": self._largest}).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, private=True)
        except OSError as error:
            log.warning("cannot write which nodes share the store to %s: %s", self._path, error)
            self._path = None


def _larger(one: Periods, other: Periods) -> Periods:
    """The larger membership of each period, in order; `one` wins ties."""
    periods = sorted({**one, **other})
    return {at: max(one.get(at, ()), other.get(at, ()), key=len) for at in periods}
