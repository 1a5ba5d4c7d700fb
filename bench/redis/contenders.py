"""Every limiter that takes part, each used the way its own documentation shows.

A contender's loops are written out in its class, because one more call around a hit would be charged
to everybody alike, and so make the fast look slower than they are. What can be prepared once is prepared
by everybody: parsed rates, limiter objects, connections (the first slice, which is not counted, opens them).
One setting differs from how the peers ship: redis-py refuses more than 100 connections unless told otherwise,
and they need one for each check under way, so they are told.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import redis.asyncio
import throttled
import throttled.asyncio

from headgate import AsyncLimiter, Charge, Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..harness import Keys

PACKAGES = ("headgate", "limits", "throttled-py", "redis", "hiredis", "uvloop")
MAX_CONNECTIONS = 600
SECONDS = {"minute": 60, "day": 86_400}


@dataclass(frozen=True)
class Quota:
    """So many units in each period."""

    limit: int
    period: str = "minute"

    def __str__(self) -> str:
        return f"{self.limit}/{self.period}"


class Entrant(Protocol):
    """A limiter with one quota for every key."""

    async def allows(self, key: str) -> bool:
        """Hit once."""

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit once for each key that is left, one after the other, and note how long each took."""

    async def run_untimed(self, keys: Iterator[str]) -> None:
        """The same without looking at the clock."""

    async def close(self) -> None:
        """Close the connections."""


Entry: TypeAlias = "Callable[[str, Quota], Entrant]"
"""Makes an entrant on the server at a URL. Called inside a running loop."""


class Headgate:
    """`await AsyncLimiter(url).hit(key, rate, algorithm=...)`."""

    def __init__(self, algorithm: str, url: str, quota: Quota) -> None:
        self.limiter = AsyncLimiter(url)
        self.rate = str(quota)
        self.algorithm = algorithm

    async def allows(self, key: str) -> bool:
        """Hit once."""
        return (await self.limiter.hit(key, self.rate, algorithm=self.algorithm)).allowed

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit and note."""
        hit, rate, algorithm = self.limiter.hit, self.rate, self.algorithm
        for key in keys:
            started_ns = perf_counter_ns()
            await hit(key, rate, algorithm=algorithm)
            took_ns.append(perf_counter_ns() - started_ns)

    async def run_untimed(self, keys: Iterator[str]) -> None:
        """Hit."""
        hit, rate, algorithm = self.limiter.hit, self.rate, self.algorithm
        for key in keys:
            await hit(key, rate, algorithm=algorithm)

    async def close(self) -> None:
        """Close the connection."""
        await self.limiter.aclose()


class HeadgateThree(Headgate):
    """Three charges in one decision, all or nothing."""

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Decide and note."""
        decide, rate, algorithm = self.limiter.decide, self.rate, self.algorithm
        for key in keys:
            started_ns = perf_counter_ns()
            await decide(
                [
                    Charge(key, rate, algorithm=algorithm),
                    Charge("org:7", rate, algorithm=algorithm),
                    Charge("everybody", rate, algorithm=algorithm),
                ]
            )
            took_ns.append(perf_counter_ns() - started_ns)


class Limits:
    """`limits`: a strategy over its asyncio storage, by way of redis-py."""

    strategies: ClassVar[dict[str, type[limits.aio.strategies.RateLimiter]]] = {
        "fixed": limits.aio.strategies.FixedWindowRateLimiter,
        "moving": limits.aio.strategies.MovingWindowRateLimiter,
        "sliding": limits.aio.strategies.SlidingWindowCounterRateLimiter,
    }

    def __init__(self, strategy: str, url: str, quota: Quota) -> None:
        self._storage = limits.aio.storage.RedisStorage(
            f"async+{url}", implementation="redispy", max_connections=MAX_CONNECTIONS
        )
        self._limiter = self.strategies[strategy](self._storage)
        # Strategies keep different types of value under one name, unless told apart.
        self._item = limits.parse(str(quota))
        self._namespace = strategy

    async def allows(self, key: str) -> bool:
        """Hit once."""
        return await self._limiter.hit(self._item, self._namespace, key)

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit and note."""
        hit, item, namespace = self._limiter.hit, self._item, self._namespace
        for key in keys:
            started_ns = perf_counter_ns()
            await hit(item, namespace, key)
            took_ns.append(perf_counter_ns() - started_ns)

    async def run_untimed(self, keys: Iterator[str]) -> None:
        """Hit."""
        hit, item, namespace = self._limiter.hit, self._item, self._namespace
        for key in keys:
            await hit(item, namespace, key)

    async def close(self) -> None:
        """Close the connections, which the library leaves open."""
        bridge: Any = self._storage.bridge
        await bridge.get_connection().aclose()


class LimitsThree(Limits):
    """Three hits one after the other; what the first took stays taken if the last denies."""

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit thrice and note."""
        hit, item, namespace = self._limiter.hit, self._item, self._namespace
        for key in keys:
            started_ns = perf_counter_ns()
            await hit(item, namespace, key)
            await hit(item, namespace, "org:7")
            await hit(item, namespace, "everybody")
            took_ns.append(perf_counter_ns() - started_ns)


