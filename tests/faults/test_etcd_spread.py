"""Shards on two etcd clusters: each does half of the work, and the death of one stops only its half."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Charge, Decision, EngineError, FixedWindow
from headgate.charge import ChargeSet
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.etcd.options import parse_url
from headgate.errors import ConfigError
from tests.faults.test_etcd_engine import LIMIT, REACHED, caller, what_is_left
from tests.servers.etcd import Etcd, etcd
from tests.servers.fixtures import installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.algorithms import Limit

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

CLUSTERS = itertools.count(1)
DAY_US = 86_400_000_000
KEYS = [f"key{number}" for number in range(40)]
ONCE = FixedWindow(1, DAY_US)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Etcd, Etcd]]:
    with installed(), etcd(1) as first, etcd(1) as second:
        yield first, second


@pytest.fixture
def url(both: tuple[Etcd, Etcd]) -> str:
    for one in both:
        one.heal()
    first, second = both
    return f"etcd://{first.hosts};{second.hosts}/s{next(CLUSTERS)}?ttl=2&shards=8"


async def asked(engine: AsyncEtcdEngine, key: str, limit: Limit = ONCE) -> bool:
    answer = engine.bind(limit)(key, 1)
    return bool(answer if isinstance(answer, Decision) else await answer)


async def until_it_answers(engine: AsyncEtcdEngine, key: str) -> None:
    ends = time.monotonic() + 30
    while True:
        with contextlib.suppress(EngineError):
            await engine.usage(key, ONCE)
            return
        assert time.monotonic() < ends, f"{key} does not come back"


def parts_of(engine: AsyncEtcdEngine) -> dict[str, int]:
    """On which of the two each key is."""
    settings = engine.nodes.settings
    assert settings is not None
    return {key: settings.shard_of(key) % 2 for key in KEYS}


def test_keys_are_on_both_and_counts_move_to_the_next_owner(url: str) -> None:
    async def story() -> None:
        engine = AsyncEtcdEngine(f"{url}&deadline=5")
        assert [await asked(engine, key) for key in KEYS] == [True] * len(KEYS)
        assert set(parts_of(engine).values()) == {0, 1}
        gauges = engine.nodes.gauges()
        assert (gauges["etcd_shards"], gauges["etcd_free_shards"]) == (8, 0)
        page = await engine.list_keys(limit=1_000)
        assert {entry.key for entry in page.entries} == set(KEYS)
        await engine.aclose()
        following = AsyncEtcdEngine(f"{url}&deadline=5")
        assert [await asked(following, key) for key in KEYS] == [False] * len(KEYS)
        await following.aclose()

    asyncio.run(story())


def test_a_request_over_both_passes_or_fails_as_a_whole(url: str) -> None:
    async def story() -> None:
        engine = AsyncEtcdEngine(f"{url}&deadline=5")
        await asked(engine, "first")
        parts = parts_of(engine)
        here, there = (next(key for key in KEYS if parts[key] == part) for part in (0, 1))
        two = FixedWindow(2, DAY_US)

        async def both_at_once() -> Decision:
            charges = tuple(Charge(key, two) for key in (here, there))
            (decision,) = await engine.decide([ChargeSet(charges)])
            return decision

        assert await both_at_once()
        assert await asked(engine, there, two)
        assert not await both_at_once()  # One of them has none left,
        assert (await engine.usage(here, two)).used == 1  # and the other one is not charged.
        reserved = ChargeSet((Charge(here, two), Charge("other", two)), reserve_us=60_000_000)
        (decision,) = await engine.decide([reserved])
        assert decision.token is not None
        assert await engine.settle(decision.token, 0)
        assert (await engine.usage(here, two)).used == 1
        await engine.aclose()

    asyncio.run(story())


def test_when_one_etcd_is_gone_the_other_half_keeps_working_and_it_comes_back(
    both: tuple[Etcd, Etcd], url: str
) -> None:
    async def story() -> None:
        engine = AsyncEtcdEngine(f"{url}&deadline=1")
        thousand = FixedWindow(1_000, DAY_US)
        for key in KEYS:
            await until_it_answers(engine, key)
            assert await asked(engine, key, thousand)
        parts = parts_of(engine)
        here, there = (next(key for key in KEYS if parts[key] == part) for part in (0, 1))
        both[1].nodes[0].kill()
        with contextlib.suppress(EngineError):  # The commit under way may have been taken.
            await asked(engine, there, thousand)
        with pytest.raises(EngineError) as refused:
            await asked(engine, there, thousand)
        assert not refused.value.indefinite
        for _ in range(20):
            assert await asked(engine, here, thousand)
        both[1].heal()
        await until_it_answers(engine, there)
        assert (await engine.usage(there, thousand)).used in (1, 2)
        assert (await engine.usage(here, thousand)).used == 21
        await engine.aclose()

    asyncio.run(story())


def test_when_one_etcd_is_gone_only_its_keys_are_answered_without_it(
    both: tuple[Etcd, Etcd], url: str
) -> None:
    async def story() -> None:
        limiter = AsyncLimiter(f"{url}&deadline=0.3", on_error="open")
        engine: Any = limiter.engine.unguarded
        for key in KEYS:
            await until_it_answers(engine, key)
        parts = parts_of(engine)
        here, there = (next(key for key in KEYS if parts[key] == part) for part in (0, 1))
        both[1].nodes[0].kill()
        told = [await limiter.hit(there, "100/day") for _ in range(5)]
        assert {one.context.source for one in told} == {"open"}
        assert (await limiter.hit(here, "100/day")).context.source == "engine"
        await limiter.aclose()

    asyncio.run(story())


def test_a_killed_owner_leaves_exactly_what_it_had_not_given(url: str) -> None:
    with caller(url, 8, REACHED) as node:
        node.listen(until=".")
        node.kill()
        assert node.said["y"] == REACHED
        assert what_is_left(url) == LIMIT - REACHED


def test_a_node_that_divides_keys_otherwise_is_refused(both: tuple[Etcd, Etcd], url: str) -> None:
    """It would count the same keys elsewhere."""
    first, second = (one.hosts for one in both)
    rest = url.rpartition("/")[2]

    async def tried(hosts: str) -> str:
        engine = AsyncEtcdEngine(f"etcd://{hosts}/{rest}&deadline=5")
        try:
            with pytest.raises(EngineError) as refused:
                await asyncio.gather(*(asked(engine, key) for key in KEYS))
            return str(refused.value)
        finally:
            await engine.aclose()

    async def story() -> None:
        engine = AsyncEtcdEngine(f"{url}&deadline=5")
        for key in KEYS:
            await until_it_answers(engine, key)
        for hosts in (f"{second};{first}", first, second):
            assert "the same order" in await tried(hosts)
        await engine.aclose()

    asyncio.run(story())


def test_a_host_belongs_to_one_etcd() -> None:
    options = parse_url("etcd://a,b;c/shop")
    assert [part.hosts for part in options.parts] == [("a:2379", "b:2379"), ("c:2379",)]
    assert str(options) == "etcd://a:2379,b:2379;c:2379/shop"
    with pytest.raises(ConfigError, match="named twice"):
        parse_url("etcd://a,b;a")
