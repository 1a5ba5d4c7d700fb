"""The deny cache: never a wrong answer of one's own making, and another node's news within a second."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.algorithms import CalendarWindow
from headgate.algorithms.calendar import Calendar
from headgate.charge import Charge, Kind, Request
from headgate.engines.base import Awaited
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.guards import deny_cache
from headgate.guards.deny_cache import AsyncDenyCache, DenyCache
from headgate.testing import Blocking, ManualClock
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate import Engine, Limit
    from headgate.decision import Decision
    from tests.servers.redis import RedisServer

MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
HOLDING: list[Limit] = [
    FixedWindow(3, MINUTE_US),
    SlidingWindow(3, MINUTE_US),
    SlidingLog(3, MINUTE_US),
    TokenBucket(3, MINUTE_US),
]
CHANGING: list[Limit] = [
    ExponentialBackoff(3, MINUTE_US),
    Adaptive(3, MINUTE_US),
    Concurrency(3, MINUTE_US),
]


def by_name(limit: Limit) -> str:
    return type(limit).__name__


class Counted:
    """An engine that counts how often it is asked."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self.asked: Counter[str] = Counter()
        self.bound = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def bind(self, limit: Limit, rule: str | None = None) -> Callable[[str, int], Decision]:
        hit = self._engine.bind(limit, rule)
        self.bound += 1

        def counted(key: str, cost: int) -> Decision:
            self.asked["hit"] += 1
            decision = hit(key, cost)
            self.meanwhile()
            return decision

        return counted

    def decide(self, requests: Sequence[Request]) -> list[Decision]:
        self.asked["decide"] += 1
        return self._engine.decide(requests)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@pytest.fixture
def store(clock: ManualClock) -> Counted:
    return Counted(MemoryEngine(clock=clock))


@pytest.fixture(params=["sync", "async"])
def cached(request: pytest.FixtureRequest, store: Any) -> Iterator[Engine]:
    """The cache around the counted engine, called directly and awaited."""
    if request.param == "sync":
        yield DenyCache(store)
        return
    engine = Blocking(AsyncDenyCache(Awaited(store)))
    yield engine
    engine.close()


def spend(engine: Engine, limit: Limit, key: str = "key") -> Decision:
    """Use a limit up, and return the first denial."""
    hit = engine.bind(limit)
    while decision := hit(key, 1):
        pass
    return decision


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_a_denial_that_holds_is_not_asked_for_again(
    cached: Engine, store: Counted, clock: ManualClock, limit: Limit
) -> None:
    denied = spend(cached, limit)
    asked = store.asked.total()
    clock.advance(us=1_000)
    hit = cached.bind(limit)
    again = [hit("key", 1) for _ in range(1_000)]
    assert store.asked.total() == asked
    assert denied.source == "engine"
    assert {one.source for one in again} == {"cache"}
    assert {(one.allowed, one.remaining) for one in again} == {(False, 0)}
    # It counts down as the engine's own answer would.
    (fresh,) = store._engine.decide([Request((Charge("key", limit),))])
    assert again[0].retry_after_us == fresh.retry_after_us
    assert again[0].reset_after == fresh.reset_after


@pytest.mark.parametrize("limit", CHANGING, ids=by_name)
def test_a_denial_that_changes_something_is_always_asked_for(
    cached: Engine, store: Counted, limit: Limit
) -> None:
    spend(cached, limit)
    asked = store.asked.total()
    assert {cached.bind(limit)("key", 1).source for _ in range(10)} == {"engine"}
    assert store.asked.total() == asked + 10


def test_a_calendar_is_always_asked_for(cached: Engine, store: Counted) -> None:
    """Its periods are worked out by a clock that may not be the store's."""
    limit = CalendarWindow(3, calendar=Calendar("day", "UTC"))
    spend(cached, limit)
    asked = store.asked.total()
    sources = {cached.bind(limit)("key", 1).source for _ in range(3)}
    assert (sources, store.asked.total()) in [({"engine"}, asked + 3), ({"cache"}, asked)]


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_it_passes_again_at_the_very_microsecond_the_engine_said(
    cached: Engine, clock: ManualClock, limit: Limit
) -> None:
    denied = spend(cached, limit)
    left_us = denied.retry_after_us
    hit = cached.bind(limit)
    clock.advance(us=left_us - 1)
    assert not hit("key", 1)
    clock.advance(us=1)
    assert hit("key", 1)


def test_it_is_exact_for_other_costs(cached: Engine) -> None:
    limit = TokenBucket(10, MINUTE_US)
    hit = cached.bind(limit)
    assert hit("key", 6)
    assert not hit("key", 5)
    assert not hit("key", 5)
    assert not hit("key", 6)
    assert hit("key", 4)  # A smaller cost was never denied.
    assert not hit("key", 1)


