"""A real Redis that is killed, stopped, slowed and cut off under load, and limiters that do not have to wait for it.

Every caller has an answer in time, a node admits its share, the store is told afterwards, and nobody has to help.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Concurrency, EngineError, Limiter
from headgate.charge import Charge, ChargeSet
from headgate.guards.stack import fallback_of
from tests.faults.load import window_of
from tests.servers.fixtures import on_flavours
from tests.servers.link import Link
from tests.servers.process import patient, wait_until
from tests.service.raw import Raw, post
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.redis import RedisServer
    from tests.service.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

LIMIT = window_of(90)
NODES = 3
SHARE = 30
SLACK_S = 0.5
"""For a machine that is busy with other tests; without any, answers come a millisecond or two after their deadline."""
DEADLINE_S = 0.025
FAULTS = ("killed", "stopped", "slow", "cut")


@contextmanager
def broken(server: RedisServer, link: Link, fault: str) -> Iterator[None]:
    """The way to the store, or the store itself, does not work."""
    match fault:
        case "killed":
            server.kill()
        case "stopped":
            server.stop()
        case "slow":
            link.delay_s = 0.2
        case "cut":
            link.drop_replies = link.drop_requests = True
    try:
        yield
    finally:
        match fault:
            case "killed":
                server.start()
            case "stopped":
                server.resume()
            case _:
                link.delay_s = 0.0
                link.drop_replies = link.drop_requests = False
                link.reset()


class Outcomes:
    """What callers were told."""

    def __init__(self) -> None:
        self.by_source: Counter[tuple[str, bool]] = Counter()
        self.slowest_s = 0.0

    def note(self, began: float, source: str, *, allowed: bool) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.by_source[source, allowed] += 1

    @property
    def admitted(self) -> int:
        return sum(many for (_, allowed), many in self.by_source.items() if allowed)


class Threads:
    """A blocking limiter, used by several threads."""

    def __init__(self, url: str, *, warm: bool = True, **options: Any) -> None:
        self.limiter = Limiter(url, **options)
        if warm:
            wait_until(lambda: self.hit("warm").source == "engine", "it is warm")

    def hit(self, key: str) -> Any:
        return self.limiter.hit(key, LIMIT)

    def call(self, verb: Callable[[Any], Any]) -> Any:
        return verb(self.limiter.engine)

    def load(self, key: str, seconds: float) -> Outcomes:
        told, ends = Outcomes(), time.monotonic() + seconds

        def keep_asking() -> None:
            while time.monotonic() < ends:
                began = time.monotonic()
                decision = self.limiter.hit(key, LIMIT)
                told.note(began, decision.source, allowed=decision.allowed)
                time.sleep(0.005)  # Real callers do something, too.

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(keep_asking) for _ in range(8)]:
                done.result()
        return told

    @property
    def guard(self) -> Any:
        return fallback_of(self.limiter.engine)

    def close(self) -> None:
        self.limiter.close()


class Tasks(Threads):
    """An awaited limiter in a loop of its own, used by many tasks."""

    def __init__(self, url: str, *, warm: bool = True, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.async_limiter = self.run(self._open(url, options))
        for _ in range(2 if warm else 0):
            wait_until(lambda: self.hit("warm").source == "engine", "it is warm")

    @staticmethod
    async def _open(url: str, options: Any) -> AsyncLimiter:
        return AsyncLimiter(url, **options)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def hit(self, key: str) -> Any:
        return self.run(self.async_limiter.hit(key, LIMIT))

    def call(self, verb: Callable[[Any], Any]) -> Any:
        return self.run(verb(self.async_limiter.engine))

    def load(self, key: str, seconds: float) -> Outcomes:
        told, ends = Outcomes(), time.monotonic() + seconds

        async def keep_asking() -> None:
            while time.monotonic() < ends:
                began = time.monotonic()
                decision = await self.async_limiter.hit(key, LIMIT)
                told.note(began, decision.source, allowed=decision.allowed)
                await asyncio.sleep(0.01)  # Real callers do something, too.

        async def all_asking() -> None:
            await asyncio.gather(*[keep_asking() for _ in range(30)])

        self.run(all_asking())
        return told

    @property
    def guard(self) -> Any:
        return fallback_of(self.async_limiter.engine)

    def close(self) -> None:
        self.run(self.async_limiter.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [Threads, Tasks])
def test_every_answer_is_in_time_shares_hold_and_the_store_is_charged_later(
    redis_server: RedisServer, fault: str, kind: type[Threads]
) -> None:
    """Runs under load for a second, and waits for the recovery."""
    with Link(redis_server.port) as link:
        node = kind(link.url, on_error="fallback", nodes=NODES)
        counted = sum(node.hit("k").source == "engine" for _ in range(10))
        wait_until(lambda: not node.guard.breaker.is_open, "this machine is fast enough")
        openings = node.guard.breaker.openings
        with broken(redis_server, link, fault):
            told = node.load("k", 1.0)
            assert told.slowest_s < DEADLINE_S + SLACK_S
            assert counted + SHARE - 10 <= told.by_source["fallback", True] <= SHARE
            assert told.by_source["fallback", False] > 20
            assert {source for source, _ in told.by_source} <= {"fallback", "engine"}
            assert node.guard.breaker.is_open
            assert node.guard.breaker.openings == openings + 1
        wait_until(lambda: node.hit("other").source == "engine", "the store decides again")
        wait_until(lambda: not node.guard.local.has_debts, "the store has been told")
        used = 90 - node.hit("k").remaining - 1
        known = 0 if fault == "killed" else counted  # One that was killed has forgotten.
        # What may have been charged already, because its answer came too late, is charged again.
        assert used >= known + told.by_source["fallback", True]
        node.close()


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("given", ["slot", "reservation"])
@pytest.mark.parametrize("kind", [Threads, Tasks])
def test_what_is_given_back_to_a_store_that_hangs_is_queued_in_time(
    redis_server: RedisServer, kind: type[Threads], given: str
) -> None:
    """Its caller is the first to notice the outage, and waits for no longer than a decision takes."""
    limit, token = Concurrency(4, 60_000_000) if given == "slot" else LIMIT, "token"
    reserve_us = 0 if given == "slot" else 60_000_000
    request = ChargeSet((Charge("k", limit, 4),), reserve_us=reserve_us, token=token)
    with Link(redis_server.port) as link:
        node = kind(link.url, on_error="fallback", nodes=NODES)
        assert node.call(lambda engine: engine.decide([request]))[0].source == "engine"
        with broken(redis_server, link, "stopped"):
            began = time.monotonic()
            if given == "slot":
                node.call(lambda engine: engine.release("k", limit, token))
            else:
                assert node.call(lambda engine: engine.settle(token, 0))
            assert time.monotonic() - began < DEADLINE_S + SLACK_S
        wait_until(lambda: not node.guard.local.has_debts, "the store has been told")
        assert node.call(lambda engine: engine.usage("k", limit)).used == 0
        node.close()


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("cut_off", [1, 3])
def test_nodes_that_lose_the_store_admit_their_shares_and_no_more(
    redis_server: RedisServer, cut_off: int
) -> None:
    """K of N nodes cut off admit K · ⌊L/N⌋ at most, and those that are not admit L at most."""
    with Link(redis_server.port) as link:
        urls = [link.url] * cut_off + [redis_server.url] * (NODES - cut_off)
        # Those that keep the store have time: this machine may be busy.
        urls = [url if url == link.url else patient(url) for url in urls]
        nodes = [Threads(url, on_error="fallback", nodes=NODES) for url in urls]
        link.drop_replies = link.drop_requests = True
        with ThreadPoolExecutor(NODES) as pool:
            told = list(pool.map(lambda node: node.load("k", 1.5), nodes))
        assert [one.admitted for one in told[:cut_off]] == [SHARE] * cut_off
        rest = sum(one.by_source["engine", True] for one in told[cut_off:])
        assert rest == (90 if cut_off < NODES else 0)
        link.drop_replies = link.drop_requests = False
        link.reset()
        for node in nodes:
            wait_until(lambda node=node: node.hit("o").source == "engine", "it is back")  # type: ignore[misc]
            node.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_way_that_comes_and_goes_does_not_make_answers_flap(redis_server: RedisServer) -> None:
    """Every 200 ms it is cut or mended, for three seconds."""
    with Link(redis_server.port) as link:
        node = Tasks(link.url, on_error="fallback", nodes=NODES)
        ends = time.monotonic() + 3

        def flap() -> None:
            while time.monotonic() < ends:
                link.drop_replies = not link.drop_replies
                time.sleep(0.2)  # The fault itself.
            link.drop_replies = False

        flapping = threading.Thread(target=flap)
        flapping.start()
        told = node.load("k", 3.0)
        flapping.join()
        assert told.slowest_s < DEADLINE_S + SLACK_S
        assert node.guard.breaker.openings <= 4
        wait_until(lambda: node.hit("o").source == "engine", "it is back")
        node.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_store_that_is_full_is_given_up_until_it_takes_writes(redis_server: RedisServer) -> None:
    """One that can be read but not written must not be taken for one that is back."""
    node = Threads(redis_server.url, on_error="fallback", nodes=NODES)
    redis_server.call("CONFIG", "SET", "maxmemory", "1")
    openings = node.guard.breaker.openings
    told = node.load("k", 1.5)
    assert told.admitted == SHARE
    assert node.guard.breaker.openings <= openings + 1
    redis_server.call("CONFIG", "SET", "maxmemory", "0")
    wait_until(lambda: node.hit("o").source == "engine", "it is back")
    node.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_burst_that_the_store_cannot_answer_in_time_has_its_answers_at_once(
    redis_server: RedisServer,
) -> None:
    """Four requests every 0.2 s: some 40 of them in the 2 s that a decision may take. The store stays in use."""
    with Link(redis_server.port) as link:
        url = f"{link.url}?max_in_flight=1&max_batch=4&deadline=2"
        node = Tasks(url, on_error="fallback", nodes=NODES)
        link.delay_s = 0.1
        for _ in range(2):
            node.hit("slow")  # How long calls take now.
        told = Outcomes()

        async def ask() -> None:
            began = time.monotonic()
            decision = await node.async_limiter.hit("k", LIMIT)
            if decision.source == "fallback":
                told.note(began, decision.source, allowed=decision.allowed)
            else:
                told.by_source[decision.source, decision.allowed] += 1

        async def all_asking() -> None:
            await asyncio.gather(*[ask() for _ in range(400)])

        node.run(all_asking())
        by_store = told.by_source["engine", True]
        assert 12 <= by_store <= 36
        assert told.by_source["fallback", True] == SHARE
        assert told.by_source["fallback", False] == 400 - SHARE - by_store
        assert told.slowest_s < SLACK_S
        assert node.guard.breaker.openings == 0
        link.delay_s = 0.0
        wait_until(lambda: not node.guard.local.has_debts, "the store has been told")
        assert 90 - node.hit("k").remaining - 1 == by_store + SHARE
        node.close()


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("kind", [Threads, Tasks])
def test_only_the_first_call_may_take_longer_if_the_store_hangs_from_the_beginning(
    redis_server: RedisServer, kind: type[Threads]
) -> None:
    redis_server.stop()
    try:
        node = kind(redis_server.url, warm=False, on_error="fallback", nodes=NODES)
        assert node.hit("first").source == "fallback"
        assert node.load("k", 0.5).slowest_s < SLACK_S
    finally:
        redis_server.resume()
    node.close()


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("kind", [Threads, Tasks])
def test_the_first_decisions_are_in_time_if_the_store_has_answered_something_else(
    redis_server: RedisServer, kind: type[Threads]
) -> None:
    """As in a service without traffic, which probes its store."""
    node = kind(redis_server.url, warm=False, on_error="fallback", nodes=NODES)
    assert not node.call(lambda engine: engine.usage("k", LIMIT)).used
    redis_server.stop()
    try:
        assert node.load("k", 0.5).slowest_s < SLACK_S
    finally:
        redis_server.resume()
    node.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_program_with_an_event_loop_for_each_call_is_back_when_the_store_is(
    redis_server: RedisServer,
) -> None:
    """As in an async view of Flask: the recovery has to outlive all of these loops."""
    limiter = AsyncLimiter(redis_server.url, on_error="fallback", nodes=NODES)
    guard: Any = fallback_of(limiter.engine)

    def hit(key: str) -> str:
        return asyncio.run(_hit(limiter, key))

    assert hit("k") == "engine"
    redis_server.stop()
    told = [hit("k") for _ in range(20)]
    assert told == ["fallback"] * 20
    redis_server.resume()
    wait_until(lambda: hit("other") == "engine", "it is back")
    wait_until(lambda: not guard.breaker.recoveries, "it knows what was admitted")
    with Limiter(redis_server.url) as reader:
        assert (
            reader.limit("k", LIMIT).stats().count >= 21
        )  # What hung in its socket may count, too.
    asyncio.run(limiter.aclose())


async def _hit(limiter: AsyncLimiter, key: str) -> str:
    try:
        return (await limiter.hit(key, LIMIT)).source
    finally:
        engine: Any = limiter.engine.unguarded
        await engine.aclose()  # The connections of this loop.


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("on_error", ["open", "closed", "raise"])
def test_other_answers_come_at_once_once_the_store_is_given_up(
    redis_server: RedisServer, on_error: str
) -> None:
    with Limiter(f"{redis_server.url}?deadline=0.1", on_error=on_error) as limiter:  # type: ignore[arg-type]
        assert limiter.hit("k", LIMIT).source == "engine"
        redis_server.stop()
        answers: list[str] = []
        for _ in range(30):
            began = time.monotonic()
            try:
                answers.append(limiter.hit("k", LIMIT).source)
            except EngineError:
                answers.append("raise")
            assert time.monotonic() - began < 0.1 + SLACK_S
        assert answers == [on_error] * 30
        began = time.monotonic()
        with pytest.raises(EngineError) if on_error == "raise" else nullcontext():
            limiter.hit("k", LIMIT)
        assert time.monotonic() - began < 0.09
        redis_server.resume()

        def is_back() -> bool:
            try:
                return limiter.hit("k", LIMIT).source == "engine"
            except EngineError:
                return False

        wait_until(is_back, "it is back")


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_the_service_keeps_answering_reports_the_outage_and_recovers(
    redis_server: RedisServer, tmp_path: Path, fault: str
) -> None:
    """Two nodes under load for some seconds; each admits half of a limit while the store is away."""
    environment = {"HEADGATE_STATE_DIR": str(tmp_path)}
    options = ("--engine", redis_server.url, "--set", "heartbeat=0.5")
    check: dict[str, Any] = {
        "key": "k", "limit": 60, "window": 3600, "algorithm": "fixed_window"
    }  # fmt: skip
    with (
        service(*options, environment=environment) as one,
        service(*options, environment=environment) as two,
    ):
        nodes = (one, two)
        for node in nodes:
            wait_until(
                lambda node=node: node.ask("GET", "/health")[2]["nodes"] == 2,  # type: ignore[misc]
                "the nodes have met",
            )
            for _ in range(2):
                wait_until(
                    lambda node=node: node.check("warm")["source"] == "engine",  # type: ignore[misc]
                    "it is warm",
                )
        wait_until(lambda: len(list(tmp_path.glob("members-*.json"))) == 2, "both remember")
        time.sleep(1.1)  # The next beat tells each of them of both.

        redis_server.kill() if fault == "killed" else redis_server.stop()
        with ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(_load_service, node.port, check, 2.0) for node in nodes * 2]
            told = [load.result() for load in loads]
        for load in told:
            assert load.slowest_s < DEADLINE_S + SLACK_S
            assert {source for source, _ in load.by_source} == {"fallback"}
        assert [told[0].admitted + told[2].admitted, told[1].admitted + told[3].admitted] == [
            30
        ] * 2
        for node in nodes:
            health = node.ask("GET", "/health")[2]
            assert health["status"] == "degraded"
            metrics = node.ask("GET", "/metrics")[2]
            assert "headgate_breaker_open 1" in metrics
            assert "headgate_fallback_nodes 2" in metrics
            assert "the circuit breaker is open (" in node.log

        redis_server.start() if fault == "killed" else redis_server.resume()
        for node in nodes:
            wait_until(lambda node=node: node.check("o")["source"] == "engine", "it is back")  # type: ignore[misc]
        wait_until(
            lambda: one.check(**check, cost=0)["remaining"] == 0, "the store knows of all of it"
        )
        for node in nodes:
            wait_until(partial(_is_well, node), "it is well")


def _is_well(node: Service) -> bool:
    return bool(node.ask("GET", "/health")[2]["status"] == "ok")


def _load_service(port: int, check: dict[str, Any], seconds: float) -> Outcomes:
    told, ends = Outcomes(), time.monotonic() + seconds
    with Raw(port) as raw:
        while time.monotonic() < ends:
            began = time.monotonic()
            answer = raw.send(post(check)).answer()
            assert answer.status == 200
            told.note(began, answer.json["source"], allowed=answer.json["allowed"])
            time.sleep(0.005)  # Real callers do something, too.
    return told
