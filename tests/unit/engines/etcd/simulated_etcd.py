"""An etcd that is a dict, with clients whose requests and answers get lost at the step that a test chooses.

It keeps what the engine relies on: transactions are atomic, revisions only grow, a lease that ends deletes its keys.
Everything happens in one event loop, and only when a node asks; nothing is left to chance but what a test leaves to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from headgate.engines.etcd.transactions import (
    CreatedAt,
    Delete,
    Exchanged,
    Found,
    Item,
    NotDone,
    Put,
    Read,
    TooLarge,
    TransactionResult,
    Unsure,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headgate.engines.etcd.transactions import Condition, Operation, Step

T = TypeVar("T")


class SimulatedEtcd:
    """The servers, taken together."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.leases: dict[str, int] = {}
        self.alive: set[int] = set()
        self.revision = 1
        self.news = asyncio.Event()

    def carry_out(
        self, conditions: Sequence[Condition], operations: Sequence[Operation]
    ) -> TransactionResult:
        """A transaction."""
        done = self.branch(conditions, operations, ())
        return TransactionResult(done.known, done.revision)

    def branch(
        self, conditions: Sequence[Condition], steps: Sequence[Step], others: Sequence[Step]
    ) -> Exchanged:
        """A transaction with something to do in either case."""
        holds = all(map(self._holds, conditions))
        chosen = steps if holds else others
        writes = [one for one in chosen if not isinstance(one, Read)]
        if writes:
            self.revision += 1
        for one in writes:
            if isinstance(one, Put):
                self._put(one)
            else:
                self._delete(one)
        found = [item for one in chosen if isinstance(one, Read) for item in self.read(*one)]
        if writes:
            self._tell()
        return Exchanged(holds, found, self.revision)

    def read(self, key: str, end: str = "") -> list[Item]:
        """One key, or all from `key` up to `end`."""
        end = end or key + "\0"
        return sorted(item for name, item in self.items.items() if key <= name < end)

    def _holds(self, condition: Condition) -> bool:
        item = self.items.get(condition.key)
        found = 0
        if item is not None:
            found = item.created if isinstance(condition, CreatedAt) else item.changed
        return found == condition.revision

    def _put(self, put: Put) -> None:
        if put.lease and put.lease not in self.alive:
            raise NotDone("requested lease not found")
        old = self.items.get(put.key)
        created = self.revision if old is None else old.created
        self.items[put.key] = Item(put.key, put.value, created, self.revision)
        if put.lease:
            self.leases[put.key] = put.lease

    def _delete(self, delete: Delete) -> None:
        end = delete.end or delete.key + "\0"
        for key in [key for key in self.items if delete.key <= key < end]:
            del self.items[key]

    def end_lease(self, lease: int) -> None:
        """What happens when nobody renews it, or somebody revokes it."""
        self.alive.discard(lease)
        self.revision += 1
        for key in [key for key, held in self.leases.items() if held == lease]:
            self.leases.pop(key)
            self.items.pop(key, None)
        self._tell()

    def _tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class SimulatedClient:
    """One node's way to them. `fate(step)` says what becomes of its transactions, by their number:

    - `""`: carried out, and answered;
    - `"too large"`: refused for good;
    - `"lost"`: never carried out, and not answered;
    - `"unheard"`: carried out, and not answered;
    - `"late"`: not answered, and carried out only later, when a later transaction has been;
    - `"dead"`: the node dies before it is sent; `"killed"`: after it was carried out, before it hears of it.
    """

    def __init__(self, etcd: SimulatedEtcd, fate: Callable[[int], str] = lambda _: "") -> None:
        self.etcd = etcd
        self.steps = 0
        self.dead = asyncio.Event()
        self._fate = fate
        self._late: list[Callable[[], object]] = []

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[Operation],
        *,
        timeout: float = 0.0,  # noqa: ASYNC109
    ) -> TransactionResult:
        return await self._send(lambda: self.etcd.carry_out(conditions, operations))

    async def branch(
        self, conditions: Sequence[Condition], steps: Sequence[Step], others: Sequence[Step]
    ) -> Exchanged:
        return await self._send(lambda: self.etcd.branch(conditions, steps, others))

    async def _send(self, transaction: Callable[[], T]) -> T:
        await self._pass()
        self.steps += 1
        fate = self._fate(self.steps)
        if fate == "dead":
            await self._die()
        if fate == "too large":
            raise TooLarge("too large")
        if fate == "lost":
            raise Unsure("lost")
        if fate == "late":
            self._late.append(transaction)
            raise Unsure("late")
        outcome = transaction()
        late, self._late = self._late, []
        for one in late:
            with contextlib.suppress(NotDone):
                one()
        if fate == "killed":
            await self._die()
        if fate == "unheard":
            raise Unsure("unheard")
        return outcome

    async def read(self, key: str, end: str = "") -> Found:
        await self._pass()
        return Found(self.etcd.read(key, end), self.etcd.revision)

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        await self._pass()
        self.etcd.revision += 1
        lease = self.etcd.revision
        self.etcd.alive.add(lease)
        return lease, ttl_s

    async def keep_alive(self, lease: int, timeout: float) -> bool:  # noqa: ASYNC109
        await self._pass()
        return lease in self.etcd.alive

    async def revoke(self, lease: int) -> None:
        await self._pass()
        self.etcd.end_lease(lease)

    async def compact(self, revision: int) -> None:
        await self._pass()

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[None]:
        while True:
            news = self.etcd.news
            if self.etcd.revision > revision:
                revision = self.etcd.revision
                yield None
            await news.wait()
            await self._pass()

    async def close(self) -> None:
        pass

    async def _pass(self) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def _die(self) -> None:
        self.dead.set()
        await asyncio.Event().wait()
