"""Requests to etcd: transactions as plain values, and their outcomes.

A transaction is carried out as a whole if all of its conditions hold. Without an answer it may have been carried out,
or may be later: `Unsure`. Everything written here can be sent again in that case, because its conditions or its content
make a second time harmless.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ...errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


class CreatedAt(NamedTuple):
    """The key was created at this revision; 0 means that it does not exist."""

    key: str
    revision: int


class ChangedAt(NamedTuple):
    """The key was last changed at this revision; 0 means that it does not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    """Write a key; with a lease it is deleted when the lease ends."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete the keys from `key` up to but not including `end`; without `end` only `key`."""

    key: str
    end: str = ""


class Read(NamedTuple):
    """Read the keys from `key` up to `end`, which is left out; without an end only the one."""

    key: str
    end: str = ""


Condition: TypeAlias = CreatedAt | ChangedAt
Operation: TypeAlias = Put | Delete
Step: TypeAlias = Operation | Read


class TransactionResult(NamedTuple):
    """The outcome of a transaction: whether its conditions held, and the revision of the store afterwards."""

    succeeded: bool
    revision: int


class Item(NamedTuple):
    """A key that was read."""

    key: str
    value: bytes
    created: int
    changed: int


class Found(NamedTuple):
    """The result of a read, at one revision."""

    items: list[Item]
    revision: int


class Exchanged(NamedTuple):
    """The result of a write and a read in one step."""

    known: bool
    """Whether everything was unchanged, so that the rest was not read."""
    items: list[Item]
    revision: int


class NotDone(Exception):  # noqa: N818 - it is an outcome
    """The call was certainly not carried out."""


class Rejected(NotDone):
    """The same, because etcd refuses: permission denied, or no space left."""


class TooLarge(Rejected):
    """The same, permanently: etcd does not accept that much at once."""


class Unsure(Exception):  # noqa: N818 - it is an outcome
    """No answer: the call may have been carried out, or may be later."""


@contextmanager
def explained() -> Iterator[None]:
    """Raise what etcd did not do as the error that callers of any store expect."""
    try:
        yield
    except NotDone as error:
        raise EngineError(str(error), transient=not isinstance(error, Rejected)) from error
    except Unsure as error:
        raise EngineError(str(error), transient=True, indefinite=True) from error


def end_of(prefix: str) -> str:
    """The end of the range of all keys with this prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Store(Protocol):
    """The interface to etcd. Calls raise `NotDone` or `Unsure`."""

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
        """Create a lease; returns its id and its actual TTL."""

    async def keep_alive(self, lease: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Renew a lease; false if it does not exist (any more)."""

    async def revoke(self, lease: int) -> None:
        """End a lease, which deletes its keys."""

    async def compact(self, revision: int) -> None:
        """Drop the history before a revision."""

    def watch(self, prefix: str, revision: int) -> AsyncIterator[None]:
        """Yield whenever something under `prefix` may have changed after `revision`."""

    async def close(self) -> None:
        """Close the connections."""
