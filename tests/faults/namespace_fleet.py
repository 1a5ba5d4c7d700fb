"""Three regions, each on a machine of its own (see `tests.servers.machines`): the kernel cuts one off. Takes root."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import FixedWindow
from tests.faults.judged_regions import (
    NAMES,
    RULES,
    WITHIN_S,
    FleetNeeds,
    HistoryRun,
    JudgedRegions,
    Load,
)
from tests.servers.machines import Machines, machines
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from headgate.lab.recorder import HistoryRecorder

ROOT = Path(__file__).parents[2]
PORT = 6400
"""Of every region, on its own machine."""


@dataclass
class RegionProcess:
    """The process of one region, which is told what to do."""

    process: subprocess.Popen[str]

    def ask(self, *words: Any) -> Any:
        """Have it do something, and return what came of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a region ended with {self.process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Let it stop by itself, and wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class NamespaceFleet(JudgedRegions):
    """Three regions that a switch connects."""

    machines: Machines = field(default_factory=Machines)
    """One for each of `NAMES`, in that order."""
    regions: dict[str, RegionProcess] = field(default_factory=dict)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(len(NAMES)))

    def cut_off(self, region: str) -> None:
        self.machines.cut_off(self.machines.all[NAMES.index(region)])

    def mend(self) -> None:
        self.machines.mend()

    def charged(self) -> dict[tuple[str, str], int]:
        return {
            (here, there): units
            for here, one in self.regions.items()
            for there, units in one.ask("charged").items()
        }

    def known(self, key: str) -> list[Any]:
        return [one.ask("known", key) for one in self.regions.values()]

    def _ask(
        self, load: Load, paces_s: Mapping[str, float], recorder: HistoryRecorder, run: HistoryRun
    ) -> list[Future[Any]]:
        def client(name: str, pace_s: float) -> None:
            words = (load.path, load.user, load.ends, load.window_s, pace_s)
            for window, by_region in self.regions[name].ask("ask", *words):
                found = run.admitted.setdefault(window, dict.fromkeys(NAMES, 0))
                found[name] += by_region[name]

        return [self.pool.submit(client, name, pace_s) for name, pace_s in paces_s.items()]


@contextlib.contextmanager
def namespace_fleet(
    folder: Path, needs: FleetNeeds, *, limit: int = 90, seconds: int = 3
) -> Iterator[NamespaceFleet]:
    """Three regions that hear each other."""
    rules = folder / f"rules-{needs.mode}.yaml"
    rules.write_text(RULES.format(limit=limit, seconds=seconds, mode=needs.mode))
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(machines(len(NAMES)))
        window = FixedWindow(limit, seconds * 1_000_000)
        made = NamespaceFleet(needs, window, folder, machines=network)
        for name in NAMES:
            made.regions[name] = RegionProcess(_started(network, name, str(rules)))
            stack.callback(made.regions[name].end)
        for region in made.regions.values():
            assert region.answer() == "ready"
        stack.callback(made.pool.shutdown)
        wait_until(
            lambda: all(one.ask("hears") for one in made.regions.values()),
            "all hear each other",
            within_s=WITHIN_S,
        )
        yield made


def _started(network: Machines, name: str, rules: str) -> subprocess.Popen[str]:
    by_name = dict(zip(NAMES, network.all, strict=True))
    others = (f"{one}=headgate://{by_name[one].host}:{PORT}" for one in NAMES if one != name)
    said = {
        "listen": by_name[name].host, "resp_port": PORT, "region": name, "regions": " ".join(others), "rules": rules,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.faults.region_in_namespace", json.dumps(said)]
    return subprocess.Popen(
        by_name[name].inside(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
