"""The seam between the board and where it lies: three verbs, and the values they carry. No logic on the far side.

Everything that is pushed is absolute (this node's count of that second, its whole list), so an exchange whose answer was lost
can be repeated without counting twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..errors import EngineError
from .model import NONE_YET, NOTHING
from .traffic import Strip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .model import Totals

NO_STRIP: Final = Strip()


class Counts(NamedTuple):
    """What one node has counted: since it started, and in each of its last seconds."""

    totals: Totals = NONE_YET
    strip: Strip = NO_STRIP


NOTHING_COUNTED: Final = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What a node brings."""

    node: str
    identity: bytes | None = None
    """Its heartbeat, when one is due."""
    forget_us: int
    """When nodes that have not been heard of are forgotten, with everything they brought."""
    counts: Counts = NOTHING_COUNTED
    sheets: Mapping[str, bytes] = field(default_factory=lambda: NOTHING)
    """Lists of its own, by name; those that have not changed are left out."""
    revision: str = ""
    """Of what people have set, as far as it is known here."""


class Row(NamedTuple):
    """A node in the store."""

    beat_us: int
    registered_us: int
    identity: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What it takes along."""

    now_us: int
    """The store's clock."""
    nodes: Mapping[str, Row]
    counts: Mapping[str, Counts]
    """By node."""
    gone: Totals
    """What nodes had counted that are gone."""
    revision: str
    kept: Mapping[str, bytes] | None
    """What people have set, by name; `None` when nothing has changed since the revision that was pushed."""


class UnwritableError(EngineError):
    """A file of this node that keeps what people do cannot be written: its disk is full, say. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)

    def __reduce__(self) -> tuple[object, ...]:
        return UnwritableError, (str(self),)


class Store(Protocol):
    """Where a board lies. Raises `EngineError` when it cannot be reached."""

    lag_seconds: int
    """How many of the newest seconds may still lack pieces of other nodes."""

    async def exchange(self, push: Push) -> Pulled:
        """Bring this node's part and take the others' along, in one step."""

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Keep a value under a name, for ever or until then, or remove it; return what was there, once it is safe."""

    async def sheets(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes that go by this name, by node."""

    async def leave(self, node: str) -> None:
        """Forget a node at once; what it has counted stays counted."""

    async def aclose(self) -> None:
        """Let go of everything the store holds open."""
