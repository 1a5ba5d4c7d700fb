"""What callers name makes neither the memory of a node nor the work of a commit grow without bound."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headgate import Decision, FixedWindow
from headgate.engines.etcd import aio, peers, shard
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.etcd.options import parse_url
from headgate.engines.etcd.peers import PeerLinks
from headgate.engines.etcd.records import Member
from headgate.testing import ManualClock
from tests.unit.engines.etcd.simulated_etcd import SimulatedClient, SimulatedEtcd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DAY_US = 86_400_000_000


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "MAX_FORMS", 8)
    monkeypatch.setattr(shard, "MAX_HITS", 8)
    monkeypatch.setattr(shard, "MAX_ENGINES", 8)
    monkeypatch.setattr(peers, "MAX_ENGINES", 8)


def used(work: Callable[[AsyncEtcdEngine], AsyncIterator[None]]) -> None:
    """Let an engine that is alone on a simulated etcd be used."""

    async def main() -> None:
        client = SimulatedClient(SimulatedEtcd(), lambda _: "")
        url = "etcd://simulated/c?shards=3&ttl=60&deadline=20"
        engine = AsyncEtcdEngine(url, clock=ManualClock(), connect=lambda _: client)
        async for _ in work(engine):
            pass
        await engine.aclose()

    asyncio.run(main())


async def hit(engine: AsyncEtcdEngine, limit: FixedWindow, key: str) -> Decision:
    answer = engine.bind(limit)(key, 1)
    return answer if isinstance(answer, Decision) else await answer


@pytest.mark.usefixtures("few")
def test_any_number_of_limits_is_counted_right_and_few_are_remembered() -> None:
    async def work(engine: AsyncEtcdEngine) -> AsyncIterator[None]:
        kept = engine.bind(FixedWindow(1_000, DAY_US))
        for number in range(100):
            decision = await hit(engine, FixedWindow(1_000 + number, DAY_US), "key")
            assert decision.remaining == 999 + number - 2 * number
            again = kept("key", 1)
            answer = again if isinstance(again, Decision) else await again
            assert answer.remaining == 998 - 2 * number
            yield
        for number in range(100):
            other = engine.scoped(f"n{number}")
            decisions = [await hit(other, FixedWindow(9, DAY_US), "key") for _ in range(2)]
            assert [one.remaining for one in decisions] == [8, 7]
        assert len(engine._forms) <= 8
        for one in engine.nodes.serving:
            assert one is not None
            assert len(one.hits) <= 8
            assert len(one.engines) <= 8

    used(work)


def test_a_commit_looks_only_at_windows_that_have_changed() -> None:
    async def work(engine: AsyncEtcdEngine) -> AsyncIterator[None]:
        for number in range(300):
            await hit(engine, FixedWindow(9, DAY_US + number), "key")
        await hit(engine, FixedWindow(9, DAY_US), "key")
        (own,) = [one for one in engine.nodes.serving if one is not None and one.store.tables]
        assert len(own.store.marks) == 300
        late = engine.bind(FixedWindow(9, DAY_US))("key", 1)
        assert [marks.name for marks in own.store.changed] == [
            ("", None, FixedWindow(9, DAY_US).identity)
        ]
        assert (own.is_dirty, own.is_confirmed) == (True, False)
        assert not isinstance(late, Decision)
        assert (await late).remaining == 6
        assert (own.is_dirty, own.is_confirmed) == (False, True)
        yield

    used(work)


@pytest.mark.usefixtures("few")
def test_engines_of_other_nodes_for_many_namespaces_are_let_go_and_their_connections_kept() -> None:
    async def ask() -> None:
        links = PeerLinks(parse_url("etcd://simulated/c?listen=127.0.0.1:1"))
        member = Member("other", "127.0.0.1:2", 1, 1)
        own = links.engine(member)
        for number in range(100):
            assert links.engine(member, f"n{number}")._loops is own._loops
            assert len(links._engines) <= 8
        assert links.engine(member) is own
        await links.close()

    asyncio.run(ask())
