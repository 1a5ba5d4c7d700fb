"""Regions that clients ask all at once: what they are told becomes one history, which the checker judges."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate import FixedWindow, Request
from headgate.errors import HeadgateError
from headgate.lab.history import load_history
from headgate.lab.picture import picture
from headgate.lab.recorder import HistoryRecorder, monotonic_us
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from headgate import AsyncLimiter
    from headgate.lab.verdict import HistoryVerdict
    from headgate.regions.exchange import RegionExchange

NAMES = ("east", "north", "west")
RULE = "api"
RULES = """
rules:
  - rule_id: api
    identifier: user_id
    rate: {limit}/{seconds}s
    algorithm: fixed_window
    consistency: {mode}
    on_error: closed
"""
WITHIN_S = 30.0
STRAY_PER_MILLE = 1_000
"""On a busy machine a store may miss its 25 ms at any time; a rule that then denies admits nothing over."""
SETTLED_PER_MILLE = 250
"""But once a fault is over, the store decides, where other tests run at the same time, too."""
RECOVERY_S = 5.0
"""How soon after a fault a store must decide again, there."""
LAG_US = 1_000_000
"""What regions know of each other is at most so old, while nothing is broken."""


@dataclass(frozen=True, order=True)
class FleetNeeds:
    """What kind of regions a fault is about."""

    mode: str = "escrow"
    secure: bool = False
    """Links have TLS, and nodes want an operator's token."""
    clocks_apart: bool = False
    """The clocks of the stores are a second ahead, and a second behind."""
    first_node: bool = False
    """East has one more node, a process of its own, which was there first: it is the shipper."""
    on_etcd: bool = False
    """Each region has an etcd, for everything, and no Redis."""
    namespaces: bool = False
    """Each region has a network of its own, which the kernel can cut off."""


@dataclass
class JudgedRegions(ABC):
    """Three regions with one limit."""

    needs: FleetNeeds
    limit: FixedWindow
    folder: Path
    elsewhere: Counter[str] = field(default_factory=Counter)
    """What regions have admitted besides, of other keys and by other nodes."""
    shares: Mapping[str, int] = field(default_factory=dict)
    """Of the limit, where it is split: each region is judged by its own, as its store alone would be."""

    @property
    def window_s(self) -> float:
        return self.limit.window_us / 1_000_000

    @property
    def judged_as(self) -> dict[str, Any]:
        """What the checker is told of the promise: the one of regions or, where they split a limit, of their stores."""
        if not self.shares:
            return {"engine": "regions", "mode": self.needs.mode, "limits": {RULE: self.limit}}
        limits = {
            rule_of(region, split=True): FixedWindow(share, self.limit.window_us)
            for region, share in self.shares.items()
        }
        engine = "etcd" if self.needs.on_etcd else "redis"
        return {"engine": engine, "mode": "exact", "limits": limits}

    @abstractmethod
    def cut_off(self, region: str) -> None:
        """Let a region and the others not hear each other."""

    @abstractmethod
    def mend(self) -> None:
        """Put everything between regions back as it was."""

    @abstractmethod
    def charged(self) -> dict[tuple[str, str], int]:
        """What each region has charged for each other one so far."""

    @abstractmethod
    def known(self, key: str) -> list[Any]:
        """The counters of a key that each region knows."""

    @abstractmethod
    def _ask(
        self, load: Load, paces_s: Mapping[str, float], recorder: HistoryRecorder, run: HistoryRun
    ) -> list[Future[Any]]:
        """Begin to ask in every region."""

    def wait_for_next_window(self) -> None:
        """Windows that have begun by now are over when this returns."""
        time.sleep(
            self.window_s - time.time() % self.window_s
        )  # Windows are those of the wall clock.

    def run(
        self,
        name: str,
        act: Any,
        *,
        paces_s: Mapping[str, float],
        windows: int = 2,
        kind: str | None = None,
        recovery_s: float = RECOVERY_S,
        settled_per_mille: int = SETTLED_PER_MILLE,
    ) -> tuple[HistoryVerdict, HistoryRun]:
        """Ask in all regions for some windows while something is done to them, and judge what was told."""
        path = self.folder / f"{name}.jsonl"
        run = HistoryRun()
        lag_us = LAG_US + 2_000_000 * self.needs.clocks_apart
        parameters = {
            "nodes": 1, "regions": 3, "lag_us": lag_us, "drain_us": 2_000_000, "on_error": "closed",
            "recovery_us": round(recovery_s * 1e6), "stray_per_mille": STRAY_PER_MILLE,
            "settled_per_mille": settled_per_mille,
        }  # fmt: skip
        with HistoryRecorder(
            path, **self.judged_as, epsilon_us=5_000, parameters=parameters, title=name,
        ) as recorder:  # fmt: skip
            self.wait_for_next_window()
            ends = time.monotonic() + windows * self.window_s - 0.02
            load = Load(str(path), f"{name} hot", ends, self.window_s, bool(self.shares))
            clients = self._ask(load, paces_s, recorder, run)
            t0 = monotonic_us()
            act()
            t1 = monotonic_us()
            for client in clients:
                client.result(60)
            if kind is not None:
                recorder.fault(kind, name=name, t0=t0, t1=t1, heal=t1)
        self.mend()
        run.scene = scene = Scene(load_history(path))
        verdict = judge(scene)
        path.with_suffix(".svg").write_text(picture(scene, verdict, None), encoding="utf-8")
        return verdict, run


