"""The server's clock steps, and two versions of the scripts share one store."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES
from headgate.engines.redis.scripts import Script, library, script
from headgate.engines.redis.sync import RedisEngine
from tests.faults.load import LONG_US, report, window_of
from tests.servers.fixtures import installed, on_flavours
from tests.servers.process import wait_until
from tests.servers.redis import standalone

if TYPE_CHECKING:
    from headgate import Limit
    from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow

SECOND_US = 1_000_000
HOUR_S = 3_600.0


def short_limits() -> list[tuple[Limit, float]]:
    """Limits of one second, and after how long an idle key must pass again at the latest."""
    return [
        (FixedWindow(5, SECOND_US), 1.0),
        (SlidingWindow(5, SECOND_US), 2.0),
        (SlidingLog(5, SECOND_US), 1.0),
        (TokenBucket(5, SECOND_US), 1.0),
        (ExponentialBackoff(5, SECOND_US, max_level=1), 2.0),
        (Adaptive(5, SECOND_US), 2.0),
        (Concurrency(5, SECOND_US), 1.0),
    ]


@pytest.mark.parametrize("flavour", ["redis-7.0", "valkey-9"])
def test_a_clock_that_steps_back_an_hour_freezes_no_key(flavour: str) -> None:
    with installed(), standalone(flavour, movable_clock=True) as server:
        assert server.clock is not None
        engine = RedisEngine(server.url)
        hits = [(engine.bind(limit), limit, patience) for limit, patience in short_limits()]
        for hit, limit, _ in hits:
            assert hit(limit.name, 5)
            assert not hit(limit.name, 5)
        server.clock.step(-HOUR_S)
        stepped = time.monotonic()
        for hit, limit, _ in hits:
            denied = hit(limit.name, 5)
            assert not denied, limit.name  # A step back is no present, either.
            assert denied.retry_after <= 2.0, limit.name
        waiting = {limit.name: (hit, patience) for hit, limit, patience in hits}
        while waiting:
            assert time.monotonic() - stepped < 4.0, waiting.keys()
            time.sleep(0.05)  # The server's clock runs on by itself.
            for name, (hit, patience) in list(waiting.items()):
                # Backoff is asked when it may pass: asking earlier makes it wait longer.
                if time.monotonic() - stepped > patience and hit(name, 1):
                    del waiting[name]
        report(f"all pass again {time.monotonic() - stepped:.2f} s after the step")
        engine.close()


@pytest.mark.parametrize("flavour", ["redis-7.0", "valkey-9"])
def test_a_clock_that_steps_forward_gives_a_window_early_and_no_more(flavour: str) -> None:
    limit = window_of(5)
    bucket = TokenBucket(5, 3_600 * SECOND_US)
    with installed(), standalone(flavour, movable_clock=True) as server:
        assert server.clock is not None
        engine = RedisEngine(server.url)
        for one in (limit, bucket):
            assert engine.bind(one)("key", 5)
        server.clock.step(30.0)
        assert not engine.bind(limit)("key", 1)
        assert not engine.bind(bucket)("key", 1)
        server.clock.step(HOUR_S)
        assert [bool(engine.bind(bucket)("key", 1)) for _ in range(6)] == [True] * 5 + [False]
        engine.close()


WIDE_US = 2 * SECOND_US
FAILOVERS = 100
MASTERS_LIMITS: list[Limit] = [
    FixedWindow(5, WIDE_US),
    SlidingWindow(5, WIDE_US),
    SlidingLog(5, WIDE_US),
    TokenBucket(5, WIDE_US),
    ExponentialBackoff(5, WIDE_US, denials_per_level=1_000_000),
    *(Adaptive(5, WIDE_US, chosen=one) for one in CANDIDATES),
    Concurrency(5, WIDE_US),
]


def most(limit: Limit, from_us: int, to_us: int) -> int:
    """What a key that was never used may be given between two moments."""
    chosen = limit.chosen if isinstance(limit, Adaptive) else limit.name
    if chosen == TokenBucket.name:
        return 5 + 5 * (to_us - from_us) // WIDE_US
    if chosen in {SlidingLog.name, Concurrency.name}:
        return 5 + 5 * ((to_us - from_us) // WIDE_US)
    return 5 + 5 * (to_us // WIDE_US - from_us // WIDE_US)


def server_us(server: RedisServer) -> int:
    seconds, us = server.call("TIME")
    return int(seconds) * SECOND_US + int(us)


def take_over(new: RedisServer, old: RedisServer) -> None:
    """`new` has all that `old` has, and becomes its master."""
    wait_until(lambda: new.has_all_of(old), "the replica has every write of its master")
    new.follow(None)
    old.follow(new)
    wait_until(old.in_sync, "the old master follows the new one")


@pytest.mark.parametrize("flavour", ["redis-7.0", "valkey-9"])
@pytest.mark.parametrize("behind_s", [1.0, 0.002])
def test_masters_whose_clocks_differ_give_what_the_way_between_them_gives_once(
    flavour: str, behind_s: float
) -> None:
    """On each of them all that there is is asked for, over the ends of windows."""
    with (
        installed(),
        standalone(flavour, movable_clock=True) as ahead,
        standalone(flavour, movable_clock=True) as behind,
    ):
        assert behind.clock is not None
        behind.clock.step(-behind_s)
        behind.follow(ahead)
        wait_until(behind.in_sync, "the replica has begun")
        engines = {ahead: RedisEngine(ahead.url), behind: RedisEngine(behind.url)}
        given: Counter[Limit] = Counter()
        master, other = ahead, behind
        from_us = server_us(behind)
        for _ in range(FAILOVERS):
            for number, limit in enumerate(
                MASTERS_LIMITS
            ):  # Those of one identity have a key each.
                hit = engines[master].bind(limit)
                while hit(f"key {number}", 1):
                    given[limit] += 1
            take_over(other, master)
            master, other = other, master
        to_us = server_us(ahead)
        for engine in engines.values():
            engine.close()
        bounds = {limit: most(limit, from_us, to_us) for limit in MASTERS_LIMITS}
        passed_s = (to_us - from_us) / SECOND_US
        report(
            f"{max(given.values())} of {max(bounds.values())} at most in {passed_s:.1f} s and {FAILOVERS} failovers"
        )
        for limit, bound in bounds.items():
            assert 5 <= given[limit] <= bound, limit


def upgraded(server: RedisServer) -> Script:
    """A command of a later version, whose states have one more field than ours, in a library of its own."""
    written = b"algorithm.text(limit, state)"
    ours = script("decide").function.removesuffix(b"_decide")
    assert library().count(written) == 2
    text = library().replace(written, written + b" .. pack('<d', 42)")
    server.call("FUNCTION", "LOAD", text.replace(ours, b"headgate_later"))
    return replace(script("decide"), function=b"headgate_later_decide")


@on_flavours("redis_server", "redis-7.0", "redis-8")
@pytest.mark.parametrize(
    "limit",
    [
        FixedWindow(40, LONG_US),
        SlidingWindow(40, LONG_US),
        TokenBucket(40, LONG_US),
        ExponentialBackoff(40, LONG_US),
        Adaptive(40, LONG_US),
    ],
    ids=lambda limit: str(limit.name),
)
def test_an_old_and_a_new_version_share_a_key(redis_server: RedisServer, limit: Limit) -> None:
    """A rolling upgrade: fields are only ever appended, so each reads what the other wrote."""
    old, new = RedisEngine(redis_server.url), RedisEngine(redis_server.url)
    new._operations._decide = upgraded(redis_server)
    hits = [old.bind(limit), new.bind(limit)]
    decisions = [hits[number % 2]("key", 1) for number in range(50)]
    (name,) = redis_server.call("KEYS", "*")
    old_size = _size(redis_server, name, old, limit)
    new_size = _size(redis_server, name, new, limit)
    assert [bool(one) for one in decisions] == [True] * 40 + [False] * 10
    assert [one.remaining for one in decisions[:40]] == list(range(39, -1, -1))
    assert old.usage("key", limit).used == new.usage("key", limit).used == 40
    assert new_size == old_size + 8  # The later version did write its own format.
    old.close()
    new.close()


def _size(server: RedisServer, name: str, engine: RedisEngine, limit: Limit) -> int:
    """How large the state is after this engine wrote it."""
    server.call("DEL", name)
    engine.bind(limit)("key", 40)
    return int(server.call("STRLEN", name))
