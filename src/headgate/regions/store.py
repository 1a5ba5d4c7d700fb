"""Where a region keeps what it knows of all regions: a few verbs, each one step, and the same in memory.

It lies where the board lies, and is shared by all nodes of the region. So any node can take in what another region
says, and what one has charged no other charges again: `merge` says once by how much a counter has grown.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..clock import SystemClock
from .counters import Replica

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..clock import Clock
    from .counters import CounterTotal, Growth


class LinkState(NamedTuple):
    """What nodes of this region know of the link to another one. Times are the store's; 0 for never."""

    taken_us: int = 0
    """As of when the other region knows what this one has admitted."""
    heard_us: int = 0
    """When it was last heard from."""
    shipper: str = ""
    """The node that tells it."""


class RegionState(NamedTuple):
    """What all nodes of a region share, besides counters."""

    now_us: int
    """The store's clock."""
    epoch: str
    """Of the store: another one if it has lost everything."""
    links: Mapping[str, LinkState]


class Merged(NamedTuple):
    """What came of a merge."""

    state: RegionState
    grown: list[Growth]


class RegionStore(Protocol):
    """Where a region keeps it. Raises `EngineError` when it cannot be reached."""

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """Keep totals that are larger than those that are known; note that a region was heard of."""

    async def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """Counters that changed after a change, and the number of the last of these; all of them after 0."""

    async def lead(self, region: str, node: str, ttl_us: int) -> bool:
        """Whether this node is the one that tells a region, until then; one that does not ask again is replaced."""

    async def note_taken(self, region: str, taken_us: int) -> None:
        """Another region knows what this one had admitted by then."""

    async def counters_of(self, key: str) -> list[CounterTotal]:
        """All counters of a key."""

    async def aclose(self) -> None:
        """Let go of everything the store holds open."""


@dataclass
class MemoryRegionStore:
    """Keeps it in this process: for one node, and for tests of several."""

    clock: Clock = field(default_factory=SystemClock)
    replica: Replica = field(default_factory=Replica)
    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    links: dict[str, LinkState] = field(default_factory=dict)
    leaders: dict[str, tuple[str, int]] = field(default_factory=dict)

    async def merge(self, entries: Sequence[CounterTotal], heard_from: str = "") -> Merged:
        """See `RegionStore.merge`."""
        now_us = self.clock.now_us()
        self.replica.forget(now_us)
        if heard_from:
            self.links[heard_from] = self._link(heard_from)._replace(heard_us=now_us)
        grown = self.replica.merge(entries, now_us)
        return Merged(RegionState(now_us, self.epoch, dict(self.links)), grown)

    async def changes(self, since: int, most: int) -> tuple[list[CounterTotal], int]:
        """See `RegionStore.changes`."""
        return self.replica.changes(since, most)

    async def lead(self, region: str, node: str, ttl_us: int) -> bool:
        """See `RegionStore.lead`."""
        now_us = self.clock.now_us()
        leader, until_us = self.leaders.get(region, ("", 0))
        if leader != node and until_us > now_us:
            return False
        self.leaders[region] = (node, now_us + ttl_us)
        self.links[region] = self._link(region)._replace(shipper=node)
        return True

    async def note_taken(self, region: str, taken_us: int) -> None:
        """See `RegionStore.note_taken`."""
        self.links[region] = self._link(region)._replace(taken_us=taken_us)

    async def counters_of(self, key: str) -> list[CounterTotal]:
        """See `RegionStore.counters_of`."""
        return self.replica.entries_of(key)

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _link(self, region: str) -> LinkState:
        return self.links.get(region, LinkState())
