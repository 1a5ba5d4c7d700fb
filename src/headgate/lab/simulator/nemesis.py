"""The nemesis: which faults happen, when, where and for how long. All of them end before it does.

Each kind of fault is one method. It breaks something, waits, heals it, and records the time during which that could
have an effect. The store, each link and each node have one fault at a time; faults of different targets may overlap.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .sometimes import Sometimes

if TYPE_CHECKING:
    from collections import Counter
    from random import Random

    from ...algorithms import Limit
    from .clients import HistoryLines
    from .loop import SimulatedLoop
    from .node import SimulatedNode
    from .store import SimulatedStore

LAG_US: Final = 60_000
"""How far a replica may lag behind."""
SLOW_US: Final = ((2_000, 6_000), (10_000, 40_000), (50_000, 250_000))
LOOK_US: Final = 500
MARGIN_US: Final = 60_000
DRAIN_US: Final = 600_000
"""How long after a fault something that was sent during it may still arrive."""
STEPS_US: Final = (1_000, 100_000, 900_000, 5_000_000, 3_600_000_000)

STORE_FAULTS: Final = (
    "killed_empty", "killed_kept", "failed_over", "stopped", "slow", "full", "clock_stepped",
)  # fmt: skip
NODE_FAULTS: Final = ("cut_off", "deaf", "refused", "reset", "node_slow", "node_killed", "paused")
FAULTS: Final = (*STORE_FAULTS, *NODE_FAULTS)


@dataclass(eq=False)
class Nemesis:
    """Injects faults."""

    loop: SimulatedLoop
    book: HistoryLines
    store: SimulatedStore
    nodes: list[SimulatedNode]
    limit: Limit
    kinds: list[str]
    ends: int
    rng: Random
    reached: Counter[Sometimes]
    happened: list[tuple[str, int, int]] = field(default_factory=list)
    _broken: dict[str, int] = field(default_factory=dict)
    """What is broken now, and since when."""

    def start(self, many: int) -> None:
        """Schedule this many faults; those whose target is busy by then are skipped."""
        for _ in range(many if self.kinds else 0):
            at = self.loop.now + self.rng.randrange(1, self.ends - self.loop.now)
            kind, node = self.rng.choice(self.kinds), self.rng.choice(self.nodes)
            self.loop.create_task(self._fault(at, kind, node))

    async def _fault(self, at: int, kind: str, node: SimulatedNode) -> None:
        await asyncio.sleep((at - self.loop.now) / 1e6)
        place = "store" if kind in STORE_FAULTS else node.name
        left_us = self.ends - self.loop.now
        if place in self._broken or left_us < 2 * MARGIN_US:
            return
        if self._broken:
            self.reached[Sometimes.SEVERAL_FAULTS] += 1
        self._broken[place] = self.loop.now
        lasts_us = self.rng.choice(
            (self.rng.randint(1_000, 20_000), self.rng.randint(20_000, 1_500_000))
        )
        await getattr(self, f"_{kind}")(node, min(lasts_us, left_us - MARGIN_US))
        self.happened.append((kind, at, self.loop.now))
        del self._broken[place]

    async def _busy(self, node: SimulatedNode) -> None:
        """Half of the time, wait a while until the node is calling the store, or holds a chunk."""
        leased = self.limit.leased
        looks = 100 if leased or self.rng.random() < 0.5 else 0
        while (
            looks
            and (node.link.idle() if not leased else not node.leases.totals().unspent)
            and self.loop.now + MARGIN_US < self.ends
        ):
            looks -= 1
            await asyncio.sleep(LOOK_US / 1e6)

    async def _wait(self, lasts_us: int) -> None:
        window_us = self.limit.window_us
        if window_us and (self.loop.now % window_us) + lasts_us >= window_us:
            self.reached[Sometimes.WINDOW_AWAY] += 1
        await asyncio.sleep(lasts_us / 1e6)

    def _write(self, fault: str, name: str, t0: int, **fields: Any) -> None:
        """Record a fault that is over, although something sent during it may still arrive."""
        self.book.fault(fault, name=name, t0=t0, t1=self.loop.now, heal=self.loop.now, **fields)

    # Faults of the store

    async def _killed_empty(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        self._kill()
        await self._wait(lasts_us)
        self.store.start([])
        self.reached[Sometimes.STARTED_EMPTY] += 1
        self._write("store_restart", "store killed, back without its state", t0)

    async def _killed_kept(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        log = self._kill()
        await self._wait(lasts_us)
        self.store.start(log)
        self.reached[Sometimes.STARTED_FULL] += 1
        self._write("store_kept", "store killed, back with its state", t0)

    async def _failed_over(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        replicated = t0 - self.rng.choice((0, self.rng.randrange(LAG_US)))
        log = self._kill()
        await self._wait(lasts_us)
        kept = [entry for entry in log if entry.done <= replicated]
        lost = len(kept) < len(log)
        self.reached[Sometimes.FORGOTTEN if lost else Sometimes.FAILOVER_KEPT] += 1
        self.store.start(kept)
        self._write("failover", "failover", t0)

    async def _stopped(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        self.store.stopped = True
        await self._wait(lasts_us)
        self.store.go_on()
        self._write("store_down", "store stopped", t0)

    async def _full(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        self.store.full = True
        await self._wait(lasts_us)
        self.store.full = False
        self._write("store_down", "store full", t0)

    async def _slow(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        self.store.slow_us = self.rng.choice(SLOW_US)
        await self._wait(lasts_us)
        self.store.slow_us = None
        self._write("store_slow", "store slow", t0)

    async def _clock_stepped(self, _: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        step_us = self.rng.choice(STEPS_US) * self.rng.choice((1, -1))
        self._step(step_us)
        await self._wait(lasts_us)
        self._step(-step_us)
        self._write("clock_step", "store's clock stepped", t0, step_us=step_us)

    def _kill(self) -> list[Any]:
        log = self.store.kill()
        for node in self.nodes:
            node.link.reset()
        return log

    def _step(self, step_us: int) -> None:
        window_us = self.limit.window_us
        if step_us < 0:
            self.reached[Sometimes.STEPPED_BACK] += 1
        elif window_us and self.store.now_us() % window_us + step_us >= window_us:
            self.reached[Sometimes.STEPPED_OVER] += 1
        self.store.offset_us += step_us

    # Faults of a node, or of its connection to the store

    async def _cut_off(self, node: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        node.link.cut = True
        await self._wait(lasts_us)
        node.link.heal()
        self._write("partition", f"{node.name} cut off", t0, node=node.name, nodes=1)

    async def _deaf(self, node: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        node.link.deaf = True
        await self._wait(lasts_us)
        node.link.heal()
        self._write("partition", f"{node.name} hears nothing", t0, node=node.name, nodes=1)

    async def _refused(self, node: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        node.link.refused = True
        await self._wait(lasts_us)
        node.link.heal()
        self._write("partition", f"{node.name} refused", t0, node=node.name, nodes=1)

    async def _reset(self, node: SimulatedNode, lasts_us: int) -> None:
        """Break all of a node's connections every few milliseconds."""
        t0 = self.loop.now
        for _ in range(self.rng.randint(1, 5)):
            node.link.reset()
            await self._wait(lasts_us // 5)
        self._write("partition", f"{node.name} reset", t0, node=node.name, nodes=1)

    async def _node_slow(self, node: SimulatedNode, lasts_us: int) -> None:
        t0 = self.loop.now
        node.link.slow_us = self.rng.choice(SLOW_US)
        await self._wait(lasts_us)
        node.link.heal()
        self._write("partition", f"{node.name} slow", t0, node=node.name, nodes=1)

    async def _node_killed(self, node: SimulatedNode, lasts_us: int) -> None:
        await self._busy(node)
        t0 = self.loop.now
        node.kill()
        await self._wait(lasts_us)
        node.start()
        self._write("node_kill", f"{node.name} killed", t0, node=node.name, nodes=1)

    async def _paused(self, node: SimulatedNode, lasts_us: int) -> None:
        await self._busy(node)
        t0 = self.loop.now
        node.pause(t0 + lasts_us)
        await self._wait(lasts_us)
        self._write("node_stop", f"{node.name} paused", t0, node=node.name, nodes=1)