def test_one_key_and_one_limit_say_nothing_of_others(cached: Engine) -> None:
    one, other = FixedWindow(1, MINUTE_US), FixedWindow(2, MINUTE_US)
    spend(cached, one)
    assert cached.bind(one)("another key", 1)
    assert cached.bind(other)("key", 1)  # The same state, and room for one more.
    assert cached.bind(one, "rule")("key", 1)
    assert cached.scoped("other").bind(one)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_ones_own_reset_is_seen_at_once(cached: Engine, limit: Limit) -> None:
    spend(cached, limit)
    assert not cached.bind(limit)("key", 1)
    cached.reset("key", limit)
    assert cached.bind(limit)("key", 1)


def test_a_denial_that_was_on_its_way_during_a_reset_is_not_kept(
    cached: Engine, store: Counted
) -> None:
    limit = FixedWindow(3, MINUTE_US)
    for _ in range(3):
        cached.bind(limit)("key", 1)

    def reset() -> None:
        store.meanwhile = lambda: None
        inner: Any = cached._engine if isinstance(cached, Blocking) else cached
        store._engine.reset("key", limit)
        inner._book.renew("key")  # What `reset` does then.

    store.meanwhile = reset
    assert not cached.bind(limit)("key", 1)
    assert cached.bind(limit)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_ones_own_refund_is_seen_at_once(cached: Engine, limit: Limit) -> None:
    (held,) = cached.decide([Request((Charge("key", limit, 3),), reserve_us=MINUTE_US)])
    assert not cached.bind(limit)("key", 1)
    assert not cached.bind(limit)("key", 1)
    assert held.token is not None
    cached.settle(held.token, 2)
    assert cached.bind(limit)("key", 1)


def test_leaving_the_line_is_seen_at_once(cached: Engine) -> None:
    bucket = TokenBucket(3, MINUTE_US)
    spend(cached, bucket)
    (place,) = cached.decide([Request((Charge("key", bucket),), wait_us=MINUTE_US)])
    denied = cached.bind(bucket)("key", 1)
    assert place
    cached.leave_line(place)
    assert cached.bind(bucket)("key", 1).retry_after_us < denied.retry_after_us


def test_a_token_of_another_node_makes_everything_be_asked_again(cached: Engine) -> None:
    limit = FixedWindow(3, MINUTE_US)
    (held,) = cached.decide([Request((Charge("key", limit, 3),), reserve_us=MINUTE_US)])
    spend(cached, limit)
    assert held.token is not None
    inner: Any = cached._engine if isinstance(cached, Blocking) else cached
    inner._book._reserved.clear()  # As if another node had reserved it.
    cached.settle(held.token, 0)
    assert cached.bind(limit)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_another_nodes_reset_is_seen_within_a_second(
    cached: Engine, store: Counted, clock: ManualClock, limit: Limit
) -> None:
    spend(cached, limit)
    store._engine.reset("key", limit)
    hit = cached.bind(limit)
    assert not hit("key", 1)
    clock.advance(us=999_999)
    assert not hit("key", 1)
    clock.advance(us=1)
    assert hit("key", 1)


def test_a_cost_that_never_fits_is_asked_for(cached: Engine) -> None:
    hit = cached.bind(FixedWindow(3, MINUTE_US))
    assert [hit("key", 4).source for _ in range(2)] == ["engine", "engine"]
    assert hit("key", 3)


def test_looks_forced_charges_and_several_charges_go_to_the_engine(cached: Engine) -> None:
    limit = FixedWindow(3, MINUTE_US)
    spend(cached, limit)
    for kind in (Kind.PEEK, Kind.FORCE, Kind.SHADOW):
        (decision,) = cached.decide([Request((Charge("key", limit, kind=kind),))])
        assert decision.source != "cache"
    (decision,) = cached.decide([Request((Charge("key", limit), Charge("other", limit)))])
    assert not decision
    assert decision.source == "engine"


def test_it_holds_only_so_much(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deny_cache, "MAX_KEYS", 100)
    cache = DenyCache(store)
    limit = FixedWindow(1, MINUTE_US)
    hit = cache.bind(limit)
    for number in range(1_000):
        hit(f"key {number}", 1)
        assert not hit(f"key {number}", 1)
        (held,) = cache.decide([Request((Charge(f"held {number}", limit),), reserve_us=MINUTE_US)])
        assert held
    assert all(len(denials._known) <= 100 for denials in cache._book._by_limit.values())
    assert len(cache._book._reserved) <= 100
    assert not hit("key 0", 1)  # Forgetting costs a question, never an answer.


