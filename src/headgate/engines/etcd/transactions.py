"""What etcd is asked: transactions as plain values, and how they may end.

A transaction is carried out as a whole if all of its conditions hold. Without an answer it may have been carried out,
or may be later: `Unsure`. Everything that is written here can be sent again in that case, because its conditions or its
bytes make the second time harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class CreatedAt(NamedTuple):
    """The key was created at this revision; 0: there is no such key."""

    key: str
    revision: int


class ChangedAt(NamedTuple):
    """The key was last changed at this revision; 0: there is no such key."""

    key: str
    revision: int


class Put(NamedTuple):
    """Write a key; with a lease it goes when the lease ends."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete the keys from `key` up to `end`, which stays; without an end only the one."""

    key: str
    end: str = ""


Condition: TypeAlias = CreatedAt | ChangedAt
Operation: TypeAlias = Put | Delete


class TransactionResult(NamedTuple):
    """How a transaction ended: whether its conditions held, and the revision of the store afterwards."""

    succeeded: bool
    revision: int


class Item(NamedTuple):
    """A key that was read."""

    key: str
    value: bytes
    created: int
    changed: int


class Found(NamedTuple):
    """What a read found, all of it at one revision."""

    items: list[Item]
    revision: int


class Exchanged(NamedTuple):
    """What was found when something was written and read in one step."""

    known: bool
    """Whether everything was as it was known, so that the rest was not read."""
    items: list[Item]
    revision: int


class NotDone(Exception):  # noqa: N818 - it is an outcome
    """It was certainly not carried out."""


class Rejected(NotDone):
    """The same, because etcd says no: no right to it, no space left."""


class TooLarge(Rejected):
    """The same, and it never will be done: etcd does not take so much at once."""


class Unsure(Exception):  # noqa: N818 - it is an outcome
    """No answer: it may have been carried out, or may be yet."""


def end_of(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Store(Protocol):
    """What a node asks of etcd. Calls raise `NotDone` or `Unsure`."""

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[Operation],
        *,
        timeout: float = ...,  # noqa: ASYNC109 - how long to wait for an answer
    ) -> TransactionResult:
        """Carry out all operations if all conditions hold; it may be sent more than once."""

    async def read(self, key: str, end: str = "") -> Found:
        """One key, or all from `key` up to `end`, at one revision."""

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        """A new lease, and for how long it was granted."""

    async def keep_alive(self, lease: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Renew a lease; false if there is none (any more)."""

    async def revoke(self, lease: int) -> None:
        """End a lease, and with it the keys that it holds."""

    async def compact(self, revision: int) -> None:
        """Forget the history before a revision."""

    def watch(self, prefix: str, revision: int) -> AsyncIterator[None]:
        """Tell that something under `prefix` may have changed after `revision`."""

    async def close(self) -> None:
        """Let go of the servers."""
