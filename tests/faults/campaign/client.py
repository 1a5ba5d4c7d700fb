"""A client process: `python -m tests.faults.campaign.client HISTORY NUMBER SEED RUN ADDRESS …`, until SIGTERM.

The limits are those that the header of the history names. Several tasks ask the nodes over connections of their own, one request at a time each. Before a request is sent it is noted in a
slot of a mapped file, and afterwards it is taken out: what is in the slots of a client that was killed has no known end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from headgate import FixedWindow, Limit, SlidingLog, SlidingWindow, TokenBucket
from headgate.lab.limits import limit_from_json
from headgate.lab.recorder import HistoryRecorder, OperationSlots, monotonic_us

TASKS = 2
PATIENCE_S = 2.0
PAUSE_S = 0.02
LIMITS: dict[str, Limit] = {
    "fixed": FixedWindow(45, 1_000_000),
    "sliding": SlidingWindow(45, 1_000_000),
    "log": SlidingLog(30, 1_000_000),
    "bucket": TokenBucket(30, 1_000_000, 15),
    "small": FixedWindow(2, 1_000_000),
}
WEIGHTS = {"fixed": 6, "day": 6, "small": 1}
WEIGHT = 3


def asked(rule: str, limit: Limit, key: str, cost: int) -> dict[str, Any]:
    """The body of a check."""
    body: dict[str, Any] = {
        "key": f"{rule}:{key}",
        "cost": cost,
        "limit": limit.limit,
        "algorithm": limit.name,
    }
    body["window"] = limit.window_us // 1_000_000
    if isinstance(limit, TokenBucket):
        body["burst"] = limit.burst
    return body


def limits_of(path: str) -> dict[str, Limit]:
    """The limits that a history is about."""
    with Path(path).open("rb") as lines:
        header = json.loads(lines.readline())
    return {rule: limit_from_json(limit) for rule, limit in header["limits"].items()}


class Asker:
    """One connection at a time to one node after the other."""

    def __init__(
        self, recorder: HistoryRecorder, slots: OperationSlots, number: int, addresses: list[str]
    ) -> None:
        self._recorder, self._slots, self._number = recorder, slots, number
        self._addresses = addresses
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._lives = 0

    async def ask(self, node: int, rule: str, limit: Limit, key: str, cost: int) -> None:
        fields = {
            "f": "check", "key": key, "rule": rule, "cost": cost, "node": f"node {node}",
            "proc": f"{self._number}.{self._lives}",
        }  # fmt: skip
        t0 = monotonic_us()
        self._slots.begin(self._number % TASKS, {**fields, "t0": t0})
        outcome: dict[str, Any]
        try:
            async with asyncio.timeout(PATIENCE_S):
                outcome = await self._answer(node, asked(rule, limit, key, cost))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._forget(node)
            self._lives += 1
            refused = isinstance(error, ConnectionRefusedError)
            outcome = {
                "type": "fail" if refused else "info",
                "err": f"{type(error).__name__} {error}"[:100],
            }
        self._recorder.operation(**fields, t0=t0, t1=monotonic_us(), **outcome)
        self._slots.end(self._number % TASKS)

    async def _answer(self, node: int, body: dict[str, Any]) -> dict[str, Any]:
        host, _, port = self._addresses[node].rpartition(":")
        if node not in self._streams:
            self._streams[node] = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams[node]
        content = json.dumps(body).encode()
        writer.write(
            b"POST /check HTTP/1.1\r\nHost: %b:%b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (host.encode(), port.encode(), len(content), content)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split(" ", 2)[1])
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        if "connection: close" in head:
            self._forget(node)
        if status != 200:
            return {
                "type": "fail" if status in (400, 404, 409, 413, 429) else "info",
                "err": f"{status} {answer.get('code')}",
            }
        return {"type": "allow" if answer["allowed"] else "deny", "source": answer["source"]}

    def _forget(self, node: int) -> None:
        streams = self._streams.pop(node, None)
        if streams is not None:
            streams[1].close()


async def run(path: str, number: int, seed: int, run_name: str, addresses: list[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    slots = OperationSlots(Path(f"{path}.slots.{number}"), TASKS)
    limits = limits_of(path)
    weights = [WEIGHTS.get(rule, WEIGHT) for rule in limits]
    with HistoryRecorder.join(path) as recorder:

        async def task(which: int) -> None:
            rng = random.Random(seed * 1_000 + number * 10 + which)
            asker = Asker(recorder, slots, number * TASKS + which, addresses)
            while not ended.is_set():
                (rule,) = rng.choices(list(limits), weights)
                key = (
                    f"{run_name} hot"
                    if rng.random() < 0.7
                    else f"{run_name} warm {rng.randrange(4)}"
                )
                node, cost = rng.randrange(len(addresses)), rng.choice((1, 1, 1, 2))
                await asker.ask(node, rule, limits[rule], key, cost)
                await asyncio.sleep(rng.uniform(0.0, 2 * PAUSE_S))  # The pace of a real caller.

        await asyncio.gather(*(task(which) for which in range(TASKS)))


if __name__ == "__main__":
    path, number, seed, run_name, *addresses = sys.argv[1:]
    asyncio.run(run(path, int(number), int(seed), run_name, addresses))