def test_it_holds_only_so_many_limits(cached: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates may come from users; one that was bound long ago is remembered for all that."""
    monkeypatch.setattr(deny_cache, "MAX_LIMITS", 10)
    limit = FixedWindow(3, MINUTE_US)
    hit = cached.bind(limit)
    spend(cached, limit)
    inner: Any = cached._engine if isinstance(cached, Blocking) else cached
    for number in range(100):
        spend(cached, SlidingWindow(1 + number % 50, MINUTE_US + number))
        assert len(inner._book._by_limit) <= 10
        assert len(inner._bound) <= 10
    assert [hit("key", 1).source for _ in range(2)] == ["engine", "cache"]
    cached.reset("key", limit)
    assert hit("key", 1)  # It is in the book again, so the reset was seen.


def test_a_limit_is_bound_once(cached: Engine, store: Counted) -> None:
    for limit in (HOLDING[0], CHANGING[0]):
        before = store.bound
        for _ in range(10):
            cached.decide([Request((Charge("key", limit, rule="rule"),))])
        assert store.bound == before + 1


@pytest.mark.parametrize("key", [["a"], {}, {"a"}, bytearray(b"a")], ids=repr)
def test_a_key_that_cannot_be_hashed_is_refused_like_any_that_is_no_text(
    cached: Engine, key: Any
) -> None:
    for limit in (HOLDING[0], CHANGING[0]):
        with pytest.raises(UsageError, match="a key is text"):
            cached.bind(limit)(key, 1)
        with pytest.raises(UsageError, match="a key is text"):
            cached.decide([Request((Charge(key, limit),))])


def test_random_calls_get_the_answers_of_an_engine_without_it() -> None:
    """Everything but who answered is equal, at every moment."""
    for seed in range(150):
        choose = random.Random(seed)
        limit = choose.choice(HOLDING)
        clocks = [ManualClock(1_800_000_000.0), ManualClock(1_800_000_000.0)]
        plain, cached = MemoryEngine(clock=clocks[0]), DenyCache(MemoryEngine(clock=clocks[1]))
        for number in range(60):
            move = choose.choice([0, 0, 1, 1_000, 400_000, 999_999, 1_000_000, 20_000_000])
            cost = choose.choice([0, 1, 1, 1, 2, 3, 4])
            engines: tuple[Engine, Engine] = (plain, cached)
            if choose.random() < 0.05:
                for engine in engines:
                    engine.reset("key", limit)
            answers = []
            for engine, clock in zip(engines, clocks, strict=True):
                clock.advance(us=move)
                answers.append(engine.bind(limit)("key", cost).answer)
            assert answers[0] == answers[1], (seed, number)


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_two_nodes_with_caches_admit_exactly_the_limit_and_see_each_others_resets(
    redis_server: RedisServer,
) -> None:
    """By the real clock: a node is wrong about another's reset for a second, and not longer."""
    limit = FixedWindow(10, 250 * 86_400_000_000)
    nodes = [DenyCache(RedisEngine(redis_server.url)) for _ in range(2)]
    hits = [node.bind(limit) for node in nodes]
    allowed = sum(bool(hits[number % 2]("key", 1)) for number in range(100))
    assert allowed == 10
    before = redis_server.info("commandstats")["cmdstat_fcall"]
    assert {hit("key", 1).source for hit in hits for _ in range(100)} == {"cache"}
    assert redis_server.info("commandstats")["cmdstat_fcall"] == before
    nodes[0].reset("key", limit)
    assert hits[0]("key", 1)

    wait_until(lambda: bool(hits[1]("key", 1)), "the reset is seen", within_s=1.2)
    for node in nodes:
        node.close()


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("receipts", ["no", "yes"])
def test_a_denial_is_known_before_whoever_asked_is_told(
    redis_server: RedisServer, receipts: str
) -> None:
    """In a batch of one limit and in one of several."""

    async def main() -> None:
        engine = AsyncDenyCache(AsyncRedisEngine(f"{redis_server.url}?receipts={receipts}"))
        hits: list[Any] = [engine.bind(FixedWindow(limit, DAY_US)) for limit in (1, 2)]
        for batch in (hits[:1], hits):
            await engine.reset("key", FixedWindow(1, DAY_US))
            assert await hits[0]("key", 1)
            answers = await asyncio.gather(*(hit("key", 1) for hit in batch))
            assert [one.source for one in answers] == ["engine"] * len(batch)
            assert not answers[0]
            assert hits[0]("key", 1).source == "cache"
        await engine.aclose()

    asyncio.run(main())
