"""etcd out of space, compacted, restarted, with a slow leader: what callers are told, and that counts stay right."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import pytest

from headgate import AsyncLimiter, Decision, EngineError, FixedWindow
from headgate.engines.etcd.aio import AsyncEtcdEngine
from tests.servers.etcd import Etcd, etcd, etcd_program
from tests.servers.fixtures import installed, on_etcd_versions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

CLUSTERS = itertools.count(1)
DAY_US = 86_400_000_000
LIMIT = 400
FALLBACK = "5/day"
QUOTA = 4 * 1024 * 1024


@pytest.fixture
def servers(etcd_cluster: Etcd) -> Etcd:
    return etcd_cluster


@pytest.fixture
def url(servers: Etcd) -> str:
    return f"etcd://{servers.hosts}/t{next(CLUSTERS)}?ttl=3&shards=8"


class Hammer:
    """Callers of one key on one node, and what they were told."""

    def __init__(self, url: str) -> None:
        self.engine = AsyncEtcdEngine(f"{url}&deadline=1")
        self._hit = self.engine.bind(FixedWindow(LIMIT, DAY_US))
        self.admitted = self.unknown = self.refused = self.denied = 0
        self.longest_s = 0.0

    async def call(self) -> bool | None:
        """One hit: whether it passed; `None` if nothing was decided, or nobody knows."""
        begun = time.monotonic()
        try:
            answer = self._hit("key", 1)
            decision = answer if isinstance(answer, Decision) else await answer
        except EngineError as error:
            self.unknown += error.indefinite
            self.refused += not error.indefinite
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self.admitted += decision.allowed
        self.denied += not decision.allowed
        return decision.allowed

    async def go_on_while(self, trouble: Awaitable[None], callers: int = 4) -> None:
        """Call while trouble is made. Not in a thread: servers end with the thread that started them."""
        over = False

        async def keep_calling() -> None:
            while not over:
                await self.call()
                await asyncio.sleep(0.05)  # So that the limit is not used up before the end.

        calling = [asyncio.ensure_future(keep_calling()) for _ in range(callers)]
        try:
            await trouble
        finally:
            over = True
            await asyncio.gather(*calling)

    async def until_it_answers(self, seconds: float = 30) -> None:
        ends = time.monotonic() + seconds
        while await self.call() is None:
            assert time.monotonic() < ends, "it does not come back"

    async def use_up(self) -> None:
        """Call until the key is denied, and see that every unit was given once."""
        ends = time.monotonic() + 60
        while await self.call() is not False:
            assert time.monotonic() < ends, "it was never denied"
        assert self.admitted <= LIMIT
        assert self.admitted + self.unknown >= LIMIT
        await self.engine.aclose()


@pytest.fixture
def full(etcd_version: str) -> Iterator[Etcd]:
    """A server with little room."""
    options = ("--quota-backend-bytes", str(QUOTA))
    with installed(), etcd(1, options=options, program=etcd_program(etcd_version)) as started:
        yield started


@on_etcd_versions()
def test_out_of_space_nothing_is_decided_and_it_comes_back_when_there_is_room(full: Etcd) -> None:
    async def story() -> None:
        hammer = Hammer(f"etcd://{full.hosts}/full?ttl=3&shards=8")
        assert await hammer.call()
        full.fill()
        assert await hammer.call() is None  # In a commit that etcd may take yet.
        assert await hammer.call() is None
        assert (hammer.unknown, hammer.refused) == (1, 1)  # The second was not even decided.
        assert hammer.longest_s < 3
        gauges = hammer.engine.nodes.gauges()
        assert gauges["etcd_refused_total"] > 0
        assert gauges["etcd_joined_total"] == 1  # It stays where it is.
        full.make_room()
        await hammer.until_it_answers()
        assert hammer.engine.nodes.gauges()["etcd_joined_total"] == 1
        await hammer.use_up()

    asyncio.run(story())


@on_etcd_versions()
def test_out_of_space_a_fallback_answers_and_the_store_is_asked_again_by_itself(full: Etcd) -> None:
    async def story() -> None:
        url = f"etcd://{full.hosts}/fallback?ttl=3&shards=8&deadline=0.5"
        limiter = AsyncLimiter(url, on_error="fallback", nodes=1)
        assert (await limiter.hit("key", FALLBACK)).context.source == "engine"
        full.fill()
        told = [await limiter.hit("key", FALLBACK) for _ in range(12)]
        assert {one.context.source for one in told[1:]} == {"fallback"}
        assert 1 <= sum(one.allowed for one in told) <= 5
        full.make_room()
        ends = time.monotonic() + 30
        while (await limiter.hit("other", FALLBACK)).context.source != "engine":
            assert time.monotonic() < ends, "the store is not asked again"
            await asyncio.sleep(0.1)  # The breaker tries now and then.
        await limiter.aclose()

    asyncio.run(story())


@on_etcd_versions()
def test_a_cluster_survives_a_foreign_compaction_and_shards_still_move(
    servers: Etcd, url: str
) -> None:
    """Watches break off when their revision is gone; the map is read again, and the next owner finds everything."""

    async def story() -> None:
        hammer = Hammer(url)
        assert await hammer.call()

        async def trouble() -> None:
            for _ in range(20):
                servers.nodes[0].compact()
                await asyncio.sleep(0.1)  # While calls are made.

        await hammer.go_on_while(trouble())
        assert (hammer.unknown, hammer.refused) == (0, 0)
        await hammer.engine.aclose()
        servers.nodes[0].compact()
        next_owner = Hammer(url)
        next_owner.admitted, next_owner.unknown = hammer.admitted, hammer.unknown
        await next_owner.until_it_answers()
        await next_owner.use_up()

    asyncio.run(story())


def test_servers_that_restart_one_after_the_other_cost_no_unit(servers: Etcd, url: str) -> None:
    async def story() -> None:
        hammer = Hammer(url)
        assert await hammer.call()

        async def trouble() -> None:
            for server in servers.nodes:
                server.kill()
                await asyncio.sleep(0.3)  # While calls are made.
                server.restart()
                await asyncio.to_thread(servers.wait_until_whole)

        await hammer.go_on_while(trouble())
        await hammer.until_it_answers()
        await hammer.use_up()

    asyncio.run(story())


def test_all_servers_restarted_at_once_cost_no_unit(servers: Etcd, url: str) -> None:
    async def story() -> None:
        hammer = Hammer(url)
        assert await hammer.call()

        async def trouble() -> None:
            for server in servers.nodes:
                server.kill()
            await asyncio.sleep(0.5)  # While calls are made.
            for server in servers.nodes:
                server.start()
            await asyncio.to_thread(servers.wait_until_whole)

        await hammer.go_on_while(trouble())
        await hammer.until_it_answers()
        await hammer.use_up()

    asyncio.run(story())


@on_etcd_versions()
def test_a_slow_leader_makes_callers_wait_and_no_unit_is_lost_or_doubled(
    servers: Etcd, url: str
) -> None:
    """It runs a fifth of the time, in turns shorter than an election takes."""

    async def story() -> None:
        hammer = Hammer(url)
        assert await hammer.call()
        leader = servers.leader

        async def trouble() -> None:
            ends = time.monotonic() + 3
            while time.monotonic() < ends:
                leader.stop()
                await asyncio.sleep(0.2)  # It hangs,
                leader.resume()
                await asyncio.sleep(0.05)  # and works off a little.

        admitted = hammer.admitted
        await hammer.go_on_while(trouble())
        assert hammer.admitted > admitted
        assert hammer.longest_s < 5
        await hammer.until_it_answers()
        await hammer.use_up()

    asyncio.run(story())
