"""What a region knows of all, in an etcd that loses answers: each growth is told once, and the log stays short."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from headgate import EngineError, FixedWindow
from headgate.regions import counter_log, etcd_store
from headgate.regions.counter_log import CounterEntry, CounterHead, parts
from headgate.regions.counters import Actor, CounterName, CounterTotal, forget_at_us, slice_of
from headgate.regions.etcd_store import EtcdRegionStore
from headgate.testing import ManualClock
from tests.unit.engines.etcd.simulated_etcd import SimulatedClient, SimulatedEtcd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.regions.counters import Growth

MINUTE = FixedWindow(10, 60_000_000).across_regions("merge")
US = Actor("us", "1", "b")
FATES = ("", "", "", "lost", "unheard", "late")


class Region:
    """An etcd, and the nodes of a region on it."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd()
        self.clock = ManualClock()

    def node(self, fate: Callable[[int], str] = lambda _: "") -> EtcdRegionStore:
        """One more node, whose transactions fare as `fate` says."""
        node = EtcdRegionStore("etcd://nowhere", self.clock.now_us, namespace="n")
        node._connected = SimulatedClient(self.etcd, fate)  # type: ignore[assignment]
        return node

    def total(self, key: str, many: int, actor: Actor = US) -> CounterTotal:
        """A counter of the slice that runs."""
        name = CounterName("rule", key, MINUTE, slice_of(MINUTE, self.clock.now_us()))
        return CounterTotal(name, actor, many)

    def entries(self) -> int:
        """How many entries the log has."""
        return sum("/log/" in key for key in self.etcd.items)


async def told(node: EtcdRegionStore) -> list[str]:
    """All that a node knows."""
    return sorted(map(repr, (await node.changes(0, 100_000))[0]))


def units(grown: Iterable[Growth]) -> int:
    return sum(one.units for one in grown)


@pytest.mark.parametrize("seed", range(40))
def test_each_growth_is_returned_once_whatever_happens_to_transactions(seed: int) -> None:
    """Three nodes hear the same totals, doubled and out of order; some callers give up in between."""

    async def main() -> None:
        rng = random.Random(seed)
        region = Region()
        calm = False

        def fate(_: int) -> str:
            return "" if calm else rng.choice(FATES)

        nodes = [region.node(fate) for _ in range(3)]
        largest: dict[str, int] = {}
        grown: list[Growth] = []

        async def hear(node: EtcdRegionStore, entries: list[CounterTotal]) -> None:
            with contextlib.suppress(EngineError):
                grown.extend((await node.merge(entries, "us")).grown)

        for _ in range(30):
            calls = []
            for _ in range(rng.randrange(1, 5)):
                entries = [
                    region.total(rng.choice("abcd"), rng.randrange(1, 100))
                    for _ in range(rng.randrange(4))
                ]
                for one in entries:
                    key = one.name.key
                    largest[key] = max(largest.get(key, 0), one.total)
                calls.append(asyncio.ensure_future(hear(rng.choice(nodes), entries)))
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            rng.choice(calls).cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        calm = True
        for node in nodes:  # Those who had told are told nothing, and tell again.
            await hear(node, [])
        await hear(nodes[0], [region.total(key, many) for key, many in largest.items()])
        by_key = {
            key: units(one for one in grown if one.name.key == key) for key in sorted(largest)
        }
        assert by_key == dict(sorted(largest.items()))
        known = [await told(node) for node in (*nodes, region.node())]
        assert all(one == known[0] for one in known)

    asyncio.run(main())


@pytest.mark.parametrize("fate", ["dead", "killed"])
def test_the_growth_of_a_killed_node_is_reported_at_most_once(fate: str) -> None:
    async def main() -> None:
        region = Region()
        first, second = region.node(lambda step: fate if step == 2 else ""), region.node()
        assert units((await first.merge([region.total("k", 3)])).grown) == 3
        dying = asyncio.ensure_future(first.merge([region.total("k", 5)]))
        for _ in range(20):
            await asyncio.sleep(0)
        again = await second.merge([region.total("k", 5)])
        assert units(again.grown) == (2 if fate == "dead" else 0)
        dying.cancel()

    asyncio.run(main())


def test_unreported_growth_comes_with_the_next_merge() -> None:
    async def main() -> None:
        region = Region()
        node = region.node(lambda step: "unheard" if step == 2 else "")
        await node.merge([region.total("k", 1)])
        with pytest.raises(EngineError) as raised:
            await node.merge([region.total("k", 4)])
        assert raised.value.indefinite
        assert [units((await node.merge([])).grown) for _ in range(2)] == [3, 0]

    asyncio.run(main())


def test_an_emptied_etcd_has_a_new_epoch_and_gets_everything_again() -> None:
    async def main() -> None:
        region = Region()
        nodes = [region.node(), region.node()]
        states = [(await node.merge([region.total("k", 3)])).state for node in nodes]
        assert states[0].epoch == states[1].epoch
        region.etcd.items.clear()
        merged = await nodes[1].merge([region.total("k", 3)])
        assert units(merged.grown) == 3
        assert merged.state.epoch != states[0].epoch
        again = await nodes[0].merge([region.total("k", 4)])
        assert (again.state.epoch, units(again.grown)) == (merged.state.epoch, 1)
        assert await told(nodes[0]) == await told(nodes[1])

    asyncio.run(main())


