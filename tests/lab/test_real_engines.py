"""Real engines under real callers: clean runs raise no alarm, and mistakes around them are found."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from headgate import (
    Charge,
    Concurrency,
    FixedWindow,
    Limit,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.charge import ChargeSet
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.errors import HeadgateError
from headgate.lab.history import load_history
from headgate.lab.recorder import HistoryRecorder, monotonic_us
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge
from tests.lab.witness import Witness, witnessed
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headgate.lab.verdict import HistoryVerdict
    from tests.servers.redis import RedisServer

LIMITS: list[Limit] = [
    FixedWindow(30, 50_000),
    SlidingWindow(30, 50_000),
    SlidingLog(30, 50_000),
    TokenBucket(600, 1_000_000, 20),
]
CALLERS = 6
EPSILON_US = 2_000
"""How far the server's clock may be from ours: both read the same one, at different moments."""


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(callers: int, call: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def verdict_on(path: Path) -> HistoryVerdict:
    return judge(Scene(load_history(path)))


@pytest.mark.parametrize("door", ["bind", "bind_run"])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@pytest.mark.usefixtures("hasty")
def test_threads_on_the_memory_engine(limit: Limit, door: str, tmp_path: Path) -> None:
    """Every answer is replayed, in the order in which the engine gave them."""
    path = tmp_path / "history.jsonl"
    engine, witness = MemoryEngine(), Witness()
    seen = witnessed(limit, witness)
    hit, hit_run = engine.bind(seen), engine.bind_run(seen)
    epoch_us = engine.clock.epoch_ns // 1000
    with HistoryRecorder(
        path, engine="memory", mode="exact", limits={"api": limit}, epoch_us=epoch_us
    ) as recorder:

        def call(number: int) -> None:
            for _ in range(300):
                t0 = monotonic_us()
                answer = hit("key", 1).answer if door == "bind" else hit_run(["key"], 1).answers[0]
                t1 = monotonic_us()
                receipt = witness.receipt()
                allowed, remaining, retry_after_us, reset_after_us, _ = answer
                recorder.operation(
                    f="check", key="key", proc=number, t0=t0, t1=t1,
                    type="allow" if allowed else "deny", ver=receipt.version, now_us=receipt.now_us,
                    remaining=remaining, retry_after_us=retry_after_us, reset_after_us=reset_after_us,
                )  # fmt: skip

        together(CALLERS, call)
        t0 = monotonic_us()
        used = engine.usage("key", limit).used
        recorder.operation(f="ledger", key="key", t0=t0, t1=monotonic_us(), type="allow", used=used)
    verdict = verdict_on(path)
    assert verdict.holds, verdict.findings
    assert verdict.figures["replayed"] == CALLERS * 300
    assert verdict.figures["allowed"] >= 20


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_threads_and_tasks_on_redis(
    redis_server: RedisServer, limit: Limit, tmp_path: Path
) -> None:
    """Callers that block and callers that await, on engines of their own, all of it with receipts."""
    path = tmp_path / "history.jsonl"
    url = f"{redis_server.url}?receipts=yes"
    with HistoryRecorder(
        path, engine="redis", mode="exact", limits={"api": limit}, epsilon_us=EPSILON_US
    ) as recorder:

        def call(number: int) -> None:
            engine = RedisEngine(url)
            hit = engine.bind(limit)
            for _ in range(60):
                recorder.call(lambda: hit("key", 1), f="check", key="key", proc=number)
            engine.close()

        async def ask(hit: Any, number: int) -> None:
            for _ in range(60):
                t0 = monotonic_us()
                decision = await hit("key", 2)
                recorder.decision(
                    decision, f="check", key="key", cost=2, proc=number, t0=t0, t1=monotonic_us()
                )

        async def tasks() -> None:
            engine = AsyncRedisEngine(url)
            hit = engine.bind(limit)
            await asyncio.gather(*(ask(hit, CALLERS + number) for number in range(8)))
            await engine.aclose()

        background = threading.Thread(target=lambda: asyncio.run(tasks()))
        background.start()
        together(CALLERS, call)
        background.join()
        engine = RedisEngine(redis_server.url)
        t0 = monotonic_us()
        used = engine.usage("key", limit).used
        recorder.operation(f="ledger", key="key", t0=t0, t1=monotonic_us(), type="allow", used=used)
        engine.close()
    verdict = verdict_on(path)
    assert verdict.holds, verdict.findings
    assert verdict.figures["replayed"] == 60 * CALLERS + 60 * 8
    assert verdict.figures["allowed"] >= 10


@on_flavours("redis_server", "redis-7.0")
def test_requests_of_several_charges_on_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    wide, narrow = SlidingLog(40, 200_000), FixedWindow(8, 20_000)
    with HistoryRecorder(
        path,
        engine="redis",
        mode="exact",
        limits={"wide": wide, "narrow": narrow},
        epsilon_us=EPSILON_US,
    ) as recorder:

        def call(number: int) -> None:
            engine = RedisEngine(f"{redis_server.url}?receipts=yes")
            request = ChargeSet(
                (Charge("key", wide, rule="wide"), Charge("key", narrow, rule="narrow"))
            )
            for turn in range(80):
                recorder.call(
                    lambda: engine.decide([request])[0],
                    f="check",
                    id=f"{number}.{turn}",
                    proc=number,
                )
            engine.close()

        together(CALLERS, call)
    verdict = verdict_on(path)
    assert verdict.holds, verdict.findings
    assert verdict.figures["replayed"] == 2 * 80 * CALLERS


@on_flavours("redis_server", "redis-7.0")
def test_slots_on_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    limit = Concurrency(3, 5_000_000)
    with HistoryRecorder(
        path, engine="redis", mode="exact", limits={"api": limit}, epsilon_us=EPSILON_US
    ) as recorder:

        def call(number: int) -> None:
            engine, rng = RedisEngine(redis_server.url), random.Random(number)
            for turn in range(40):
                token = f"{number}.{turn}"
                request = ChargeSet((Charge("key", limit),), token=token)
                fields: Any = {"key": "key", "token": token, "proc": number}
                if recorder.call(lambda r=request: engine.decide([r])[0], f="acquire", **fields):  # type: ignore[misc]
                    time.sleep(rng.random() / 500)  # As long as it holds.
                    t0 = monotonic_us()
                    engine.release("key", limit, token)
                    recorder.operation(
                        f="release", **fields, t0=t0, t1=monotonic_us(), type="allow"
                    )
            engine.close()

        together(CALLERS, call)
    verdict = verdict_on(path)
    assert verdict.holds, verdict.findings
    assert verdict.figures["allowed"] > 40
    assert verdict.figures["denied"] > 0


@on_flavours("redis_server", "redis-7.0")
def test_get_then_set_on_a_real_server_is_found(redis_server: RedisServer, tmp_path: Path) -> None:
    """What many limiters do: read a counter, look at it, write it back."""
    path = tmp_path / "history.jsonl"
    limit = FixedWindow(20, 3_600_000_000)
    with HistoryRecorder(
        path, engine="other", mode="exact", limits={"api": limit}, epsilon_us=EPSILON_US
    ) as recorder:

        def call(number: int) -> None:
            store = Redis.from_url(redis_server.url)
            for _ in range(20):
                t0 = monotonic_us()
                count = int(store.get("count") or 0)
                allowed = count < 20
                if allowed:
                    time.sleep(0.001)  # As far away as a server usually is: others read the same.
                    store.set("count", count + 1)
                recorder.operation(
                    f="check", key="key", proc=number, t0=t0, t1=monotonic_us(),
                    type="allow" if allowed else "deny",
                )  # fmt: skip
            store.close()

        together(CALLERS, call)
    verdict = verdict_on(path)
    assert verdict.counts["over-admission"] == 1
    assert verdict.figures["over_limit"] >= 1


@on_flavours("redis_server", "redis-7.0")
def test_a_client_that_retries_secretly_is_found(redis_server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    limit = FixedWindow(1_000, 3_600_000_000)
    engine = RedisEngine(f"{redis_server.url}?receipts=yes")
    hit = engine.bind(limit)

    def hit_twice() -> Any:
        hit("key", 1)  # Its answer was lost on the way.
        return hit("key", 1)

    with HistoryRecorder(
        path, engine="redis", mode="exact", limits={"api": limit}, epsilon_us=EPSILON_US
    ) as recorder:
        for turn in range(50):
            ask = hit_twice if turn == 25 else lambda: hit("key", 1)
            recorder.call(ask, f="check", key="key")
    engine.close()
    assert verdict_on(path).counts == {"missing version": 1}


@on_flavours("redis_server", "redis-7.0")
def test_a_killed_server_loses_no_more_than_permitted(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The same history holds with its fault, and is broken without."""
    path = tmp_path / "history.jsonl"
    limit = FixedWindow(50, 3_600_000_000)
    stop = threading.Event()
    with HistoryRecorder(
        path, engine="redis", mode="exact", limits={"api": limit}, epsilon_us=EPSILON_US
    ) as recorder:

        def call(number: int) -> None:
            engine = RedisEngine(f"{redis_server.url}?receipts=yes")
            hit = engine.bind(limit)
            while not stop.is_set():
                recorder.call(lambda: hit("key", 1), f="check", key="key", proc=number)
                time.sleep(0.002)  # The pace of a real caller.
            engine.close()

        def kill() -> None:
            time.sleep(0.3)  # Of load.
            t0 = monotonic_us()
            redis_server.kill()
            redis_server.start()
            t1 = monotonic_us()
            recorder.fault("store_restart", t0=t0, t1=t1, heal=t1, name="F1")
            time.sleep(0.4)  # Of load, after it is back.
            stop.set()

        killer = threading.Thread(target=kill)
        killer.start()
        together(3, call)
        killer.join()
    history = load_history(path)
    verdict = judge(Scene(history))
    assert verdict.holds, verdict.findings
    assert verdict.figures["over_limit"] == 50
    assert verdict.figures["lost"] >= 50
    history.faults.clear()
    without = judge(Scene(history))
    assert without.counts["over-admission"] == 1
    assert without.counts["duplicate version"] >= 50


def test_an_unknown_error_of_a_call_is_written_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    limit = FixedWindow(5, 1_000_000)

    def fail() -> Any:
        raise HeadgateError("no")

    with HistoryRecorder(path, engine="memory", mode="exact", limits={"api": limit}) as recorder:
        assert recorder.call(fail, f="check", key="key") is None
    assert [one.type for one in load_history(path).operations] == ["fail"]
