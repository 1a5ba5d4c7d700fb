"""This process as a node on all etcd clusters that hold its shards: usually one.

Shard x is on cluster x modulo their number. A node joins each cluster and has a separate fence and journal in each, so
a problem in one does not hold up the others. Everything else is common: the number of shards, the hash of keys, the
clock. A request over shards of several clusters runs step by step, as over those of several owners.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ..meter import Meter
from .client import AsyncEtcdClient
from .cluster_clock import ClusterClock
from .node import Bell, Common, EtcdNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...clock import Clock
    from .options import EtcdOptions
    from .records import ClusterSettings
    from .shard import Shard
    from .transactions import Store

HIGHEST: Final = frozenset({"etcd_members", "etcd_commit_age_seconds"})
"""For these metrics the maximum counts; the others are summed."""


class EtcdNodes:
    """One node per etcd cluster."""

    def __init__(
        self,
        options: EtcdOptions,
        clock: Clock | None = None,
        connect: Callable[[EtcdOptions], Store] = AsyncEtcdClient,
    ) -> None:
        self._cluster_clock = ClusterClock() if clock is None else None
        self.clock: Clock = self._cluster_clock or clock  # type: ignore[assignment] # One is not None.
        self.serving: list[Shard | None] = []
        """The shards that this process decides, by number; empty until their number is known."""
        self.changed = Bell()
        self.meter = Meter(self.gauges, has_batches=True)
        common = Common(self.clock, self._cluster_clock, self.serving, self.changed, self.meter)
        first, *others = options.parts
        count = 1 + len(others)
        self.first = EtcdNode(first, common, connect, parts=count)
        self._every = [self.first]
        for part, one in enumerate(others, 1):
            node = EtcdNode(one, common, connect, first=self.first, part=part, parts=count)
            self._every.append(node)
        for node in self._every if others else ():
            node.others_work = partial(self._is_open_without, node)

    def _is_open_without(self, one: EtcdNode) -> bool:
        """Whether some other etcd cluster than this node's accepts decisions."""
        return any(
            node.own is not None and node.own.is_open() for node in self._every if node is not one
        )

    @property
    def settings(self) -> ClusterSettings | None:
        """What all nodes agree on; `None` until etcd has answered."""
        return self.first.settings

    def of(self, number: int) -> EtcdNode:
        """The node on the etcd cluster of this shard."""
        return self._every[number % len(self._every)]

    def start(self) -> None:
        """Join in the background; does nothing if that is under way."""
        for node in self._every:
            node.start()

    async def ready(self, ends: float) -> None:
        """Wait until the settings of the cluster are known."""
        self.start()
        if self.first.settings is None:
            await self.first.ready(ends)

    def gauges(self) -> dict[str, float]:
        """Values for operators, by the name of the metric."""
        clock = self._cluster_clock
        found = {"etcd_clock_lead_seconds": 0.0 if clock is None else clock.lead_us / 1e6}
        for node in self._every:
            for name, value in node.gauges().items():
                before = found.get(name, 0.0)
                found[name] = max(before, value) if name in HIGHEST else before + value
        return found

    async def hand_over(self) -> None:
        """Let other nodes take over this node's shards, and ask them from now on; does nothing if there are none."""
        await asyncio.gather(*(node.hand_over() for node in self._every))

    async def leave(self) -> None:
        """Hand everything over, and leave."""
        await asyncio.gather(*(node.leave() for node in self._every))
