"""Reservations: who may still settle, and what a late refund has to know.

A reservation is a record with a time to live. It remembers for each charge where it was taken (`mark`), so
that a refund can give back exactly what has not flowed back by itself. Buckets also need to know how much
other refunds gave back since (`Limit.refund`): that sum is kept per key, and only while a
reservation of that key is open.

A reset ends the reservations of its key: what they took is forgotten, so there is nothing to give back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from ._table import Table


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

    __slots__ = ("charges", "refunded", "tokens")

    def __init__(self) -> None:
        self.refunded = 0
        """What refunds have given back in all."""
        self.charges = 0
        """Charges that are open; the account is closed with the last."""
        self.tokens: set[str] = set()
        """The reservations that these belong to."""


class Reservations:
    """All open reservations of an engine. Not safe under threads: the engine holds its lock."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, list[Held]]] = {}
        self._due: list[tuple[int, str]] = []
        """A heap of when each expires. Those that were ended before stay in it until they are half of it."""
        self._accounts: dict[tuple[int, str], Account] = {}

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
            account = self._accounts.setdefault((id(table), key), Account())
            account.charges += 1
            account.tokens.add(token)
            held.append(Held(table, key, limit, cost, mark, account.refunded))
        self._open[token] = (expires_us, held)
        heappush(self._due, (expires_us, token))

    def close(self, token: str) -> list[Held]:
        """End a reservation; each is ended once, and then unknown."""
        _, held = self._open.pop(token)
        for one in held:
            self._accounts[id(one.table), one.key].tokens.discard(token)
        if len(self._due) > 2 * len(self._open) + FEW:
            self._due = [(expires_us, name) for name, (expires_us, _) in self._open.items()]
            heapify(self._due)
        return held

    def refunded_since(self, held: Held) -> int:
        """What other refunds of this key gave back since the units were taken."""
        return self._accounts[id(held.table), held.key].refunded - held.refunded

    def forget(self, held: Held, given: int) -> None:
        """Add `given` to the key's sum, and drop the sum with the last reservation of the key."""
        account = self._accounts[id(held.table), held.key]
        account.refunded += given
        account.charges -= 1
        if not account.charges:
            del self._accounts[id(held.table), held.key]

    def expire(self, now_us: int) -> None:
        """Drop reservations that nobody settled in time; their units stay charged."""
        while self._due and self._due[0][0] <= now_us:
            expires_us, token = heappop(self._due)
            if token in self._open and self._open[token][0] == expires_us:
                self._end(token)

    def end_key(self, table: Table, key: str) -> None:
        """End the reservations of a key that is forgotten, with whatever else they hold: it stays charged."""
        account = self._accounts.get((id(table), key))
        for token in list(account.tokens) if account is not None else ():
            self._end(token)

    def end_keys(self, table: Table, chosen: Callable[[str], bool]) -> None:
        """The same for every key of a table that is chosen."""
        for table_id, key in list(self._accounts):
            if table_id == id(table) and chosen(key):
                self.end_key(table, key)

    def _end(self, token: str) -> None:
        for held in self.close(token):
            self.forget(held, 0)
