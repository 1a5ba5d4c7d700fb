"""The interface between the board and its store: a few methods and their values. A store contains no logic.

Everything pushed is absolute (this node's count of a second, its whole list), so an exchange whose answer was lost can
be repeated without counting twice.
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
    """One node's counts: since it started, and in each of its last seconds."""

    totals: Totals = NONE_YET
    strip: SecondCounts = NO_STRIP


NOTHING_COUNTED: Final = Counts()
MAX_AGREED: Final = 1_024
"""How many scopes a store keeps choices for. Beyond that it drops them all, and nodes propose again what they use."""


class StoredChoice(NamedTuple):
    """The agreed choice of one scope: a rule, or everything. The store only looks at its epoch."""

    epoch: int = 0
    """0 if there is none."""
    blob: bytes = b""


class ChoiceProposal(NamedTuple):
    """Replace the choice that has the expected epoch with this one."""

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
    """How long after their last heartbeat silent nodes are forgotten, with everything they sent."""
    life: str = ""
    """Identifies the process: a new process under the same name counts from zero, without overwriting the old
    counts."""
    counts: Counts = NOTHING_COUNTED
    lists: Mapping[str, bytes] = field(default_factory=lambda: NOTHING)
    """This node's lists, by name; unchanged ones are left out."""
    revision: str = ""
    """The last known revision of the per-key settings."""
    scopes: Mapping[str, SecondCounts] = field(default_factory=lambda: NOTHING)
    """Its counts by rule."""
    agreed_revision: str = ""
    """The last known revision of the agreed choices."""

    @property
    def counted_by(self) -> str:
        """The name that its counts are stored under: node and life."""
        return f"{self.node}#{self.life}"


class NodeRow(NamedTuple):
    """A node in the store."""

    beat_us: int
    registered_us: int
    identity: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPull:
    """What a node gets back."""

    now_us: int
    """The store's clock."""
    nodes: Mapping[str, NodeRow]
    counts: Mapping[str, Counts]
    """By node and life (see `node_of`); lives that have ended are included until their last seconds are over."""
    gone: Totals
    """The totals of lives that ended before that."""
    revision: str
    kept: Mapping[str, bytes] | None
    """All per-key settings, by name; `None` if unchanged since the pushed revision."""
    scopes: Mapping[str, Mapping[str, SecondCounts]] = field(default_factory=lambda: NOTHING)
    """Counts by rule, by node and life like `counts`."""
    agreed_revision: str = ""
    agreed: Mapping[str, StoredChoice] | None = None
    """The agreed choices, by scope; `None` if unchanged."""


def node_of(counted_by: str) -> str:
    """The node in the name of a counter."""
    return counted_by.rpartition("#")[0]


class UnwritableError(EngineError):
    """A file of this node cannot be written, for example because the disk is full. Nothing has changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)

    def __reduce__(self) -> tuple[object, ...]:
        return UnwritableError, (str(self),)


class BoardStore(Protocol):
    """Where a board is stored. Raises `EngineError` when it cannot be reached."""

    lag_seconds: int
    """How many of the newest seconds may still lack counts of other nodes."""
    private_lists: bool
    """Whether nodes do not share their lists of keys here."""

    async def exchange(self, push: BoardPush) -> BoardPull:
        """Send this node's part and get everybody's, in one step."""

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Store a value under a name, permanently or until then, or remove it; return the old value once durable."""

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        """Replace a choice if it has the expected epoch, in one step; return the stored choice."""

    async def lists(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes under this name, by node."""

    async def leave(self, node: str) -> None:
        """Forget a node at once, but keep its counts."""

    async def aclose(self) -> None:
        """Close all connections and files."""


class AlgorithmControl(Protocol):
    """Chooses algorithms on this node; the board transports its counts and proposals."""

    def strips(self, second: int) -> Mapping[str, SecondCounts]:
        """Counts by rule, up to this second."""

    def process_pull(self, pulled: BoardPull, last: int) -> Iterable[ChoiceProposal]:
        """Process the store's answer and return proposals; nodes should have reported all seconds up to `last`."""

    def process_answer(self, scope: str, stored: StoredChoice) -> None:
        """Process the store's answer to a proposal."""
