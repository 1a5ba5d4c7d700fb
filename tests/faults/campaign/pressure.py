"""Faults that are too much of something: callers, requests, keys. Part of the catalogue in `faults.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.campaign.faults import fault
from tests.faults.campaign.fleet import ROOT
from tests.faults.campaign.terms import FaultTerms

if TYPE_CHECKING:
    import random

    from tests.faults.campaign.fleet import Fleet

OVERLOADED = FaultTerms(
    late_per_mille=50,
    why="there is more to do than the machine can, so that nodes wait for a core, and requests for their turn",
)
MOST_RSS_GROWTH = 200 * 1024 * 1024


class Crowd:
    """Many more who ask, for a while."""

    def __init__(
        self, fleet: Fleet, connections: int, seconds: float, pause_s: float, keys: int
    ) -> None:
        words = [connections, seconds, pause_s, keys, *fleet.ports]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.campaign.crowd", *map(str, words)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def leave(self) -> dict[str, int]:
        """Wait until it is over; how many answers there were of each status."""
        told, _ = self._process.communicate(timeout=60.0)
        counts: dict[str, int] = json.loads(told)
        answered = counts.get("200", 0)
        if not answered:
            raise RuntimeError(f"the crowd was told nothing: {counts}")
        return counts


@fault(
    "F19", "500 concurrent callers of a slow store, with at most one batch of four requests in flight",
    kind="store_slow", engine="max_in_flight=1&max_batch=4",
    terms=FaultTerms(
        late_per_mille=60,
        why="hundreds of callers ask in one moment, when nobody knows yet that the store is slow, and answering them "
        "all keeps both cores busy for longer than that",
    ),
)  # fmt: skip
def no_room(fleet: Fleet, _: random.Random) -> None:
    for link in fleet.links:
        link.delay_s = 0.004
    Crowd(fleet, 500, 2.0, 0.5, 50).leave()
    for link in fleet.links:
        link.delay_s = 0.0


@fault(
    "F38", "more requests than the machine can answer", kind="store_slow", terms=OVERLOADED,
)  # fmt: skip
def overloaded(fleet: Fleet, _: random.Random) -> None:
    crowd = Crowd(fleet, 90, 2.0, 0.0, 50)
    while crowd.is_there:
        for node in fleet.nodes:
            began = time.monotonic()
            status = node.running.ask("GET", "/health")[0]
            took_s = time.monotonic() - began
            if status not in (200, 503) or took_s > 5.0:
                raise RuntimeError(
                    f"{node.name} answered /health with {status} after {took_s:.1f} s"
                )
        time.sleep(0.2)  # As often as an orchestrator may ask.
    crowd.leave()


@fault(
    "F39",
    "a flood of keys that are each used only once",
    kind="store_slow",
    terms=OVERLOADED,
)
def many_keys(fleet: Fleet, _: random.Random) -> None:
    before = [_rss(node.running.pid) for node in fleet.nodes]
    Crowd(fleet, 30, 4.0, 0.0, 0).leave()
    for node, was in zip(fleet.nodes, before, strict=True):
        grown = _rss(node.running.pid) - was
        if grown > MOST_RSS_GROWTH:
            raise RuntimeError(f"{node.name} has grown by {grown >> 20} MiB")


def _rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
