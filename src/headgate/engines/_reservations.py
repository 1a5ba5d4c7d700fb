"""Reservations: who may still settle, and what a late refund has to know.

A reservation is a record with a time to live. It remembers for each charge where it was taken (`mark`), so
that a refund can give back exactly what has not flowed back by itself. Buckets also need to know how much
other refunds gave back since (`Limit.refund`): that sum is kept per key, and only while a
reservation of that key is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..algorithms import Limit, State
    from ._table import Table


class Held(NamedTuple):
    """One charge of a reservation."""

    table: Table
    key: str
    limit: Limit
    cost: int
    mark: State
    refunded: int
    """What refunds of this key had given back in all when the units were taken."""


class Reservations:
    """All open reservations of an engine. Not safe under threads: the engine holds its lock."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, list[Held]]] = {}
        self._refunded: dict[tuple[int, str], list[int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, token: str) -> bool:
        return token in self._open

    def make_way(self, token: str | None, now_us: int) -> None:
        """See to it that `token` can be used: drop what has expired, refuse a name that is taken."""
        self.expire(now_us)
        if token in self._open:
            raise UsageError(f"the reservation {token!r} is open already; settle it first")

    def open(
        self, token: str, expires_us: int, taken: list[tuple[Table, str, Limit, int, State]]
    ) -> None:
        """Record that these units were taken and may be settled until `expires_us`."""
        held = []
        for table, key, limit, cost, mark in taken:
            total = self._refunded.setdefault((id(table), key), [0, 0])
            total[1] += 1
            held.append(Held(table, key, limit, cost, mark, total[0]))
        self._open[token] = (expires_us, held)

    def close(self, token: str) -> list[Held]:
        """End a reservation; each is ended once, and then unknown."""
        _, held = self._open.pop(token)
        return held

    def refunded_since(self, held: Held) -> int:
        """What other refunds of this key gave back since the units were taken."""
        return self._refunded[id(held.table), held.key][0] - held.refunded

    def forget(self, held: Held, given: int) -> None:
        """Add `given` to the key's sum, and drop the sum with the last reservation of the key."""
        total = self._refunded[id(held.table), held.key]
        total[0] += given
        total[1] -= 1
        if not total[1]:
            del self._refunded[id(held.table), held.key]

    def expire(self, now_us: int) -> None:
        """Drop reservations that nobody settled in time; their units stay charged."""
        for token in list(self._expired(now_us)):
            for held in self.close(token):
                self.forget(held, 0)

    def _expired(self, now_us: int) -> Iterator[str]:
        return (token for token, (expires_us, _) in self._open.items() if expires_us <= now_us)
