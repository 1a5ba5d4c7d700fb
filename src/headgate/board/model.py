"""The values that the board shows. Times are microseconds of the store's clock, never of a node's."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..algorithms import Limit
    from .key_settings import Ban, KeyOverride

NodeState: TypeAlias = Literal["Up", "Down"]
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What a node sends about itself with every heartbeat."""

    id: str
    address: str
    version: str = ""
    engine: str = ""
    rules: str = ""
    """The version of the rules that it uses."""
    ttl_us: int = 30_000_000
    """How long others consider it up without a heartbeat."""
    draining: bool = False
    is_limiter: bool = False
    """Whether it is a limiter of the library, which only counts as one more user of the store."""

    def to_bytes(self) -> bytes:
        """Serialise it for the store."""
        words = {name: getattr(self, name) for name in self.__slots__ if name != "id"}
        return json.dumps(words, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, node_id: str, blob: bytes) -> NodeIdentity:
        """Read it back; fields from a later version are ignored."""
        words = json.loads(blob)
        return cls(id=node_id, **{name: words[name] for name in cls.__slots__ if name in words})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node as other nodes see it."""

    identity: NodeIdentity
    state: NodeState
    registered_at_us: int
    last_seen_us: int
    requests: int
    """Since it started."""
    denied: int


class Second(NamedTuple):
    """The counts of all nodes for one second."""

    at: int
    """Seconds since the epoch."""
    requests: int = 0
    denied: int = 0


class Block(NamedTuple):
    """A key that is denied right now."""

    key: str
    until_us: int
    reason: str
    rule: str | None = None
    window_us: int = 0
    denied: int = 0
    """Denials since it was blocked."""


class Totals(NamedTuple):
    """Counters that only grow, of one node or all."""

    requests: int = 0
    denied: int = 0


NONE_YET: Final = Totals()


class Report(NamedTuple):
    """What a node reports once a second."""

    totals: Totals = NONE_YET
    """Its counters since it started."""
    lists: Mapping[str, bytes] = NOTHING
    """Its lists, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardView:
    """Everything known at one moment. Hot paths read `limits`, `rule_limits` and `bans`; none has expired entries."""

    at_us: int = 0
    nodes: tuple[NodeSeen, ...] = ()
    limiters: tuple[NodeSeen, ...] = ()
    """Limiters of the library that use the same store and namespace."""
    seconds: tuple[Second, ...] = ()
    """The last ten, oldest first, including those without traffic."""
    totals: Totals = NONE_YET
    limits: Mapping[str, Limit] = field(default_factory=lambda: NOTHING)
    """Limits in force instead of the default, by key; a temporary override wins over a permanent limit."""
    rule_limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=lambda: NOTHING)
    """Limits in force instead of the rule's, by rule and key."""
    bans: Mapping[str, Ban] = field(default_factory=lambda: NOTHING)
    key_limits: Mapping[str, KeyOverride] = field(default_factory=lambda: NOTHING)
    """Permanent limits, with who set them and why."""
    overrides: Mapping[str, KeyOverride] = field(default_factory=lambda: NOTHING)
    """Temporary limits."""
    rule_overrides: Mapping[str, Mapping[str, KeyOverride]] = field(default_factory=lambda: NOTHING)
    """Temporary limits for a single rule, by rule and key."""

    @property
    def up(self) -> list[str]:
        """The names of all nodes and limiters that share the store now."""
        everybody = (*self.nodes, *self.limiters)
        return [seen.identity.id for seen in everybody if seen.state == "Up"]
