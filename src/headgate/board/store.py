"""The interface between the board and its store: a few methods, and their values. A store has no logic of its own.

Everything that is pushed is absolute (this node's count of that second, its whole list), so an exchange whose answer
was lost can be repeated without counting twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..errors import EngineError
from .model import NONE_YET, NOTHING
from .traffic import SecondCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .model import Totals

NO_STRIP: Final = SecondCounts()


class Counts(NamedTuple):
    """What one node has counted: since it started, and in each of its last seconds."""

    totals: Totals = NONE_YET
    strip: SecondCounts = NO_STRIP


NOTHING_COUNTED: Final = Counts()
MAX_AGREED: Final = 1_024
"""How many scopes a store keeps choices for. Beyond that it drops them all, and nodes send those they use again."""


class StoredChoice(NamedTuple):
    """The agreed choice of one scope: a rule, or everything. The store only understands its epoch."""

    epoch: int = 0
    """0 if there is none."""
    blob: bytes = b""


class ChoiceProposal(NamedTuple):
    """Put this choice in the place of the one with the expected epoch."""

    scope: str
    expected_epoch: int
    choice: StoredChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPush:
    """What a node sends."""

    node: str
    identity: bytes | None = None
    """Its heartbeat, when one is due."""
    forget_us: int
    """When silent nodes are forgotten, with everything they sent."""
    life: str = ""
    """Of the process: one that takes the place of another under the same name counts from zero, and not in its
    stead."""
    counts: Counts = NOTHING_COUNTED
    lists: Mapping[str, bytes] = field(default_factory=lambda: NOTHING)
    """Lists of its own, by name; those that have not changed are left out."""
    revision: str = ""
    """Of what people have set, as far as it is known here."""
    scopes: Mapping[str, SecondCounts] = field(default_factory=lambda: NOTHING)
    """What it has counted by rule."""
    agreed_revision: str = ""
    """Of what has been agreed on, as far as it is known here."""

    @property
    def counted_by(self) -> str:
        """The name that counts are stored under: this node, in this life."""
        return f"{self.node}#{self.life}"


class NodeRow(NamedTuple):
    """A node in the store."""

    beat_us: int
    registered_us: int
    identity: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPull:
    """What it gets back."""

    now_us: int
    """The store's clock."""
    nodes: Mapping[str, NodeRow]
    counts: Mapping[str, Counts]
    """By node and life (see `node_of`); also of those that have ended, until their last seconds are over."""
    gone: Totals
    """The totals of lives that ended before."""
    revision: str
    kept: Mapping[str, bytes] | None
    """What people have set, by name; `None` when nothing has changed since the revision that was pushed."""
    scopes: Mapping[str, Mapping[str, SecondCounts]] = field(default_factory=lambda: NOTHING)
    """What was counted by rule, by node and life as `counts` is."""
    agreed_revision: str = ""
    agreed: Mapping[str, StoredChoice] | None = None
    """What has been agreed on, by scope; `None` when nothing has changed."""


def node_of(counted_by: str) -> str:
    """The node that has counted."""
    return counted_by.rpartition("#")[0]


class UnwritableError(EngineError):
    """A file of this node cannot be written, for example because the disk is full. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)

    def __reduce__(self) -> tuple[object, ...]:
        return UnwritableError, (str(self),)


class BoardStore(Protocol):
    """Where a board is stored. Raises `EngineError` when it cannot be reached."""

    lag_seconds: int
    """How many of the newest seconds may still lack counts of other nodes."""
    private_lists: bool
    """Whether a node keeps its lists of keys to itself, and does not put them here."""

    async def exchange(self, push: BoardPush) -> BoardPull:
        """Send this node's part and get the others', in one step."""

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Keep a value under a name, for ever or until then, or remove it; return what was there, once it is safe."""

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        """Replace a choice if its epoch is the expected one, in one step; return what is there now."""

    async def lists(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes that go by this name, by node."""

    async def leave(self, node: str) -> None:
        """Forget a node at once; what it has counted stays counted."""

    async def aclose(self) -> None:
        """Close everything the store holds open."""


class AlgorithmControl(Protocol):
    """Chooses algorithms on this node; the board carries its counts and proposals."""

    def strips(self, second: int) -> Mapping[str, SecondCounts]:
        """What was counted by rule, up to this second."""

    def heard(self, pulled: BoardPull, last: int) -> Iterable[ChoiceProposal]:
        """Take what the store says, and return what to propose; nodes should have told of all seconds up to `last`."""

    def answered(self, scope: str, stored: StoredChoice) -> None:
        """Take what the store answered to a proposal."""
