"""A client process: `python -m tests.faults.campaign.client HISTORY NUMBER SEED RUN ADDRESS …`, until SIGTERM.

The limits are those that the header of the history names. Several tasks ask the nodes over connections of their own,
one request at a time each. Before a request is sent it is noted in a slot of a mapped file, and afterwards it is taken
out: what is in the slots of a client that was killed has no known end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import Concurrency, FixedWindow, Limit, SlidingLog, SlidingWindow, TokenBucket
from headgate.lab.limits import limit_from_json
from headgate.lab.recorder import HistoryRecorder, OperationSlots, monotonic_us

if TYPE_CHECKING:
    from collections.abc import Mapping

TASKS = 2
PATIENCE_S = 2.0
PAUSE_S = 0.02
LIMITS: dict[str, Limit] = {
    "fixed": FixedWindow(45, 1_000_000),
    "sliding": SlidingWindow(45, 1_000_000),
    "log": SlidingLog(30, 1_000_000),
    "bucket": TokenBucket(30, 1_000_000, 15),
    "small": FixedWindow(2, 1_000_000),
    "decided": FixedWindow(45, 1_000_000),
    "slots": Concurrency(4, 1_000_000),
}
LEASED_WINDOW_S = 6
LEASED_LIMITS: dict[str, Limit] = {
    "leased": FixedWindow(800, LEASED_WINDOW_S * 1_000_000),
    "leased sliding": SlidingWindow(400, LEASED_WINDOW_S * 1_000_000),
    "fixed": FixedWindow(45, 1_000_000),
}
"""More than is asked for in half a window, so that nodes hold chunks, and less than in a whole one."""
DECIDED = ("decided", "leased", "leased sliding")
"""Limits that are rules of the nodes, which requests are decided by; others come with the request."""
WEIGHTS = {"fixed": 6, "day": 6, "small": 1, "leased": 60, "leased sliding": 20}
WEIGHT = 3
HELD_S = 0.2
"""How long a slot is held, at most."""


def rules_of(limits: Mapping[str, Limit]) -> dict[str, Any]:
    """The rules that nodes need."""
    rules = [
        {
            "rule_id": name.replace(" ", "-"), "match": {"path_pattern": path_of(name)}, "identifier": "user_id",
            "limit": limit.limit, "window_size_seconds": limit.window_us // 1_000_000, "algorithm": limit.name,
            "consistency": "leased" if name.startswith("leased") else "exact",
        }
        for name, limit in limits.items()
        if name in DECIDED
    ]  # fmt: skip
    return {"rules": rules}


def path_of(rule: str) -> str:
    return f"/{rule.replace(' ', '-')}"


def asked(rule: str, limit: Limit, key: str, cost: int) -> dict[str, Any]:
    """The body of a check, or of a request that a rule decides."""
    if rule in DECIDED:
        return {"path": path_of(rule), "user_id": key, "cost": cost}
    body: dict[str, Any] = {
        "key": f"{rule}:{key}",
        "cost": cost,
        "limit": limit.limit,
        "algorithm": limit.name,
    }
    if isinstance(limit, Concurrency):
        return {
            "key": body["key"],
            "cost": cost,
            "limit": limit.limit,
            "ttl": limit.ttl_us // 1_000_000,
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


def outcome_of(status: int, answer: dict[str, Any]) -> dict[str, Any]:
    """What an answer means."""
    if status != 200:
        unheard = status in (400, 404, 409, 413, 429)
        return {"type": "fail" if unheard else "info", "err": f"{status} {answer.get('code')}"}
    if "released" in answer:
        return {"type": "allow"}
    return {"type": "allow" if answer["allowed"] else "deny", "source": answer["source"]}


class Asker:
    """One connection at a time to one node after the other."""

    def __init__(
        self, recorder: HistoryRecorder, slots: OperationSlots, number: int, addresses: list[str]
    ) -> None:
        self._recorder, self._slots, self._number = recorder, slots, number
        self._addresses = addresses
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._lives = 0
        self._slots_held = 0

    async def ask(self, node: int, rule: str, limit: Limit, key: str, cost: int) -> None:
        """Ask a node whether units of a limit are free."""
        path = "/decide" if rule in DECIDED else "/check"
        fields = {"f": "check", "key": key, "rule": rule, "cost": cost}
        await self._do(node, path, asked(rule, limit, key, cost), fields)

    async def hold(
        self, nodes: tuple[int, int], rule: str, limit: Limit, key: str, held_s: float
    ) -> None:
        """Acquire a slot at one node, hold it for so long, and release it at the same or at another one."""
        self._slots_held += 1
        fields = {"key": key, "rule": rule, "token": f"unknown {self._number}.{self._slots_held}"}
        body = asked(rule, limit, key, 1)
        answer = await self._do(nodes[0], "/acquire", body, {**fields, "f": "acquire", "cost": 1})
        if answer.get("allowed"):
            await asyncio.sleep(held_s)  # Its holder works.
            given = {"key": body["key"], "token": answer["token"]}
            fields["token"] = answer["token"]
            await self._do(nodes[1], "/release", given, {**fields, "f": "release"})

    async def _do(
        self, node: int, path: str, body: dict[str, Any], fields: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask a node; where nobody listens, the next one, as a load balancer does. What came of it is recorded."""
        for _ in self._addresses[1:]:
            if await self._connects(node):
                break
            node = (node + 1) % len(self._addresses)
        fields |= {"node": f"node {node}", "proc": f"{self._number}.{self._lives}"}
        t0 = monotonic_us()
        self._slots.begin(self._number % TASKS, {**fields, "t0": t0})
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, answer = await self._answer(node, path, body)
            outcome = outcome_of(status, answer)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._forget(node)
            self._lives += 1
            refused = isinstance(error, ConnectionRefusedError)
            outcome = {
                "type": "fail" if refused else "info",
                "err": f"{type(error).__name__} {error}"[:100],
            }
        if token := answer.get("token"):
            fields["token"] = token
        self._recorder.operation(**fields, t0=t0, t1=monotonic_us(), **outcome)
        self._slots.end(self._number % TASKS)
        return answer

    async def _connects(self, node: int) -> bool:
        """Whether there is a connection to a node; nothing has been sent if there is not.

        One that the node has closed meanwhile is replaced.
        """
        if node in self._streams and self._streams[node][0].at_eof():
            self._forget(node)
        if node not in self._streams:
            host, _, port = self._addresses[node].rpartition(":")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._streams[node] = await asyncio.open_connection(host, int(port))
            except (OSError, TimeoutError):
                return False
        return True

    async def _answer(
        self, node: int, path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        host, _, port = self._addresses[node].rpartition(":")
        if node not in self._streams:
            self._streams[node] = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams[node]
        content = json.dumps(body).encode()
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: %b:%b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), host.encode(), port.encode(), len(content), content)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split(" ", 2)[1])
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        if "connection: close" in head:
            self._forget(node)
        return status, answer

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
                limit = limits[rule]
                if isinstance(limit, Concurrency):
                    held_s = rng.uniform(0.0, HELD_S)
                    last = rng.choice((node, node, rng.randrange(len(addresses))))
                    await asker.hold((node, last), rule, limit, key, held_s)
                else:
                    await asker.ask(node, rule, limit, key, cost)
                await asyncio.sleep(rng.uniform(0.0, 2 * PAUSE_S))  # The pace of a real caller.

        await asyncio.gather(*(task(which) for which in range(TASKS)))


if __name__ == "__main__":
    path, number, seed, run_name, *addresses = sys.argv[1:]
    asyncio.run(run(path, int(number), int(seed), run_name, addresses))
