"""Callers of several namespaces share the connections of a remote engine, and each is answered for its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headgate import Charge, FixedWindow, UsageError
from headgate.charge import ChargeSet
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.remote.engine import AsyncRemoteEngine
from tests.servers.fixtures import on_flavours
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from headgate import Decision
    from tests.servers.redis import RedisServer

DAY_US = 86_400_000_000
LIMIT = FixedWindow(9, DAY_US)
NAMESPACES = ("", "one", "two")


async def hits_at_once(url: str) -> dict[str, list[Decision]]:
    """What hits of one key in several namespaces are answered that leave in one call."""
    engine = AsyncRemoteEngine(f"{url}?deadline=20")
    scoped = {name: engine.scoped(name) if name else engine for name in NAMESPACES}
    asked = [
        scoped[name].decide([ChargeSet((Charge("key", LIMIT, cost),))])
        for cost in (1, 2)
        for name in NAMESPACES
    ]
    found: dict[str, list[Decision]] = {name: [] for name in NAMESPACES}
    for place, (decision,) in enumerate(await asyncio.gather(*asked)):
        found[NAMESPACES[place % len(NAMESPACES)]].append(decision)
    await engine.aclose()
    return found


def test_requests_of_several_namespaces_in_one_call_are_decided_each_in_its_own() -> None:
    with resp_node() as node:
        found = asyncio.run(hits_at_once(node.url))
    for decisions in found.values():
        assert [decision.remaining for decision in decisions] == [8, 6]


@on_flavours("redis_server", "redis-7.0")
def test_they_are_also_where_the_node_waits_for_a_store(redis_server: RedisServer) -> None:
    with resp_node(AsyncRedisEngine(redis_server.url)) as node:
        found = asyncio.run(hits_at_once(node.url))
    for decisions in found.values():
        assert [decision.remaining for decision in decisions] == [8, 6]


def test_a_name_that_no_node_takes_is_refused_before_it_is_sent_with_others() -> None:
    async def ask(url: str) -> Decision:
        engine = AsyncRemoteEngine(f"{url}?deadline=20")
        good = asyncio.ensure_future(engine.decide([ChargeSet((Charge("key", LIMIT),))]))
        await asyncio.sleep(0)  # It waits for the end of the tick.
        with pytest.raises(UsageError, match="at most 4096 bytes"):
            engine.bind(LIMIT, "r" * 5_000)
        with pytest.raises(UsageError, match="at most 4096 bytes"):
            await engine.decide([ChargeSet((Charge("key", LIMIT, 2, rule="r" * 5_000),))])
        (decision,) = await good
        await engine.aclose()
        return decision

    with resp_node() as node:
        decision = asyncio.run(ask(node.url))
    assert decision.remaining == 8
