"""A node may die, or its messages get lost, at any step: no admission is lost, and none is made twice."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from headgate import Decision, EngineError, FixedWindow
from headgate.engines.etcd import ownership
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.etcd.records import member_value
from headgate.engines.etcd.transactions import Put
from headgate.testing import ManualClock
from tests.servers.process import free_ports
from tests.unit.engines.etcd.simulated_etcd import SimulatedClient, SimulatedEtcd

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = FixedWindow(5, 60_000_000)
KEYS = [f"key{number}" for number in range(4)]
STEPS = 12
"""So many transactions a node makes about while it is asked: to agree, join, claim and import, and a commit a round."""


class Tally:
    """What became of the hits on each key."""

    def __init__(self) -> None:
        self.admitted = dict.fromkeys(KEYS, 0)
        self.unknown = dict.fromkeys(KEYS, 0)

    def check(self) -> None:
        """All that there is was given, and nothing twice."""
        for key in KEYS:
            assert self.admitted[key] <= LIMIT.limit, f"{key} was admitted too often"
            given = self.admitted[key] + self.unknown[key]
            assert given >= LIMIT.limit, f"{key} lost what nobody was given"


def engine_on(
    etcd: SimulatedEtcd, fate: Callable[[int], str], options: str = ""
) -> tuple[AsyncEtcdEngine, SimulatedClient]:
    client = SimulatedClient(etcd, fate)
    url = f"etcd://simulated/c?shards=3&ttl=60&deadline=2{options}"
    return AsyncEtcdEngine(url, clock=ManualClock(), connect=lambda _: client), client


async def ask(engine: AsyncEtcdEngine, tally: Tally, rounds: int, client: SimulatedClient) -> None:
    """Hit every key so often; whoever has no answer when the node dies does not know."""
    hit = engine.bind(LIMIT)

    async def one(key: str) -> None:
        answer = hit(key, 1)
        try:
            decision = answer if isinstance(answer, Decision) else await answer
        except EngineError as error:
            tally.unknown[key] += error.indefinite
        except asyncio.CancelledError:
            tally.unknown[key] += 1
        else:
            tally.admitted[key] += decision.allowed

    for _ in range(rounds):
        calls = [asyncio.ensure_future(one(key)) for key in KEYS]
        dead = asyncio.ensure_future(client.dead.wait())
        gathered = asyncio.ensure_future(asyncio.wait(calls))
        both: list[asyncio.Future[Any]] = [gathered, dead]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if client.dead.is_set():
            for call in calls:
                call.cancel()
            await gathered
            return


async def end(engine: AsyncEtcdEngine) -> None:
    """The process is gone: nothing of it runs any more."""
    task = engine.nodes.first._task
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def owner_dies(fate: Callable[[int], str]) -> Tally:
    """One node is asked until it dies, and the next one until nothing is left."""
    etcd, tally = SimulatedEtcd(), Tally()
    first, client = engine_on(etcd, fate)
    await ask(first, tally, 3, client)
    await end(first)
    for lease in list(etcd.alive):
        etcd.end_lease(lease)
    second, other = engine_on(etcd, lambda _: "")
    await ask(second, tally, 6, other)
    await second.aclose()
    tally.check()
    return tally


@pytest.mark.parametrize("how", ["dead", "killed"])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_an_owner_that_dies_at_any_step_leaves_exactly_what_it_admitted(
    step: int, how: str
) -> None:
    asyncio.run(owner_dies(lambda number: how if number == step else ""))


@pytest.mark.parametrize("how", ["lost", "unheard", "late"])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_message_that_is_lost_or_late_changes_nothing(step: int, how: str) -> None:
    asyncio.run(owner_dies(lambda number: how if number == step else ""))


@pytest.mark.parametrize("seed", range(20))
def test_losses_and_a_death_at_random_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    dies_at = chance.randrange(2, 30)

    def fate(step: int) -> str:
        if step == dies_at:
            return chance.choice(["dead", "killed"])
        return chance.choice(["", "", "", "lost", "unheard", "late"])

    asyncio.run(owner_dies(fate))


def test_a_node_that_was_fenced_behind_its_back_admits_nothing_more() -> None:
    """Its lease is revoked while it believes in it: its next commit is refused, and its callers are told so."""

    async def run() -> None:
        etcd, tally = SimulatedEtcd(), Tally()
        first, client = engine_on(etcd, lambda _: "")
        await ask(first, tally, 2, client)
        own = first.nodes.first.own
        assert own is not None
        watching = own.map
        etcd.alive.discard(own.lease)
        etcd.items.pop(own.fence.key)  # Nobody is told: no watch, no keepalive.
        hit = first.bind(LIMIT)
        answer = hit(KEYS[0], 1)
        assert not isinstance(answer, Decision)
        with pytest.raises(EngineError) as refused:
            await answer
        assert not refused.value.indefinite
        assert watching.members
        second, other = engine_on(etcd, lambda _: "")
        await ask(second, tally, 6, other)
        tally.check()
        assert tally.admitted == dict.fromkeys(KEYS, LIMIT.limit)
        await end(first)
        await second.aclose()

    asyncio.run(run())


def test_nodes_that_join_and_leave_hand_over_every_count() -> None:
    """A third takes a share from two; then the first leaves. Nothing is given twice, and nothing is lost."""

    async def run() -> None:
        etcd, tally = SimulatedEtcd(), Tally()
        first, client = engine_on(etcd, lambda _: "")
        await ask(first, tally, 2, client)
        await first.aclose()
        second, other = engine_on(etcd, lambda _: "")
        await ask(second, tally, 2, other)
        await second.aclose()
        third, last = engine_on(etcd, lambda _: "")
        await ask(third, tally, 3, last)
        await third.aclose()
        assert tally.admitted == dict.fromkeys(KEYS, LIMIT.limit)
        assert not any(tally.unknown.values())

    asyncio.run(run())


def test_a_shard_whose_next_owner_dies_before_it_was_handed_over_is_decided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits to be handed over until its last commit is in etcd, and by then nobody is there to take it."""
    monkeypatch.setattr(ownership, "CALM_S", 0.0)
    own_port, other_port = free_ports(2)
    keys = [f"key{number}" for number in range(60)]  # Some in every shard.

    async def run() -> None:
        etcd, lost = SimulatedEtcd(), False
        options = f"&listen=127.0.0.1:{own_port}"
        engine, _ = engine_on(etcd, lambda _: "lost" if lost else "", options)
        hit = engine.bind(LIMIT)

        async def take(key: str) -> Decision:
            answer = hit(key, 1)
            return answer if isinstance(answer, Decision) else await answer

        for key in keys:
            assert await take(key)
        node = engine.nodes.first
        assert node.own is not None
        lost = True  # Commits do not get through, so no shard that is asked can be handed over.
        waiting = [asyncio.ensure_future(take(key)) for key in keys]
        etcd.alive.add(lease := 1_000_000)
        value = member_value(f"127.0.0.1:{other_port}", lease)
        etcd.carry_out([], [Put(node.own.paths.member("other"), value, lease)])
        async with asyncio.timeout(5):
            while all(shard.serving for shard in node.own.shards.values()):
                await node.changed.wait(0.01)
        etcd.end_lease(lease)
        async with asyncio.timeout(5):
            while "other" in node.own.map.members:
                await node.changed.wait(0.01)
        lost = False
        assert all(await asyncio.gather(*waiting))
        for key in keys:
            assert (await take(key)).remaining == LIMIT.limit - 3
        await engine.aclose()

    asyncio.run(run())
