"""Stores of rights, in Redis and in etcd: both keep grants, the epoch and what was taken back in the same way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.regions.escrow import RecordGrant, RightsAsk, RightsGrant
from headgate.regions.escrow_exchange import RightsExchange
from headgate.regions.escrow_guard import window_of
from headgate.regions.opening import keeps_rights, open_rights_store
from headgate.regions.settings import read_regions
from headgate.regions.taken_back import TakenBack
from tests.service.region_stores import StorePlace, store_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from headgate.regions.rights_steps import RightsSteps

LIMIT: Any = FixedWindow(90, 3_600_000_000).across_regions("escrow")


@pytest.fixture(scope="module", params=["redis", "etcd"])
def place(request: pytest.FixtureRequest) -> Iterator[StorePlace]:
    with store_place(request.param) as started:
        yield started


@contextlib.asynccontextmanager
async def two_stores(place: StorePlace) -> AsyncIterator[tuple[RightsSteps, RightsSteps]]:
    """Of two nodes of a region."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            store = open_rights_store(f"{place.url}?deadline=10", "n")
            assert store is not None
            kind: Any = AsyncEtcdEngine if place.url.startswith("etcd") else AsyncRedisEngine
            engine = kind(f"{place.url}?deadline=10")
            stack.push_async_callback(engine.aclose)
            stack.push_async_callback(store.aclose)
            store.open(engine)
            await store.look()
            made.append(store)
        yield made[0], made[1]


def grant(store: RightsSteps, id_: str, units: int, giver: str = "us") -> RecordGrant:
    window = window_of(LIMIT, "api", "ключ {}/", store.now_us())
    return RecordGrant(
        RightsGrant(RightsAsk(id_, "eu", store.epoch.id, giver, window, 0), units, 0)
    )


def test_a_grant_counts_once_however_often_any_node_delivers_it(place: StorePlace) -> None:
    async def main() -> None:
        async with two_stores(place) as (first, second):
            assert first.epoch == second.epoch
            window = grant(first, "", 0).grant.ask.window
            again = [one.do(grant(one, "same", 7), LIMIT) for one in (first, second) * 5]
            assert await asyncio.gather(*again) == [7] * 10
            others = [
                one.do(grant(one, f"{n}", 1, giver), LIMIT)
                for n, (one, giver) in enumerate([(first, "us"), (second, "asia")] * 5)
            ]
            assert max(await asyncio.gather(*others)) == 17
            for one in (first, second):
                assert await one.granted(window) == (first.epoch.id, 17)
            await asyncio.gather(*(one.note_given(window, "asia", 3) for one in (first, second)))
            assert await first.moved(window, ["asia", "us"]) == ({"asia": 5, "us": 12}, {"asia": 6})
            assert await first.granted(window) == (first.epoch.id, 17)
            await first.take_back("asia", TakenBack(5))
            assert await second.taken_back() == {"asia": TakenBack(5)}

    asyncio.run(main())


def test_the_figures_of_a_key_agree_also_if_grants_come_while_they_are_read(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        settings = read_regions("eu", "us=headgate://h:1", [], 0.2, place.url)
        assert settings is not None
        async with two_stores(place) as (first, second):
            monkeypatch.setattr(first, "epoch", first.epoch._replace(began_us=0))
            exchange = RightsExchange(settings.regions, {}, first)
            arrived = 0

            def then_a_grant(read: Any) -> Any:
                async def both(*arguments: Any) -> Any:
                    nonlocal arrived
                    found = await read(*arguments)
                    arrived += 1
                    ask = RightsAsk(f"late{arrived}", "eu", second.epoch.id, "us", arguments[0], 0)
                    await second.do(RecordGrant(RightsGrant(ask, 7, 0)), LIMIT)
                    return found

                return both

            for name in ("granted", "moved"):
                monkeypatch.setattr(first, name, then_a_grant(getattr(first, name)))
            for _ in range(3):
                seen = await exchange.rights_of(LIMIT, "api", "read while granted")
                assert seen.share == 45
                assert seen.left == seen.share + sum(seen.received.values())
                assert seen.admitted == 0
            assert arrived >= 3

    asyncio.run(main())


def test_a_store_that_lost_everything_has_another_epoch_and_refuses_older_grants(
    place: StorePlace,
) -> None:
    async def main() -> None:
        async with two_stores(place) as (first, second):
            old = grant(first, "old", 7)
            place.empty()
            assert await second.do(old, LIMIT) is None
            await first.look()
            assert first.epoch.id != old.grant.ask.epoch
            assert await first.do(old, LIMIT) is None
            assert await first.do(grant(first, "new", 2), LIMIT) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "url, keeps",
    [
        *(("redis://h", True), ("redis+sentinel://h/main", True), ("etcd://h1,h2,h3", True)),
        *(("memory://", False), ("redis+cluster://h", False), ("etcd://h1;h2", False)),
        ("etcd://h?consistency=leased", False),
    ],
)
def test_rights_are_kept_where_all_counts_are_lost_or_none(url: str, keeps: bool) -> None:  # noqa: FBT001
    assert keeps_rights(url) is keeps
    found = read_regions("eu", "us=headgate://h:1", [], 0.2, url)
    assert found is not None
    assert found.regions.keeps_rights is keeps