@dataclass(frozen=True)
class Load:
    """What clients ask for."""

    path: str
    """Of the history."""
    user: str
    ends: float
    """By the monotonic clock, which all processes share."""
    window_s: float
    split: bool = False


def rule_of(region: str, *, split: bool) -> str:
    """What a history calls the rule: regions that split a limit have each their own."""
    return f"{RULE} in {region}" if split else RULE


@dataclass
class HistoryRun:
    """What clients were given, by window and region."""

    admitted: dict[int, dict[str, int]] = field(default_factory=dict)
    asked: int = 0
    scene: Scene = field(init=False)
    """The history that came of it."""

    def note(self, region: str, window: int, *, allowed: bool) -> None:
        self.asked += 1
        by_region = self.admitted.setdefault(window, dict.fromkeys(NAMES, 0))
        by_region[region] += allowed

    def totals(self) -> list[int]:
        """What all regions together admitted in each window."""
        return [sum(one.values()) for _, one in sorted(self.admitted.items())]

    def by_region(self) -> Counter[str]:
        """What each region admitted in all windows."""
        return sum(map(Counter, self.admitted.values()), Counter[str]())


_numbers: Iterator[int] = itertools.count()


async def ask_until(
    load: Load,
    region: str,
    limiter: AsyncLimiter,
    recorder: HistoryRecorder,
    run: HistoryRun,
    *,
    pace_s: float,
    clock_s: float = 0.0,
) -> None:
    """One client of a region."""
    request = Request(path="/", user_id=load.user)
    # A window is one of the region's own clock, so all is told by that clock.
    off_us = round(clock_s * 1_000_000)
    while time.monotonic() < load.ends:
        fields = {
            "f": "check", "key": load.user, "rule": rule_of(region, split=load.split), "cost": 1,
            "region": region, "node": region, "proc": f"{region} {next(_numbers)}",
        }  # fmt: skip
        t0 = monotonic_us() + off_us
        try:
            decision = await limiter.decide_request(request)
        except HeadgateError as error:
            recorder.failed(error, t0=t0, t1=monotonic_us() + off_us, **fields)
        else:
            t1 = monotonic_us() + off_us
            kind = "allow" if decision else "deny"
            recorder.operation(**fields, t0=t0, t1=t1, type=kind, source=decision.source)
            window = int((time.time() + clock_s) / load.window_s)
            run.note(region, window, allowed=bool(decision))
        await asyncio.sleep(pace_s)  # The pace of the load.


async def counters_of(exchange: RegionExchange, key: str) -> list[Any]:
    """What a region knows of a key of the rule, in plain values and in order."""
    found = await exchange._store.counters_of(key)
    return sorted(
        [name.slice_us, *actor, total] for name, actor, total in found if name.rule == RULE
    )
