"""What the board shows, as values. Times are microseconds of the store's clock, never of a node's."""

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
    """What a node says about itself with every heartbeat."""

    id: str
    address: str
    version: str = ""
    engine: str = ""
    rules: str = ""
    """The version of the rules that it follows."""
    ttl_us: int = 30_000_000
    """How long others consider it up without a heartbeat."""
    draining: bool = False
    is_limiter: bool = False
    """Whether it is a limiter of the library, which only counts as one of those who share the store."""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        words = {name: getattr(self, name) for name in self.__slots__ if name != "id"}
        return json.dumps(words, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, node_id: str, blob: bytes) -> NodeIdentity:
        """Read it back; fields added by a later version are ignored."""
        words = json.loads(blob)
        return cls(id=node_id, **{name: words[name] for name in cls.__slots__ if name in words})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node as the others see it."""

    identity: NodeIdentity
    state: NodeState
    registered_at_us: int
    last_seen_us: int
    requests: int
    """Since it started."""
    denied: int


class Second(NamedTuple):
    """What all nodes together saw in one second."""

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
    """How often it was denied since it was blocked."""


class Totals(NamedTuple):
    """Counts that only grow, of a node or of all of them."""

    requests: int = 0
    denied: int = 0


NONE_YET: Final = Totals()


class Report(NamedTuple):
    """What a node has to say, once a second."""

    totals: Totals = NONE_YET
    """What it has counted since it started."""
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
    """The last ten, the oldest first, with those in which nothing happened."""
    totals: Totals = NONE_YET
    limits: Mapping[str, Limit] = field(default_factory=lambda: NOTHING)
    """By key: what holds instead of the default, a temporary override before a lasting limit."""
    rule_limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=lambda: NOTHING)
    """By rule and key: what holds instead of the rule's limits."""
    bans: Mapping[str, Ban] = field(default_factory=lambda: NOTHING)
    key_limits: Mapping[str, KeyOverride] = field(default_factory=lambda: NOTHING)
    """The lasting limits, with who set them and why."""
    overrides: Mapping[str, KeyOverride] = field(default_factory=lambda: NOTHING)
    """The temporary ones."""
    rule_overrides: Mapping[str, Mapping[str, KeyOverride]] = field(default_factory=lambda: NOTHING)
    """The temporary ones that name a rule, by rule and key."""

    @property
    def up(self) -> list[str]:
        """The names of all who share the store now."""
        everybody = (*self.nodes, *self.limiters)
        return [seen.identity.id for seen in everybody if seen.state == "Up"]