class Throttled:
    """`throttled-py`: one `Throttled` over its asyncio Redis store."""

    def __init__(self, algorithm: str, url: str, quota: Quota) -> None:
        pool = {"max_connections": MAX_CONNECTIONS}
        self._store = throttled.asyncio.RedisStore(
            server=url, options={"CONNECTION_POOL_KWARGS": pool}
        )
        per = {"minute": throttled.per_min, "day": throttled.per_day}[quota.period]
        self._throttle = throttled.asyncio.Throttled(
            using=algorithm, quota=per(quota.limit), store=self._store
        )

    async def allows(self, key: str) -> bool:
        """Hit once."""
        return not (await self._throttle.limit(key)).limited

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit and note."""
        limit = self._throttle.limit
        for key in keys:
            started_ns = perf_counter_ns()
            await limit(key)
            took_ns.append(perf_counter_ns() - started_ns)

    async def run_untimed(self, keys: Iterator[str]) -> None:
        """Hit."""
        limit = self._throttle.limit
        for key in keys:
            await limit(key)

    async def close(self) -> None:
        """Close the connections, which the library leaves open."""
        client: Any = self._store._backend.get_client()
        await client.connection_pool.disconnect()


class FastapiLimiter:
    """A script of the kind that `fastapi-limiter` 0.1 sends for each request, by way of redis-py.

    A counter that begins with its time to live, grows while there is room, and then tells how long it lives on.
    (0.2 hands over to another library.) The least that a limiter on redis-py can do.
    """

    script = """
        local used = tonumber(redis.call('GET', KEYS[1]) or '0')
        if used == 0 then
            redis.call('SET', KEYS[1], 1, 'PX', ARGV[2])
        elseif used < tonumber(ARGV[1]) then
            redis.call('INCR', KEYS[1])
        else
            return redis.call('PTTL', KEYS[1])
        end
        return 0
    """

    def __init__(self, url: str, quota: Quota) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, max_connections=MAX_CONNECTIONS)
        self._sha = ""
        self._limit = str(quota.limit)
        self._window_ms = str(SECONDS[quota.period] * 1_000)

    async def allows(self, key: str) -> bool:
        """Hit once."""
        self._sha = self._sha or await self._client.script_load(self.script)
        name = "fastapi-limiter:" + key
        reply = await self._client.evalsha(self._sha, 1, name, self._limit, self._window_ms)
        return bool(reply == 0)

    async def work(self, keys: Iterator[str], took_ns: list[int]) -> None:
        """Hit and note."""
        if not self._sha:
            await self.allows("the first")
        evalsha, sha, limit, window_ms = (
            self._client.evalsha,
            self._sha,
            self._limit,
            self._window_ms,
        )
        for key in keys:
            started_ns = perf_counter_ns()
            await evalsha(sha, 1, "fastapi-limiter:" + key, limit, window_ms)
            took_ns.append(perf_counter_ns() - started_ns)

    async def run_untimed(self, keys: Iterator[str]) -> None:
        """Hit."""
        if not self._sha:
            await self.allows("the first")
        evalsha, sha, limit, window_ms = (
            self._client.evalsha,
            self._sha,
            self._limit,
            self._window_ms,
        )
        for key in keys:
            await evalsha(sha, 1, "fastapi-limiter:" + key, limit, window_ms)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class Plain:
    """A limiter without an event loop: `Limiter(url).hit(key, rate, algorithm=...)`."""

    def __init__(self, algorithm: str, url: str, quota: Quota) -> None:
        self._limiter = Limiter(url)
        self._rate = str(quota)
        self._algorithm = algorithm

    def work(self, keys: Keys, took_ns: list[int]) -> None:
        """Hit and note."""
        hit, rate, algorithm = self._limiter.hit, self._rate, self._algorithm
        for key in keys:
            started_ns = perf_counter_ns()
            hit(key, rate, algorithm=algorithm)
            took_ns.append(perf_counter_ns() - started_ns)

    def close(self) -> None:
        """Close the connection."""
        self._limiter.close()


class PlainLimits:
    """`limits` without an event loop."""

    strategies: ClassVar[dict[str, type[limits.strategies.RateLimiter]]] = {
        "fixed": limits.strategies.FixedWindowRateLimiter,
        "moving": limits.strategies.MovingWindowRateLimiter,
        "sliding": limits.strategies.SlidingWindowCounterRateLimiter,
    }

    def __init__(self, strategy: str, url: str, quota: Quota) -> None:
        self._storage = limits.storage.RedisStorage(url)
        self._limiter = self.strategies[strategy](self._storage)
        self._item = limits.parse(str(quota))
        self._namespace = strategy

    def work(self, keys: Keys, took_ns: list[int]) -> None:
        """Hit and note."""
        hit, item, namespace = self._limiter.hit, self._item, self._namespace
        for key in keys:
            started_ns = perf_counter_ns()
            hit(item, namespace, key)
            took_ns.append(perf_counter_ns() - started_ns)

    def close(self) -> None:
        """Close the connections, which the library leaves open."""
        client: Any = self._storage.storage
        client.close()


@dataclass
class Times:
    """What single checks took: 50th and 99th percentile of every slice that counts, in nanoseconds."""

    took_ns: list[int] = field(default_factory=list)
    """Of the slice that has just been run."""
    p50_ns: list[int] = field(default_factory=list)
    p99_ns: list[int] = field(default_factory=list)
    warm: bool = False

    def settle(self) -> None:
        """Sum up the last slice, unless it was the warm-up, and forget it."""
        if self.warm and self.took_ns:
            self.took_ns.sort()
            self.p50_ns.append(percentile(self.took_ns, 50))
            self.p99_ns.append(percentile(self.took_ns, 99))
        self.took_ns.clear()
        self.warm = True


def percentile(ordered: list[int], percent: float) -> int:
    """The smallest value that is not below `percent` of all."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


