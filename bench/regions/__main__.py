"""Measure what merging adds to a node's own decisions: in memory and on Redis, with one key and with a thousand.

Two nodes decide in turns. One has no regions; the other merges its limit with a region in another process, over a real
connection. A turn has as many decisions as a busy node makes in an interval of 0.2 s, and ends with what a node does in
each interval: it writes its totals to the store, and sends them. What is compared is the CPU time of the node's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate import Request
from tests.servers.process import HOST, free_ports
from tests.servers.redis import standalone
from tests.service.resp_node import resp_node
from tests.service.running import service

from ..harness import Race, facts, frozen_heap, save, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.regions.exchange import RegionExchange
    from headgate.service.node import Node
    from tests.service.resp_node import RespNode

PROMISED = 10
"""Per cent that merging may add."""
AT_ONCE = 100
REDIS = "redis-7.0"
RULES = """
rules:
  - rule_id: api
    identifier: user_id
    rate: 1000000000/hour
    algorithm: fixed_window
"""
MERGED = f"{RULES}    consistency: merge\n"
TURN = {"memory": 40_000, "Redis": 10_000}
"""Decisions in one turn: about 0.2 s of CPU time, at 5 µs and 20 µs."""
SELDOM_S = 60.0
"""The interval of the node itself, which then does not come in between: the turns have their own."""
KEYS = (1, 1_000)


class MergeRace(NamedTuple):
    """The outcome of one scenario."""

    engine: str
    keys: int
    race: Race
    sent_bytes: int
    sent_counters: int
    counted: int
    """Units of the first key that the store of counters knows: merging was on."""

    @property
    def added(self) -> float:
        """How much of a decision without regions merging adds to it."""
        return 1 / self.race.times_faster("merge", "alone") - 1

    @property
    def bytes_per_key(self) -> float:
        """In messages to the other region, for each key and interval in which it was used."""
        return self.sent_bytes / max(1, self.sent_counters)


async def decide(node: Node, keys: Sequence[str], *, at_once: int) -> float:
    """One decision for each key; the nanoseconds of CPU time that each took."""
    asked = [Request(path="/", user_id=key) for key in keys]
    decide_request = node.limiter.decide_request
    begun_ns = thread_time_ns()
    for first in range(0, len(asked), AT_ONCE):
        part = asked[first : first + AT_ONCE]
        if at_once > 1:
            await asyncio.gather(*map(decide_request, part))
        else:
            for request in part:
                await decide_request(request)
            await asyncio.sleep(0)  # The node's other work has its turn.
    if node.exchange is not None:
        await tell(node.exchange)
    return (thread_time_ns() - begun_ns) / len(asked)


async def tell(exchange: RegionExchange) -> None:
    """What a node does in each interval."""
    await exchange.synchronize()
    for shipper in exchange.shippers:
        await shipper.step()


@contextlib.contextmanager
def two_nodes(engine: str) -> Iterator[dict[str, RespNode]]:
    """One without regions, and one that merges, with another region that hears it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        alone, merged = folder / "alone.yaml", folder / "merged.yaml"
        alone.write_text(RULES)
        merged.write_text(MERGED)
        urls = [stack.enter_context(standalone(REDIS)).url for _ in range(3)]
        here, there = free_ports(2)
        stack.enter_context(
            service(
                *("--engine", urls[2], "--resp-port", str(there), "--rules", str(merged)),
                *("--set", "region=us", "--set", f"regions=eu=headgate://{HOST}:{here}"),
            )
        )
        regions: dict[str, Any] = {
            "region": "eu",
            "regions": f"us=headgate://{HOST}:{there}",
            "resp_port": here,
            "region_interval": SELDOM_S,
        }
        nodes: dict[str, RespNode] = {}
        for name, url, rules, more in (
            ("alone", urls[0], alone, {}),
            ("merge", urls[1], merged, regions),
        ):
            store: dict[str, Any] = (
                {"url": f"{url}?deadline=5"} if engine == "Redis" else {"board": url}
            )
            node = resp_node(rules=str(rules), node_id=name, **store, **more)
            nodes[name] = stack.enter_context(node)
        yield nodes


def exchange_of(node: RespNode) -> RegionExchange:
    """What a node tells other regions."""
    assert node.node.exchange is not None
    return node.node.exchange


def merging(engine: str, keys: int, rounds: int, turn: int) -> MergeRace:
    """Let the two nodes decide in turns; each turn has so many decisions of so many keys."""
    at_once = AT_ONCE if engine == "Redis" else 1
    asked = [f"user:{number % keys}" for number in range(turn)]
    shuffle = random.Random(7).shuffle
    outcome = Race({"alone": [], "merge": []})
    with two_nodes(engine) as nodes, frozen_heap():
        order = list(nodes.items())
        for number in range(rounds + 1):  # The first one is a warm-up.
            shuffle(order)
            for name, node in order:
                took_ns = node.wait(decide(node.node, asked, at_once=at_once))
                if number:
                    outcome.rounds[name].append(took_ns)
        exchange = exchange_of(nodes["merge"])
        (shipper,) = exchange.shippers
        used = exchange.admitted_of("user:0", "api")
        counted = sum(nodes["merge"].wait(used).values())
        sent, counters = shipper.link.sent_bytes, shipper.sent_counters
    return MergeRace(engine, keys, outcome, sent, counters, counted)


def everything(rounds: int, turns: dict[str, int]) -> Iterator[MergeRace]:
    """All scenarios, one after the other."""
    for engine, turn in turns.items():
        for keys in KEYS:
            yield merging(engine, keys, rounds, turn)


def shown(results: list[MergeRace]) -> str:
    """The results as a table."""
    rows = [
        (
            one.engine,
            f"{one.keys:,}",
            f"{one.race.ns('alone') / 1_000:.2f}",
            f"{one.race.ns('merge') / 1_000:.2f}",
            f"{100 * one.added:.1f}%",
            f"{one.bytes_per_key:.0f}",
        )
        for one in results
    ]
    head = ("engine", "keys", "µs alone", "µs merged", "added", "bytes per changed key")
    return table("CPU time of a node's decisions", head, rows)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.regions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="how often both have a turn")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where to write")
    options = parser.parse_args()
    results = list(everything(options.rounds, TURN))
    print(shown(results))
    worst = 100 * max(one.added for one in results)
    print(f"\nat most {worst:.1f} % are added, and {PROMISED} % are promised at most")
    raw = {
        f"{one.engine}, {one.keys} keys": {"rounds": one.race.rounds, "bytes": one.bytes_per_key}
        for one in results
    }
    save(options.out / "regions.json", {"machine": facts(["headgate"]), **raw})
    print(f"written: {options.out}/regions.json")


if __name__ == "__main__":
    main()
