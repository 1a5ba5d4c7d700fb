"""Many processes on one key: exactly as many pass as the limit says, whoever asks and however."""

from __future__ import annotations

import json
import subprocess
import sys
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
from headgate.charge import Charge, ChargeSet
from headgate.engines.redis.sync import RedisEngine

if TYPE_CHECKING:
    from headgate import Limit
    from tests.servers.redis import RedisServer

LONG_US = 100 * 86_400_000_000
LIMIT = 40
LIMITS: list[Limit] = [
    FixedWindow(LIMIT, LONG_US),
    SlidingWindow(LIMIT, LONG_US),
    SlidingLog(LIMIT, LONG_US),
    TokenBucket(LIMIT, LONG_US),
    ExponentialBackoff(LIMIT, LONG_US),
    Adaptive(LIMIT, LONG_US),
    Concurrency(LIMIT, 86_400_000_000),
]
ROUNDS = 3

# It says that it is ready, waits for the word, and tells how many of its requests passed.
CALLER = """
import asyncio, json, sys
from headgate import *
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine

kind, url, limits, rounds, tries = sys.argv[1:]
limits = [eval(limit) for limit in json.loads(limits)]
places = [(limit, f"key {number}") for number in range(int(rounds)) for limit in limits]

def ready():
    print("ready", flush=True)
    sys.stdin.readline()

def sync():
    engine = RedisEngine(url)
    hits = [(engine.bind(limit), key) for limit, key in places]
    ready()
    return [sum(bool(hit(key, 1)) for _ in range(int(tries))) for hit, key in hits]

async def main():
    engine = AsyncRedisEngine(url)
    hits = [(engine.bind(limit), key) for limit, key in places]
    ready()
    counts = []
    for hit, key in hits:
        counts.append(sum(map(bool, await asyncio.gather(*(hit(key, 1) for _ in range(int(tries)))))))
    await engine.aclose()
    return counts

print(json.dumps(sync() if kind == "sync" else asyncio.run(main())))
"""


@pytest.mark.slow
def test_six_processes_on_one_key_pass_exactly_the_limit(redis_server: RedisServer) -> None:
    """Four that block and two that await, each asking for half the limit again, on every algorithm."""
    arguments = [redis_server.url, json.dumps([repr(limit) for limit in LIMITS]), str(ROUNDS)]
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", CALLER, kind, *arguments, str(LIMIT // 2)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ["sync"] * 4 + ["async"] * 2
    ]
    try:
        for caller in callers:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
        for caller in callers:
            assert caller.stdin is not None
            caller.stdin.write("go\n")
            caller.stdin.flush()
        counts = [json.loads(caller.communicate(timeout=30)[0]) for caller in callers]
    finally:
        for caller in callers:
            caller.kill()
            caller.communicate()
    admitted = [sum(passed) for passed in zip(*counts, strict=True)]
    assert admitted == [LIMIT] * (len(LIMITS) * ROUNDS)
    engine = RedisEngine(redis_server.url)
    for number in range(ROUNDS):
        assert [engine.usage(f"key {number}", limit).used for limit in LIMITS] == [LIMIT] * len(
            LIMITS
        )
    engine.close()


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_all_that_was_reserved_is_given_back_by_the_servers_clock(
    redis_server: RedisServer, limit: Limit
) -> None:
    """An old window: the empty state needs no time to live. A manual clock has a longer one, and hides that."""
    engine = RedisEngine(redis_server.url)
    (decision,) = engine.decide([ChargeSet((Charge("key", limit, 3),), reserve_us=60_000_000)])
    assert engine.settle(str(decision.token), 0)
    assert engine.usage("key", limit).used == 0
    engine.close()
