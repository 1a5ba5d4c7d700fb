"""Reservations: who may still settle, and what a late refund has to know.

A reservation is a record with a time to live. It remembers for each charge where it was taken (`mark`), so
that a refund can give back exactly what has not flowed back by itself. Buckets also need to know how much
other refunds gave back since (`Limit.refund`): that sum is kept per key, and only while a
reservation of that key is open.

A reset ends the reservations of its key: what they took is forgotten, so there is nothing to give back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from ._table import Table
    from .state_file import TableName


Name: TypeAlias = tuple[str, str]
"""The namespace that a reservation was made in, and its token."""

FEW = 64
"""A heap that is longer than what is open by so few is not worth tidying."""


class Held(NamedTuple):
    """One charge of a reservation."""

    table: Table
    key: str
    limit: Limit
    cost: int
    mark: State
    refunded: int
    """What refunds of this key had given back in all when the units were taken."""


class Account:
    """What is kept of a key while a reservation of it is open."""

    __slots__ = ("charges", "names", "refunded")

    def __init__(self) -> None:
        self.refunded = 0
        """What refunds have given back in all."""
        self.charges = 0
        """Charges that are open; the account is closed with the last."""
        self.names: set[Name] = set()
        """The reservations that these belong to."""


class Reservations:
    """All open reservations of an engine. Not safe under threads: the engine holds its lock."""

    def __init__(self) -> None:
        self._open: dict[Name, tuple[int, list[Held]]] = {}
        self._due: list[tuple[int, Name]] = []
        """A heap of when each expires. Those that were ended before stay in it until they are half of it."""
        self._accounts: dict[tuple[TableName, str], Account] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: Name) -> bool:
        return name in self._open

    def make_way(self, namespace: str, token: str | None, now_us: int) -> None:
        """See to it that `token` can be used: drop what has expired, refuse a name that is taken."""
        self.expire(now_us)
        if (namespace, token) in self._open:
            raise UsageError(f"the reservation {token!r} is open already; settle it first")

    def open(
        self, name: Name, expires_us: int, taken: list[tuple[Table, str, Limit, int, State]]
    ) -> None:
        """Record that these units were taken and may be settled until `expires_us`."""
        held = []
        for table, key, limit, cost, mark in taken:
            account = self._accounts.setdefault((table.name, key), Account())
            account.charges += 1
            account.names.add(name)
            held.append(Held(table, key, limit, cost, mark, account.refunded))
        self._open[name] = (expires_us, held)
        heappush(self._due, (expires_us, name))

    def close(self, name: Name) -> list[Held]:
        """End a reservation; each is ended once, and then unknown."""
        _, held = self._open.pop(name)
        for one in held:
            self._accounts[one.table.name, one.key].names.discard(name)
        if len(self._due) > 2 * len(self._open) + FEW:
            self._due = [(expires_us, other) for other, (expires_us, _) in self._open.items()]
            heapify(self._due)
        return held

    def refunded_since(self, held: Held) -> int:
        """What other refunds of this key gave back since the units were taken."""
        return self._accounts[held.table.name, held.key].refunded - held.refunded

    def forget(self, held: Held, given: int) -> None:
        """Add `given` to the key's sum, and drop the sum with the last reservation of the key."""
        account = self._accounts[held.table.name, held.key]
        account.refunded += given
        account.charges -= 1
        if not account.charges:
            del self._accounts[held.table.name, held.key]

    def expire(self, now_us: int) -> None:
        """Drop reservations that nobody settled in time; their units stay charged."""
        while self._due and self._due[0][0] <= now_us:
            expires_us, name = heappop(self._due)
            if name in self._open and self._open[name][0] == expires_us:
                self._end(name)

    def end_key(self, table: Table, key: str) -> None:
        """End the reservations of a key that is forgotten, with whatever else they hold: it stays charged."""
        account = self._accounts.get((table.name, key))
        for name in list(account.names) if account is not None else ():
            self._end(name)

    def end_keys(self, table: Table, chosen: Callable[[str], bool]) -> None:
        """The same for every key of a table that is chosen."""
        for name, key in list(self._accounts):
            if name == table.name and chosen(key):
                self.end_key(table, key)

    def _end(self, name: Name) -> None:
        for held in self.close(name):
            self.forget(held, 0)
