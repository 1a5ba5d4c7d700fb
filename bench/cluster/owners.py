"""What it costs a node to own keys that others ask it for, and how long they wait for one that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from headgate import SlidingWindow
from headgate.engines.remote.engine import AsyncRemoteEngine
from tests.servers.process import HOST, free_ports
from tests.service.running import service

from ..harness import frozen_heap
from .contenders import MINUTE_US, PLENTY, Limited, asking
from .scenarios import MANY_KEYS, TTL_S, Result, Settings, loaded, longest_wait, three_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.etcd import Etcd
    from tests.service.running import Service

CALLERS = 512
MOST_CPU_US = 5.0
"""Without etcd: what it takes to read a decision's part of a batch, to decide, and to answer."""
MOST_BEYOND_LEASE_S = 0.6


def about_owners(servers: Etcd, settings: Settings) -> Iterator[Result]:
    """Both, one after the other."""
    yield forwarded(servers, settings)
    yield served_again_after_a_hang(servers, settings)


def forwarded(servers: Etcd, settings: Settings) -> Result:
    """CPU time of an owner for each decision that another process sends it, as nodes do."""
    engines = {
        "memory": "memory:",
        "etcd, leased": f"etcd://{servers.hosts}/owner?consistency=leased&unconfirmed=1000000",
        "etcd, exact": f"etcd://{servers.hosts}/owner-exact?deadline=10",
    }
    found = {}
    for name, engine in engines.items():
        (port,) = free_ports(1)
        with service("--engine", engine, "--resp-port", str(port)) as owner, frozen_heap():
            found[name] = asyncio.run(_cost_of_owning(owner, port, settings))
    rows = [
        [name, *(f"{median(one):,.1f}" for one in zip(*costs, strict=True))]
        for name, costs in found.items()
    ]
    cpu_us = median(cost for cost, _ in found["memory"])
    verdict = "met" if cpu_us <= MOST_CPU_US else "MISSED"
    return Result(
        f"Forwarded to an owner, {CALLERS} callers, {len(MANY_KEYS):,} keys",
        ["", "owner's CPU, us a decision", "per second"],
        rows,
        [["memory, us a decision", f"at most {MOST_CPU_US:g}", f"{cpu_us:.1f}", verdict]],
        {"cpu_us_and_per_second": found},
    )


async def _cost_of_owning(
    owner: Service, port: int, settings: Settings
) -> list[tuple[float, float]]:
    """CPU time for a decision, and decisions a second, round by round."""
    engine = AsyncRemoteEngine(f"headgate://{HOST}:{port}?deadline=10")
    limited = Limited("owner", asking(engine.bind(SlidingWindow(PLENTY, MINUTE_US))))
    rounds = []
    for number in range(settings.rounds + 1):
        cpu_s, begun = _cpu_seconds(owner.pid), time.perf_counter()
        per_second = (await loaded(limited, MANY_KEYS, CALLERS, settings.slice_s)).per_second
        decisions = per_second * (time.perf_counter() - begun)
        if number:  # The first round warms up.
            rounds.append(((_cpu_seconds(owner.pid) - cpu_s) / decisions * 1e6, per_second))
    await engine.aclose()
    return rounds


def _cpu_seconds(pid: int) -> float:
    """What a process has used of its core, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
    user, kernel = fields.split()[11:13]
    return (int(user) + int(kernel)) / os.sysconf("SC_CLK_TCK")


def served_again_after_a_hang(servers: Etcd, settings: Settings) -> Result:
    """How long a key is not decided when its owner hangs: its port does not refuse, so its lease has to end."""
    waits = []
    for number in range(settings.kills):
        with contextlib.ExitStack() as stack:
            nodes = three_nodes(stack, servers, f"hang{number}")
            stopped = nodes[0][0]
            stack.callback(stopped.resume)
            waits.append(asyncio.run(longest_wait(nodes, stopped.stop, seconds=TTL_S + 3.0)))
    worst = max(waits)
    most_s = TTL_S + MOST_BEYOND_LEASE_S
    return Result(
        f"An owner hangs while a client hammers 64 keys, {settings.kills} times",
        ["", "median s", "longest s"],
        [["served again after", f"{median(waits):.2f}", f"{worst:.2f}"]],
        [
            [
                "longest, s",
                f"at most {most_s:g} (the lease and {MOST_BEYOND_LEASE_S:g})",
                f"{worst:.2f}",
                "met" if worst <= most_s else "MISSED",
            ]
        ],
        {"waits_s": waits},
    )