def test_growth_lost_by_an_emptied_etcd_is_reported_once_when_sent_again() -> None:
    async def main() -> None:
        region = Region()
        node = region.node(lambda step: "unheard" if step == 3 else "")
        await node.merge([region.total("k", 1)])
        long = [region.total(str(number) * 4_000, 1) for number in range(100)]
        with pytest.raises(EngineError):  # Some of it was written, and nobody was told.
            await node.merge(long)
        region.etcd.items.clear()
        assert units((await node.merge(long)).grown) == 100
        assert units((await region.node().merge(long)).grown) == 0

    asyncio.run(main())


def test_the_log_stays_short_and_a_new_node_reads_in_it_all_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some counters are told once, at the beginning, and one again and again; another node is away for long."""
    monkeypatch.setattr(counter_log, "FEW_COUNTERS", 30)
    monkeypatch.setattr(counter_log, "CARRIED", 4)

    async def main() -> None:
        region = Region()
        node, away = region.node(), region.node()
        await away.merge([])
        for key in range(20):
            await node.merge([region.total(f"{key}", 1)])
        for many in range(1, 300):
            await node.merge([region.total("hot", many)])
            assert region.entries() <= 70
        known = await told(node)
        assert len(known) == 21
        assert await told(away) == known
        assert await told(region.node()) == known
        merged = await away.merge([region.total(f"{key}", 1) for key in range(20)])
        assert merged.grown == []

    asyncio.run(main())


def test_what_is_over_leaves_etcd_when_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etcd_store, "TIDY_S", 0.0)

    async def main() -> None:
        region = Region()
        node = region.node()
        for key in range(50):
            await node.merge([region.total(f"{key}", 1)])
        over = region.total("0", 1)
        region.clock.advance((forget_at_us(over.name) - region.clock.now_us()) / 1_000_000)
        assert (await node.merge([over])).grown == []
        assert await told(node) == []
        assert region.entries() <= 1
        steps = region.etcd.revision
        for _ in range(5):
            await node.merge([])
        assert region.etcd.revision == steps  # And nothing is written any more.

    asyncio.run(main())


def test_one_node_ships_until_it_is_silent() -> None:
    async def main() -> None:
        region = Region()
        a, b = region.node(), region.node(lambda step: "unheard" if step == 4 else "")
        assert await a.lead("us", "a", 1_000_000)
        assert not await b.lead("us", "b", 1_000_000)
        assert await b.lead("asia", "b", 1_000_000)
        region.clock.advance(0.5)
        assert await a.lead("us", "a", 1_000_000)
        region.clock.advance(0.9)
        assert not await b.lead("us", "b", 1_000_000)
        region.clock.advance(0.1)
        with pytest.raises(EngineError):
            await b.lead("us", "b", 1_000_000)
        assert await b.lead("us", "b", 1_000_000)
        assert not await a.lead("us", "a", 1_000_000)
        assert (await a.merge([])).state.links["us"].shipper == "b"

    asyncio.run(main())


def test_an_entry_is_never_too_large_for_etcd() -> None:
    """Also of keys that are as long as keys may be and that cannot be compressed, with those that are said again."""

    async def main() -> None:
        region = Region()
        rng = random.Random(1)
        node = region.node()
        long = [
            region.total("".join(chr(rng.randrange(0x100, 0x2000)) for _ in range(2_000)), 1)
            for _ in range(1_000)
        ]
        assert units((await node.merge(long)).grown) == 1_000
        sizes = [len(item.value) for item in region.etcd.items.values()]
        assert len(sizes) > 4
        assert max(sizes) < 750_000
        assert await told(region.node()) == await told(node)

    asyncio.run(main())


def test_an_entry_that_etcd_refuses_is_not_sent_for_ever() -> None:
    async def main() -> None:
        region = Region()
        node = region.node(lambda step: "too large" if step == 2 else "")
        await node.merge([])
        with pytest.raises(EngineError):
            await node.merge([region.total("long", 1)])
        assert units((await node.merge([region.total("short", 2)])).grown) == 2

    asyncio.run(main())


def test_what_waits_too_long_for_its_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "DEADLINE_S", 0.05)

    async def main() -> None:
        region = Region()
        node = region.node(lambda _: "dead")
        first = asyncio.ensure_future(node.merge([region.total("k", 1)]))
        await asyncio.sleep(0)  # It takes its turn.
        with pytest.raises(EngineError, match="earlier calls") as raised:
            await node.merge([])
        assert not raised.value.indefinite
        first.cancel()

    asyncio.run(main())


def test_parts_hold_everything_in_its_order() -> None:
    region = Region()
    totals = [region.total("x" * 8_000, many) for many in range(1, 100)]
    found = list(parts(totals))
    assert len(found) > 1
    assert [one for part in found for one in part] == totals
    assert list(parts([])) == [[]]


@pytest.mark.parametrize("packed", [b"", b"x", b"[]", b'[2,"e",1,0]', b'[1,"e"', b"\xff"])
def test_a_log_that_cannot_be_read_is_an_error_of_the_store(packed: bytes) -> None:
    with pytest.raises(EngineError):
        CounterHead.unpack(packed)
    with pytest.raises(EngineError):
        CounterEntry.unpack(packed)
