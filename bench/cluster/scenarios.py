"""Slices of load on the event loop, in turn, and ratios inside each round; and how long a key has no owner."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate import Decision, EngineError, FixedWindow
from headgate.engines.remote.engine import AsyncRemoteEngine
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.running import service

from ..harness import frozen_heap, table
from .contenders import (
    DAY_US,
    EXACT,
    LEASED,
    MEMORY,
    PLENTY,
    SWAP,
    bare_transaction,
    memory,
    on_etcd,
    swapping,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.servers.etcd import Etcd
    from tests.service.running import Service

    from .contenders import Limited

ONE_KEY = ("hot",)
TTL_S = 5
"""How long the lease of a node lasts."""
MANY_KEYS = tuple(f"user:{number}" for number in range(10_000))
ONE_CALLER = "One caller"
KILLED = "An owner is killed while a client hammers 64 keys"


class Settings(NamedTuple):
    """How long to measure."""

    rounds: int
    slice_s: float
    kills: int


FULL = Settings(rounds=7, slice_s=1.0, kills=10)
QUICK = Settings(rounds=3, slice_s=0.5, kills=2)


class Target(NamedTuple):
    """`ours` is to be at least so many times `than`."""

    ours: str
    than: str
    at_least: float


@dataclass(frozen=True)
class Result:
    """What was found: a table of medians, and the ratios that were asked for."""

    title: str
    head: list[str]
    rows: list[list[str]]
    verdicts: list[list[str]] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def as_text(self) -> str:
        """Both tables."""
        text = table(self.title, self.head, self.rows)
        if self.verdicts:
            text += "\n" + table("Ratios", ["", "target", "measured", ""], self.verdicts)
        return text


class Slice(NamedTuple):
    """What one contender did in one slice."""

    per_second: float
    p50_ms: float
    p99_ms: float


async def loaded(limited: Limited, keys: Sequence[str], callers: int, seconds: float) -> Slice:
    """So many callers, each of which asks again when it is answered."""
    waits: list[float] = []
    ends = time.perf_counter() + seconds

    async def call(place: int) -> None:
        number, now = place, 0.0
        while now < ends:  # Each asks once at least, however busy the machine is.
            begun = time.perf_counter()
            await limited.take(keys[number % len(keys)])
            now = time.perf_counter()
            waits.append(now - begun)
            number += callers

    begun = time.perf_counter()
    await asyncio.gather(*(call(place) for place in range(callers)))
    took = time.perf_counter() - begun
    waits.sort()
    return Slice(
        len(waits) / took,
        waits[len(waits) // 2] * 1e3,
        waits[len(waits) * 99 // 100] * 1e3,
    )


async def throughput(
    servers: Etcd, settings: Settings, keys: Sequence[str], callers: int, targets: Sequence[Target]
) -> Result:
    """Decisions a second of all that the targets name, in turn."""
    hosts = servers.hosts
    makers: dict[str, Callable[[], Limited]] = {
        MEMORY: memory,
        EXACT: lambda: on_etcd(hosts, "exact"),
        LEASED: lambda: on_etcd(hosts, "leased"),
        SWAP: lambda: swapping(hosts),
    }
    named = {name for target in targets for name in (target.ours, target.than)}
    present = [make() for name, make in makers.items() if name in named]
    slices: dict[str, list[Slice]] = {one.name: [] for one in present}
    shuffle = random.Random(len(keys) + callers).shuffle
    with frozen_heap():
        for number in range(settings.rounds + 1):
            shuffle(present)
            for one in present:
                found = await loaded(one, keys, callers, settings.slice_s)
                if number:  # The first round warms up.
                    slices[one.name].append(found)
    for one in present:
        await one.close()
    return Result(
        _title(keys, callers),
        ["", "per second", "p50 ms", "p99 ms"],
        [_medians(name, found) for name, found in slices.items()],
        [judged(target, slices) for target in targets],
        {name: [one._asdict() for one in found] for name, found in slices.items()},
    )


def _title(keys: Sequence[str], callers: int) -> str:
    what = "one key" if len(keys) == 1 else f"{len(keys):,} keys"
    return f"{callers} callers, {what}"


def _medians(name: str, found: Sequence[Slice]) -> list[str]:
    per_second, p50, p99 = (median(figures) for figures in zip(*found, strict=True))
    return [name, f"{per_second:,.0f}", f"{p50:.2f}", f"{p99:.2f}"]


def judged(target: Target, slices: dict[str, list[Slice]]) -> list[str]:
    """The median of the ratios inside each round, beside its target."""
    pairs = zip(slices[target.ours], slices[target.than], strict=True)
    ratio = median(mine.per_second / other.per_second for mine, other in pairs)
    return [
        f"{target.ours} / {target.than}",
        f"{target.at_least:g}",
        f"{ratio:,.2f}",
        "met" if ratio >= target.at_least else "MISSED",
    ]


async def one_caller(servers: Etcd, settings: Settings) -> Result:
    """How much longer an exact answer takes than one write to etcd."""
    exact, bare = on_etcd(servers.hosts, "exact"), bare_transaction(servers.hosts)
    found: dict[str, list[Slice]] = {exact.name: [], bare.name: []}
    for number in range(settings.rounds + 1):
        for one in (exact, bare):
            measured = await loaded(one, ONE_KEY, 1, settings.slice_s)
            if number:
                found[one.name].append(measured)
    await exact.close()
    await bare.close()
    pairs = zip(found[exact.name], found[bare.name], strict=True)
    ratio = median(mine.p50_ms / other.p50_ms for mine, other in pairs)
    verdict = "met" if ratio <= 1.4 else "MISSED"
    return Result(
        ONE_CALLER,
        ["", "per second", "p50 ms", "p99 ms"],
        [_medians(name, slices) for name, slices in found.items()],
        [["p50: exact / a bare transaction", "at most 1.4", f"{ratio:.2f}", verdict]],
        {name: [one._asdict() for one in slices] for name, slices in found.items()},
    )


def served_again(servers: Etcd, settings: Settings) -> Result:
    """How long a key is not decided after its owner was killed: its port refuses, so nobody waits for the lease."""
    waits = []
    for number in range(settings.kills):
        with contextlib.ExitStack() as stack:
            nodes = three_nodes(stack, servers, f"kill{number}")
            waits.append(asyncio.run(longest_wait(nodes, nodes[0][0].kill, seconds=2.0)))
    worst = max(waits)
    verdict = "met" if worst <= 0.3 else "MISSED"
    return Result(
        f"{KILLED}, {settings.kills} times",
        ["", "median s", "longest s"],
        [["served again after", f"{median(waits):.2f}", f"{worst:.2f}"]],
        [["longest, s", "at most 0.3", f"{worst:.2f}", verdict]],
        {"waits_s": waits},
    )


def three_nodes(
    stack: contextlib.ExitStack, servers: Etcd, cluster: str
) -> list[tuple[Service, int]]:
    """Nodes that have shared all shards among them, each with the port where others reach it."""
    url = f"etcd://{servers.hosts}/{cluster}?shards=16&ttl={TTL_S}&deadline=3"
    # What a fallback answers meanwhile is not decided by an owner.
    options = ("--engine", url, "--set", "on_error=raise")
    nodes = [
        (stack.enter_context(service(*options, "--resp-port", str(port))), port)
        for port in free_ports(3)
    ]
    wait_until(lambda: _all_shared(nodes), "three nodes share", within_s=40.0)
    return nodes


def _all_shared(nodes: Sequence[tuple[Service, int]]) -> bool:
    shards = []
    for node, _ in nodes:
        _, _, text = node.ask("GET", "/metrics")
        told = [line for line in text.splitlines() if line.startswith("headgate_etcd_shards ")]
        shards.append(float(told[0].split()[1]) if told else 0.0)
    return sum(shards) == 16 and all(shards)


async def longest_wait(
    nodes: Sequence[tuple[Service, int]], fault: Callable[[], None], seconds: float
) -> float:
    """The longest time, from the fault of the first node on, in which some key was not decided."""
    hosts = ",".join(f"{HOST}:{port}" for _, port in nodes[1:])
    engine = AsyncRemoteEngine(f"headgate://{hosts}?deadline=5")
    hit = engine.bind(FixedWindow(PLENTY, DAY_US))
    longest, ends = 0.0, time.monotonic() + 1.0 + seconds

    async def hammer(key: str) -> None:
        nonlocal longest
        last = time.monotonic()
        while last < ends:
            try:
                answer = hit(key, 1)
                if not isinstance(answer, Decision):
                    await answer
            except EngineError:
                await asyncio.sleep(0.005)  # Not decided: asked again, until it is.
                continue
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(0.005)  # A caller that thinks for a moment.

    tasks = [asyncio.ensure_future(hammer(f"key{number}")) for number in range(64)]
    await asyncio.sleep(1.0)  # Until links and limits are known everywhere.
    longest = 0.0
    fault()
    await asyncio.gather(*tasks)
    await engine.aclose()
    return longest


async def verified(servers: Etcd) -> None:
    """Refuse to go on if somebody counts wrongly."""
    hosts, limit = servers.hosts, 20
    for one in (memory(limit), on_etcd(hosts, "exact", limit), swapping(hosts, limit)):
        await verify(one, limit)
        await one.close()


def everything(servers: Etcd, settings: Settings, only: str = "") -> Iterator[Result]:
    """All of it, one after the other, or only those with such a title."""
    asyncio.run(verified(servers))
    for keys, callers, targets in (
        (
            ONE_KEY,
            64,
            (Target(EXACT, SWAP, 300), Target(EXACT, MEMORY, 0.1), Target(LEASED, MEMORY, 0.5)),
        ),
        (ONE_KEY, 512, (Target(EXACT, MEMORY, 0.25), Target(LEASED, MEMORY, 0.5))),
        (MANY_KEYS, 64, (Target(EXACT, SWAP, 12), Target(LEASED, MEMORY, 0.4))),
        (MANY_KEYS, 512, (Target(EXACT, MEMORY, 0.25), Target(LEASED, MEMORY, 0.4))),
    ):
        if only in _title(keys, callers):
            yield asyncio.run(throughput(servers, settings, keys, callers, targets))
    if only in ONE_CALLER:
        yield asyncio.run(one_caller(servers, settings))
    if only in KILLED:
        yield served_again(servers, settings)
