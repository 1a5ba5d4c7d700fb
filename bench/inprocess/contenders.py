"""Every limiter that takes part, each used the way its own documentation shows.

A contender's loop is written out in its class, because one more call around a hit would be charged
to everybody alike, and so make the fast look slower than they are. What can be prepared once is prepared
by everybody: parsed rates, limiter objects, stores that are large enough. What differs is left as it
ships: `limits` sweeps its keys in a timer thread, `pyrate-limiter` would do so in a leaker thread, which is
left out in its favour.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import limits
import pyrate_limiter as pyrate
import throttled
from limits.storage import MemoryStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from .builds import BUILDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headgate import Limit

    from ..harness import Keys
    from .builds import Build

DAY_US = 86_400_000_000
PACKAGES = ("headgate", "limits", "throttled-py", "pyrate-limiter")


class Entrant(Protocol):
    """A limiter of some number of units a day for each key."""

    def allows(self, key: str) -> bool:
        """Hit once."""

    def run(self, keys: Keys) -> None:
        """Hit once for each key: the loop that is timed."""

    def settle(self) -> None:
        """Wait for background work to end."""


Entry: TypeAlias = "Callable[[int], Entrant]"
"""Makes an entrant with so many units a day."""


class Floor:
    """What no limiter in pure Python can beat: a method call, a clock read, a dict get and set."""

    def __init__(self, limit: int) -> None:
        self._states: dict[str, float] = {}

    def hit(self, key: str) -> bool:
        """Look the key up and stamp it."""
        now = monotonic()
        self._states.get(key)
        self._states[key] = now
        return True

    def allows(self, key: str) -> bool:
        """Always: the floor counts nothing."""
        return self.hit(key)

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        floor = self
        for key in keys:
            floor.hit(key)

    def settle(self) -> None:
        """Nothing runs in the background."""


class Headgate:
    """`Limiter.hit(key, rate, algorithm=...)`."""

    def __init__(self, build: Build, algorithm: str, limit: int) -> None:
        self.limiter = build.limiter()
        self.charge = build.charge
        self.ready: Limit = build.algorithms[algorithm](limit, DAY_US)
        self.rate = f"{limit}/day"
        self.algorithm = algorithm

    def allows(self, key: str) -> bool:
        """Hit once."""
        return self.limiter.hit(key, self.rate, algorithm=self.algorithm).allowed

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        limiter, rate, algorithm = self.limiter, self.rate, self.algorithm
        for key in keys:
            limiter.hit(key, rate, algorithm=algorithm)

    def run_and_read(self, keys: Keys) -> None:
        """Hit, and read what a response header needs."""
        limiter, rate, algorithm = self.limiter, self.rate, self.algorithm
        for key in keys:
            decision = limiter.hit(key, rate, algorithm=algorithm)
            _ = (decision.allowed, decision.remaining, decision.reset_after)

    def run_limit_hit(self, keys: Keys) -> None:
        """Hit a limit that is bound to its key."""
        hit = self.limiter.limit(keys[0], self.rate, algorithm=self.algorithm).hit
        for _ in keys:
            hit()

    def run_acquire(self, keys: Keys) -> None:
        """Acquire, which never has to wait here."""
        acquire = self.limiter.limit(keys[0], self.rate, algorithm=self.algorithm).acquire
        for _ in keys:
            acquire()

    def run_with(self, keys: Keys) -> None:
        """The same, as a context manager."""
        limit = self.limiter.limit(keys[0], self.rate, algorithm=self.algorithm)
        for _ in keys:
            with limit:
                pass

    def run_three_charges(self, keys: Keys) -> None:
        """Charge three keys together, all or nothing."""
        limiter, ready, charge = self.limiter, self.ready, self.charge
        for key in keys:
            limiter.decide([charge(key, ready), charge("org:7", ready), charge("everybody", ready)])

    def settle(self) -> None:
        """Nothing runs in the background."""


class HeadgateAsync:
    """`await AsyncLimiter.hit(key, rate, algorithm=...)`, in a running event loop."""

    def __init__(self, build: Build, algorithm: str, limit: int) -> None:
        self.limiter = build.async_limiter()
        self.rate = f"{limit}/day"
        self.algorithm = algorithm
        self._runner = asyncio.Runner()

    def allows(self, key: str) -> bool:
        """Hit once."""
        hit = self.limiter.hit(key, self.rate, algorithm=self.algorithm)
        return self._runner.run(hit).allowed

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        self._runner.run(self._run(keys))

    def run_limit_hit(self, keys: Keys) -> None:
        """Hit a limit that is bound to its key."""
        limit = self.limiter.limit(keys[0], self.rate, algorithm=self.algorithm)
        self._runner.run(self._call(limit.hit, len(keys)))

    def run_acquire(self, keys: Keys) -> None:
        """Acquire, which never has to wait here."""
        limit = self.limiter.limit(keys[0], self.rate, algorithm=self.algorithm)
        self._runner.run(self._call(limit.acquire, len(keys)))

    async def _call(self, call: Callable[[], Awaitable[object]], times: int) -> None:
        for _ in range(times):
            await call()

    async def _run(self, keys: Keys) -> None:
        limiter, rate, algorithm = self.limiter, self.rate, self.algorithm
        for key in keys:
            await limiter.hit(key, rate, algorithm=algorithm)

    def settle(self) -> None:
        """Nothing runs in the background."""

    def close(self) -> None:
        """Close the event loop."""
        self._runner.close()


class Limits:
    """`limits`: a strategy over its memory storage."""

    strategies: ClassVar[dict[str, type[RateLimiter]]] = {
        "fixed": FixedWindowRateLimiter,
        "moving": MovingWindowRateLimiter,
        "sliding": SlidingWindowCounterRateLimiter,
    }

    def __init__(self, strategy: str, limit: int) -> None:
        self._storage = MemoryStorage()
        self._limiter = self.strategies[strategy](self._storage)
        self._item = limits.parse(f"{limit}/day")

    def allows(self, key: str) -> bool:
        """Hit once."""
        return self._limiter.hit(self._item, key)

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        limiter, item = self._limiter, self._item
        for key in keys:
            limiter.hit(item, key)

    def run_and_read(self, keys: Keys) -> None:
        """Hit, and ask again for what a response header needs."""
        limiter, item = self._limiter, self._item
        for key in keys:
            allowed = limiter.hit(item, key)
            reset_at, remaining = limiter.get_window_stats(item, key)
            _ = (allowed, remaining, reset_at)

    def run_three_hits(self, keys: Keys) -> None:
        """Hit three keys one after the other; what the first took stays taken if the last denies."""
        limiter, item = self._limiter, self._item
        for key in keys:
            limiter.hit(item, key)
            limiter.hit(item, "org:7")
            limiter.hit(item, "everybody")

    def settle(self) -> None:
        """Wait for the sweep that the last hits have started."""
        self._storage.timer.join()


class Throttled:
    """`throttled-py`: one `Throttled` over a memory store that is as large as it needs to be."""

    def __init__(self, algorithm: str, limit: int) -> None:
        store = throttled.MemoryStore(options={"MAX_SIZE": 4_000_000})
        self._throttle = throttled.Throttled(
            using=algorithm, quota=throttled.per_day(limit), store=store
        )

    def allows(self, key: str) -> bool:
        """Hit once."""
        return not self._throttle.limit(key).limited

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        throttle = self._throttle
        for key in keys:
            throttle.limit(key)

    def settle(self) -> None:
        """Nothing runs in the background."""


class _Buckets(pyrate.BucketFactory):
    """A bucket for each key, as the documentation of pyrate-limiter builds them; nothing leaks."""

    def __init__(self, make: Callable[[], pyrate.AbstractBucket]) -> None:
        self._make = make
        self._clock = pyrate.MonotonicClock()
        self._buckets: dict[str, pyrate.AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate.RateItem:
        return pyrate.RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: pyrate.RateItem) -> pyrate.AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._make()
        return bucket


class Pyrate:
    """`pyrate-limiter`: `try_acquire` over a factory of in-memory buckets."""

    def __init__(self, algorithm: str, limit: int) -> None:
        rates = [pyrate.Rate(limit, pyrate.Duration.DAY)]
        makers: dict[str, Callable[[], pyrate.AbstractBucket]] = {
            "log": lambda: pyrate.InMemoryBucket(rates),
            "fixed": lambda: pyrate.InMemoryBucket(rates, pyrate.FixedWindow()),
            "gcra": lambda: pyrate.StateBucket(rates),
        }
        self._limiter = pyrate.Limiter(_Buckets(makers[algorithm]))

    def allows(self, key: str) -> bool:
        """Hit once."""
        return self._limiter.try_acquire(key, blocking=False) is True

    def run(self, keys: Keys) -> None:
        """Hit once for each key."""
        limiter = self._limiter
        for key in keys:
            limiter.try_acquire(key, blocking=False)

    def settle(self) -> None:
        """Nothing runs in the background."""


class ThreadGroup:
    """Several threads that share one entrant and its keys."""

    def __init__(self, entrant: Entrant, threads: int) -> None:
        self._entrant = entrant
        self._threads = threads

    def run(self, keys: Keys) -> None:
        """Split the keys between the threads; every one of them hits once for each of its own."""
        crowd = [
            threading.Thread(target=self._entrant.run, args=(keys[i :: self._threads],))
            for i in range(self._threads)
        ]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()


ALGORITHMS = (
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "token_bucket",
    "exponential_backoff",
    "adaptive",
)

OURS = {build(algorithm): (build, algorithm) for build in BUILDS for algorithm in ALGORITHMS}
"""Every algorithm of every build, by its name in tables."""

ENTRIES: dict[str, Entry] = {
    **{name: partial(Headgate, *ours) for name, ours in OURS.items()},
    "limits fixed": partial(Limits, "fixed"),
    "limits moving": partial(Limits, "moving"),
    "limits sliding": partial(Limits, "sliding"),
    "throttled fixed": partial(Throttled, "fixed_window"),
    "throttled sliding": partial(Throttled, "sliding_window"),
    "throttled token": partial(Throttled, "token_bucket"),
    "throttled gcra": partial(Throttled, "gcra"),
    "throttled leaking": partial(Throttled, "leaking_bucket"),
    "pyrate fixed": partial(Pyrate, "fixed"),
    "pyrate log": partial(Pyrate, "log"),
    "pyrate gcra": partial(Pyrate, "gcra"),
}
"""Everybody who counts. Ours are named after their algorithm and, unless it is pure Python, their build."""
