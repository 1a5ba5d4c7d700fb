"""One run of one fault: calm, fault, mend, settle, liveness, ledger, verdict."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.errors import EngineError
from headgate.lab.history import load_history
from headgate.lab.picture import picture
from headgate.lab.recorder import HistoryRecorder, monotonic_us, write_unknown
from headgate.lab.scene import OF_POLICY, Scene
from headgate.lab.verdict import judge
from tests.faults.campaign.fleet import NODES, ROOT
from tests.faults.campaign.node import closings

if TYPE_CHECKING:
    from headgate.lab.history import History
    from tests.faults.campaign.faults import RealFault
    from tests.faults.campaign.fleet import Fleet

CLIENTS = 3
CALM_S = 0.8
LIVENESS_S = 1.5
TOLD_S = 0.4
STRAY_PER_MILLE = 1_000
"""Any number of answers may come without the store while nothing is broken, for a busy machine misses 25 ms now and then.
They are counted, and each adds its own cost to what is allowed, and no more."""


@dataclass
class FaultFigures:
    """What was measured in one run."""

    fault: str
    words: str
    seed: int
    holds: bool
    violations: dict[str, int]
    findings: list[str]
    operations: int
    sources: dict[str, int]
    failed: int
    unknown: int
    strays: int
    over_limit: int
    bound: int
    over_bound: int
    answers: int
    late: int
    worst_ms: float
    exempt: bool
    left_after_ms: float | None
    """From the beginning of the fault to the first answer without the store; none if there was no such answer."""
    back_after_ms: float
    """From when it was mended until 19 of 20 answers in a row were the store's."""
    crashes: list[str] = field(default_factory=list)

    @property
    def in_time(self) -> bool:
        """At most one answer in a thousand late, where the node itself was not stopped."""
        return self.exempt or self.late * 1_000 <= self.answers

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "in_time": self.in_time}


def run_fault(
    fault: RealFault,
    fleet: Fleet,
    seed: int,
    folder: Path,
    *,
    recovery_s: float | None = None,
    stray_per_mille: int = STRAY_PER_MILLE,
    commit: str = "",
) -> FaultFigures:
    """Break the fleet once while clients use it, and judge what they saw; the history and a picture are in the folder."""
    name = f"{fault.number}-{seed}"
    path = folder / f"{name}.jsonl"
    rng = random.Random(f"{fault.number} {seed}")
    begun = monotonic_us()
    before, lives = fleet.before(), [node.running.log.count("Traceback") for node in fleet.nodes]
    terms = fleet.terms
    recovery_us = round((terms.recovery_s if recovery_s is None else recovery_s) * 1e6)
    parameters = {
        "nodes": NODES, "on_error": fleet.policy, "recovery_us": recovery_us, "drain_us": terms.drain_us,
        "lag_us": 1_000_000, "stray_per_mille": stray_per_mille, "unconfirmed": terms.unconfirmed,
    }  # fmt: skip
    with HistoryRecorder(
        path, engine=terms.engine, mode=terms.mode, limits=terms.limits, epsilon_us=terms.epsilon_us,
        parameters=parameters, seed=seed,
        title=f"{fault.number} {fault.words}, seed {seed}", commit=commit,
    ) as recorder:  # fmt: skip
        clients = [_client(path, number, seed, name, fleet.addresses) for number in range(CLIENTS)]
        try:
            _wait_for_load(path)
            time.sleep(CALM_S)  # So that keys are in use when the fault comes.
            t0 = monotonic_us()
            told = fault.act(fleet, rng) or {}
            t1 = monotonic_us()
            for more in told if isinstance(told, list) else [told]:
                said = {"t0": t0, "t1": t1, "heal": t1, "nodes": fault.nodes, **more}
                recorder.fault(fault.kind, name=fault.number, **said)
            time.sleep(
                terms.settle_s + LIVENESS_S
            )  # Nothing is broken any more: everything must come back by itself.
        finally:
            _end(clients, recorder, path)
        time.sleep(TOLD_S)  # Nodes tell the store what they gave without it.
        _ledger(fleet, recorder, name)
        _returns(fleet, recorder, name, begun)
    after = [node.read() for node in fleet.nodes]
    history = load_history(path)
    scene = Scene(history)
    verdict = judge(scene)
    (folder / f"{name}.svg").write_text(picture(scene, verdict, None), encoding="utf-8")
    measured = [late.since(early) for late, early in zip(after, before, strict=True)]
    figures = verdict.figures
    left, back = _times(history, t0, t1)
    return FaultFigures(
        fault.number, fault.words, seed, verdict.holds, dict(verdict.counts),
        [f"{one.check}: {one.message}" for one in verdict.findings[:5]],
        figures["operations"], figures["sources"], figures["failed"], figures["unknown"], figures["strays"],
        figures["over_limit"], figures["bound"], figures["over_bound"],
        sum(one.answers for one in measured), sum(one.late for one in measured),
        max(one.worst_us for one in measured) / 1000, fault.exempt, left, back,
        [node.name for node, was in zip(fleet.nodes, lives, strict=True) if node.running.log.count("Traceback") > was],
    )  # fmt: skip