class CallerGroup:
    """Several tasks that share one entrant and one slice of keys."""

    def __init__(self, loop: asyncio.AbstractEventLoop, entrant: Entrant, size: int) -> None:
        self._loop = loop
        self._entrant = entrant
        self._size = size
        self.times = Times()

    def run(self, keys: Keys) -> None:
        """Every task takes the next key as soon as it has its answer."""
        work, left, took_ns = self._entrant.work, iter(keys), self.times.took_ns
        self._together([work(left, took_ns) for _ in range(self._size)])

    def run_untimed(self, keys: Keys) -> None:
        """The same without looking at the clock."""
        run_untimed, left = self._entrant.run_untimed, iter(keys)
        self._together([run_untimed(left) for _ in range(self._size)])

    def _together(self, tasks: list[Any]) -> None:
        async def everybody() -> None:
            await asyncio.gather(*tasks)

        self._loop.run_until_complete(everybody())


OURS = ("token_bucket", "sliding_window", "fixed_window", "sliding_log")

ENTRIES: dict[str, Entry] = {
    **{name: partial(Headgate, name) for name in OURS},
    "limits fixed": partial(Limits, "fixed"),
    "limits sliding": partial(Limits, "sliding"),
    "limits moving": partial(Limits, "moving"),
    "throttled token": partial(Throttled, "token_bucket"),
    "throttled gcra": partial(Throttled, "gcra"),
    "throttled sliding": partial(Throttled, "sliding_window"),
    "fastapi-limiter": FastapiLimiter,
}
"""Everybody who counts. Ours are named after their algorithm."""
PEERS = tuple(name for name in ENTRIES if name not in OURS)
THREE_CHARGES: dict[str, Entry] = {
    **{name: partial(HeadgateThree, name) for name in OURS[:3]},
    **{f"limits {strategy}": partial(LimitsThree, strategy) for strategy in Limits.strategies},
}
