"""Unresponsive servers: which servers of a Cluster do not answer, so that callers do not wait for them.

A server that has failed for as long as a decision may take is **skipped**: calls for it fail at once, and every
`SKIP_S` one caller tries it again. This is tracked per server, because a Cluster that has lost one still works for the
keys of all others. The circuit breaker in front of the engine covers the whole store: it must not open for one server
while others answer (`in_part`).

Slots that belong to no server at all are treated as if they belonged to one, `NO_ADDRESS`, that does not answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .options import Address

NO_ADDRESS: Final[Address] = ("", 0)
SKIP_S: Final = 0.1


class UnresponsiveServers:
    """Which servers answer, and since when others do not. Thread-safe: each step is one operation on a dict or set."""

    def __init__(self, patience_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._now = now
        self._since: dict[Address, float] = {}
        """The first failure of each server since its last answer."""
        self._skipped_until: dict[Address, float] = {}
        self._answering: set[Address] = set()
        """Servers whose last call was answered."""
        self.on_change: Callable[[Address], None] | None = None
        """Called when a server starts to rest, and when it answers again."""

    def failed(self, address: Address) -> None:
        """Record that a server did not answer, or could not be reached."""
        now = self._now()
        since = self._since.setdefault(address, now)
        self._answering.discard(address)
        if now - since >= self._patience_s:
            begins = address not in self._skipped_until
            self._skipped_until[address] = now + SKIP_S
            if begins and self.on_change is not None:
                self.on_change(address)

    def answered(self, address: Address) -> None:
        """Record an answer of a server."""
        if address != NO_ADDRESS:
            self._answering.add(address)
        if address in self._since:
            self._since.pop(address, None)
            skipped_until = self._skipped_until.pop(address, None)
            if skipped_until is not None and self.on_change is not None:
                self.on_change(address)

    def is_unresponsive(self, address: Address) -> bool:
        """Whether it is skipped, or one caller is trying it now."""
        return address in self._skipped_until

    def skips(self, address: Address) -> bool:
        """Whether to skip a server for now; now and then one caller gets false, and tries it."""
        until = self._skipped_until.get(address)
        if until is None:
            return False
        now = self._now()
        if now < until:
            return True
        self._skipped_until[address] = now + max(SKIP_S, self._patience_s)
        return False

    def in_part(self) -> bool:
        """Whether some servers answer, as far as they have been called."""
        return bool(self._answering)

    def keep_only(self, servers: Collection[Address]) -> None:
        """Forget all servers but these."""
        for address in [one for one in list(self._answering) if one not in servers]:
            self._answering.discard(address)