def _client(
    path: Path, number: int, seed: int, name: str, addresses: list[str]
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tests.faults.campaign.client",
        str(path),
        str(number),
        str(seed),
        name,
        *addresses,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _wait_for_load(path: Path, within_s: float = 60.0) -> None:
    ends = time.monotonic() + within_s
    while path.read_bytes().count(b"\n") < 10 * CLIENTS:
        if time.monotonic() > ends:
            raise TimeoutError("the clients do not ask anything")
        time.sleep(0.05)  # They are processes of their own, and tell nobody when they have begun.


def _end(clients: list[subprocess.Popen[bytes]], recorder: HistoryRecorder, path: Path) -> None:
    """End the clients; one that does not listen is killed, and what it was doing has no known end."""
    for client in clients:
        client.send_signal(signal.SIGTERM)
    for number, client in enumerate(clients):
        try:
            client.wait(10.0)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            write_unknown(recorder, Path(f"{path}.slots.{number}"), monotonic_us())
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}.slots.{number}").unlink()


def _ledger(fleet: Fleet, recorder: HistoryRecorder, name: str) -> None:
    """What the store itself counts, now that nobody asks."""
    engine = fleet.open_store()
    for rule, limit in fleet.terms.limits.items():
        t0 = monotonic_us()
        with contextlib.suppress(EngineError):
            used = engine.usage(f"{rule}:{name} hot", limit).used
            recorder.operation(
                f="ledger",
                key=f"{name} hot",
                rule=rule,
                t0=t0,
                t1=monotonic_us(),
                type="allow",
                used=used,
            )
    engine.close()


def _returns(fleet: Fleet, recorder: HistoryRecorder, name: str, begun: int) -> None:
    """Write down when a node had the store back: it may give its share again if it loses the store again."""
    for node in fleet.nodes:
        for at in closings(node.figures):
            if at >= begun:
                recorder.operation(
                    f="peek",
                    key=f"{name} return",
                    rule="fixed",
                    cost=0,
                    node=node.name,
                    t0=at,
                    t1=at,
                    type="allow",
                )


def _times(history: History, t0: int, heal: int) -> tuple[float | None, float]:
    """When the broken way was left, and when everything was back, in milliseconds."""
    checks = sorted((one for one in history.operations if one.f == "check"), key=lambda one: one.t1)
    away = [one.t1 for one in checks if one.t1 >= t0 and one.source in OF_POLICY]
    after = [one for one in checks if one.t0 >= heal]
    good = [one.type in ("allow", "deny") and one.source in ("engine", "cache") for one in after]
    back = next(
        (
            one.t1
            for place, one in enumerate(after)
            if good[place] and sum(good[place : place + 20]) >= 19
        ),
        history.operations[-1].t1,
    )
    return (away[0] - t0) / 1000 if away else None, max(0, back - heal) / 1000
