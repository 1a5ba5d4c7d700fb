"""One run of one fault: calm, fault, mend, settle, liveness, ledger, verdict."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headgate.errors import EngineError
from headgate.lab.history import load_history
from headgate.lab.picture import picture
from headgate.lab.recorder import HistoryRecorder, monotonic_us, write_unknown
from headgate.lab.scene import OF_POLICY, Scene
from headgate.lab.verdict import judge
from tests.faults.campaign.client import DECIDED, TASKS
from tests.faults.campaign.fleet import NODES, ROOT
from tests.faults.campaign.node import closings
from tests.faults.campaign.terms import STRAY_PER_MILLE, FaultFigures

if TYPE_CHECKING:
    from tests.faults.campaign.faults import RealFault
    from tests.faults.campaign.fleet import Fleet
    from tests.faults.campaign.terms import FaultTerms

CLIENTS = 3
CALM_S = 0.8
LIVENESS_S = 1.5
"""How long everything must go on as before, once it had its time to recover."""
TOLD_S = 0.4


def run_fault(
    fault: RealFault,
    fleet: Fleet,
    seed: int,
    folder: Path,
    *,
    terms: FaultTerms | None = None,
    commit: str = "",
) -> FaultFigures:
    """Break the fleet once while clients use it, and judge what they saw; the history and a picture are in the folder.

    It is judged by the terms of the fault, if no others are given.
    """
    terms = terms or fault.terms
    if dead := ended(fleet):
        raise RuntimeError(f"before anything was broken, {' and '.join(dead)}")
    name = f"{fault.number}-{seed}"
    path = folder / f"{name}.jsonl"
    rng = random.Random(f"{fault.number} {seed}")
    begun = monotonic_us()
    before, tracebacks = fleet.before(), _tracebacks(fleet)
    asked = fleet.terms
    parameters = {
        "nodes": NODES, "on_error": fleet.policy, "recovery_us": round(terms.recovery_s * 1e6),
        "drain_us": asked.drain_us, "lag_us": 1_000_000, "unconfirmed": asked.unconfirmed,
        "in_flight": CLIENTS * TASKS, "lease_us": asked.lease_us,
        "stray_per_mille": STRAY_PER_MILLE, "settled_per_mille": terms.settled_per_mille,
    }  # fmt: skip
    with HistoryRecorder(
        path, engine=asked.engine, mode=asked.mode, limits=asked.limits, epsilon_us=asked.epsilon_us,
        parameters=parameters, seed=seed,
        title=f"{fault.number} {fault.words}, seed {seed}", commit=commit,
    ) as recorder:  # fmt: skip
        clients = [_client(path, number, seed, name, fleet.addresses) for number in range(CLIENTS)]
        try:
            _wait_for_load(path)
            time.sleep(CALM_S)  # So that keys are in use when the fault comes.
            crashes = ended(fleet)
            t0 = monotonic_us()
            told = fault.act(fleet, rng) or {}
            t1 = monotonic_us()
            for more in told if isinstance(told, list) else [told]:
                said = {
                    "t0": t0,
                    "t1": t1,
                    "heal": t1,
                    "nodes": fault.nodes,
                    "name": fault.number,
                    **more,
                }
                recorder.fault(said.pop("kind", fault.kind), **said)
            # Nothing is broken any more: everything must come back by itself, and stay.
            time.sleep(terms.recovery_s + LIVENESS_S)
        finally:
            _end(clients, recorder, path)
        time.sleep(TOLD_S)  # Nodes tell the store what they gave without it.
        _ledger(fleet, recorder, name)
        _returns(fleet, recorder, name, begun)
    crashes += ended(fleet)
    for where, count in _tracebacks(fleet).items():
        if count > tracebacks[where]:
            crashes.append(f"a traceback in the log of {where}")
    after = [node.read() for node in fleet.nodes]
    scene = Scene(load_history(path))
    verdict = judge(scene)
    (folder / f"{name}.svg").write_text(picture(scene, verdict, None), encoding="utf-8")
    measured = [late.since(early) for late, early in zip(after, before, strict=True)]
    figures = verdict.figures
    recovery = recovery_of(scene)
    return FaultFigures(
        fault.number, fault.words, seed, terms, verdict.holds, dict(verdict.counts),
        [f"{one.check}: {one.message}" for one in verdict.findings[:5]],
        figures["operations"], figures["sources"], figures["failed"], figures["unknown"], figures["strays"],
        figures["over_limit"], figures["bound"], figures["over_bound"],
        sum(one.answers for one in measured), sum(one.late for one in measured),
        max(one.worst_us for one in measured) / 1000, **recovery._asdict(), crashes=crashes,
    )  # fmt: skip


def ended(fleet: Fleet) -> list[str]:
    """Nodes whose process has ended; all should run, except while a fault lasts."""
    return [
        f"{node.name} has ended with {node.running.wait()}"
        for node in fleet.nodes
        if not node.running.running
    ]


def _tracebacks(fleet: Fleet) -> dict[str, int]:
    nodes = [*fleet.nodes, *([fleet.spare] if fleet.spare is not None else [])]
    return {node.name: node.running.log.count("Traceback") for node in nodes}


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
    gone = [client.poll() for client in clients]
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
    if any(code is not None for code in gone):
        raise RuntimeError(f"clients have ended by themselves, with {gone}")


def _ledger(fleet: Fleet, recorder: HistoryRecorder, name: str) -> None:
    """What the store itself counts, now that nobody asks."""
    engine = fleet.open_store()
    for rule, limit in fleet.terms.limits.items():
        if rule in DECIDED:
            continue
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
        for at in closings(node.figures) if not node.drifts else ():
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


class Recovery(NamedTuple):
    """How the store was left, and how it came back; see `FaultFigures`."""

    left_after_ms: float | None
    back_after_ms: float
    settled: int
    unanswered: int


def recovery_of(scene: Scene) -> Recovery:
    """When the broken way was left, when everything was back, and whether it stayed so."""
    checks = sorted((one for one in scene.operations if one.f == "check"), key=lambda one: one.t1)
    settled = [one for one in checks if one.t0 > scene.settled]
    unanswered = sum(one.type not in ("allow", "deny") for one in settled)
    if not scene.faults:
        return Recovery(None, 0.0, len(settled), unanswered)
    t0, heal = scene.faults[0].t0, max(map(scene.heal, scene.faults))
    away = [one.t1 for one in checks if one.t1 >= t0 and one.source in OF_POLICY]
    after = [one for one in checks if one.t0 >= heal]
    good = [one.type in ("allow", "deny") and one.source not in OF_POLICY for one in after]
    back = next(
        (
            one.t1
            for place, one in enumerate(after)
            if good[place] and sum(good[place : place + 20]) >= 19
        ),
        scene.end,
    )
    return Recovery(
        (away[0] - t0) / 1000 if away else None, (back - heal) / 1000, len(settled), unanswered
    )
