"""Who is measured, each asked in the same way: a call that takes one unit of a key, and waits where it has to."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from headgate import Decision, FixedWindow, SlidingWindow
from headgate.engines.base import Awaited
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.etcd.client import AsyncEtcdClient
from headgate.engines.etcd.options import parse_url
from headgate.engines.etcd.transactions import ChangedAt, Put
from headgate.engines.memory import MemoryEngine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEMORY, EXACT, LEASED, SWAP = "memory", "etcd, exact", "etcd, leased", "a compare-and-swap each"
PLENTY = 1_000_000_000
"""Nobody is denied while things are timed."""
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
_NUMBERS = itertools.count(1)


class Limited:
    """Somebody who counts the units of keys."""

    def __init__(
        self,
        name: str,
        take: Callable[[str], Awaitable[bool]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.take = take
        """Take one unit of a key, if there is one."""
        self._close = close

    async def close(self) -> None:
        """Let go of the servers."""
        if self._close is not None:
            await self._close()


def memory(limit: int = PLENTY) -> Limited:
    """The memory engine, asked from an event loop."""
    engine = Awaited(MemoryEngine())
    return Limited(MEMORY, asking(engine.bind(SlidingWindow(limit, MINUTE_US))))


def on_etcd(hosts: str, consistency: str, limit: int = PLENTY) -> Limited:
    """The etcd engine in this process, with keys of its own; leased, it has no bound on what is not confirmed."""
    without_bound = "&unconfirmed=1000000" if consistency == "leased" else ""
    url = f"etcd://{hosts}/bench{next(_NUMBERS)}?consistency={consistency}&deadline=10"
    engine = AsyncEtcdEngine(url + without_bound)
    name = {"exact": EXACT, "leased": LEASED}[consistency]
    return Limited(name, asking(engine.bind(SlidingWindow(limit, MINUTE_US))), close=engine.aclose)


def swapping(hosts: str, limit: int = PLENTY) -> Limited:
    """What a library without an engine does: read, decide, write if nobody else has in between; else again."""
    client = AsyncEtcdClient(parse_url(f"etcd://{hosts}/bench"))
    window = FixedWindow(limit, DAY_US)
    prefix = f"swap{next(_NUMBERS)}/"

    async def take(key: str) -> bool:
        name = prefix + key
        while True:
            found = (await client.read(name)).items
            used, changed = (int(found[0].value), found[0].changed) if found else (0, 0)
            if used >= window.limit:
                return False
            done = await client.transact(
                [ChangedAt(name, changed)], [Put(name, str(used + 1).encode())]
            )
            if done.succeeded:
                return True

    return Limited(SWAP, take, close=client.close)


def bare_transaction(hosts: str) -> Limited:
    """One write to etcd and nothing else: as long as any exact answer has to take."""
    client = AsyncEtcdClient(parse_url(f"etcd://{hosts}/bench"))
    name = f"bare{next(_NUMBERS)}"

    async def take(key: str) -> bool:
        return (await client.transact([], [Put(f"{name}/{key}", b"1")])).succeeded

    return Limited("a bare transaction", take, close=client.close)


async def verify(limited: Limited, limit: int) -> None:
    """Refuse to time what does not admit exactly its limit to callers that come together."""
    answers = await asyncio.gather(*(limited.take("verify") for _ in range(limit + 7)))
    if sum(answers) != limit:
        raise AssertionError(f"{limited.name} should admit {limit}, and admitted {sum(answers)}")


def asking(hit: Callable[[str, int], Any]) -> Callable[[str], Awaitable[bool]]:
    """Take one unit by an engine's bound limit, which may answer at once."""

    async def take(key: str) -> bool:
        answer = hit(key, 1)
        if isinstance(answer, Decision):  # At once; give others their turn, as any server does.
            await asyncio.sleep(0)
            return answer.allowed
        return bool((await answer).allowed)

    return take
