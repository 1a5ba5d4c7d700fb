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
from headgate.charge import Charge, ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.decision import ENGINE, Decision
from headgate.engines.base import Awaited
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.codec import MAX_KNOWN
from headgate.engines.redis.packing import MAX_STARTS, BulkPrefixes
from headgate.engines.redis.sync import RedisEngine
from headgate.guards import denials, questions
from headgate.guards.denials import DenialBook
from headgate.guards.deny_cache import DenyCache
from headgate.guards.shell import AsyncGuardedEngine, GuardedEngine
from headgate.testing import Blocking, ManualClock
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate import Engine, Limit
    from tests.servers.redis import RedisServer

MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
HOLDING: list[Limit] = [
    FixedWindow(3, MINUTE_US),
    SlidingWindow(3, MINUTE_US),
    SlidingLog(3, MINUTE_US),
    TokenBucket(3, MINUTE_US),
    Adaptive(3, MINUTE_US),
    Adaptive(3, MINUTE_US, 3, "token_bucket"),
]
CHANGING: list[Limit] = [
    ExponentialBackoff(3, MINUTE_US),
    Adaptive(3, MINUTE_US, 3, "exponential_backoff"),
    Concurrency(3, MINUTE_US),
]


def by_name(limit: Limit) -> str:
    return f"{type(limit).__name__} {getattr(limit, 'chosen', '')}".strip()


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

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
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
        yield GuardedEngine(store, DenyCache(store.clock))
        return
    engine = Blocking(AsyncGuardedEngine(Awaited(store), DenyCache(store.clock)))
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
    (fresh,) = store._engine.decide([ChargeSet((Charge("key", limit),))])
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


def test_a_denial_applies_to_its_key_and_limit_only(cached: Engine) -> None:
    one, other = FixedWindow(1, MINUTE_US), FixedWindow(2, MINUTE_US)
    spend(cached, one)
    assert cached.bind(one)("another key", 1)
    assert cached.bind(other)("key", 1)  # The same state, and room for one more.
    assert cached.bind(one, "rule")("key", 1)
    assert cached.scoped("other").bind(one)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_a_nodes_own_reset_takes_effect_at_once(cached: Engine, limit: Limit) -> None:
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
        inner.guard._book.renew("key")  # What `reset` does then.

    store.meanwhile = reset
    assert not cached.bind(limit)("key", 1)
    assert cached.bind(limit)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_a_nodes_own_refund_takes_effect_at_once(cached: Engine, limit: Limit) -> None:
    (held,) = cached.decide([ChargeSet((Charge("key", limit, 3),), reserve_us=MINUTE_US)])
    assert not cached.bind(limit)("key", 1)
    assert not cached.bind(limit)("key", 1)
    assert held.token is not None
    cached.settle(held.token, 2)
    assert cached.bind(limit)("key", 1)


def test_leaving_the_line_is_seen_at_once(cached: Engine) -> None:
    bucket = TokenBucket(3, MINUTE_US)
    spend(cached, bucket)
    (place,) = cached.decide([ChargeSet((Charge("key", bucket),), wait_us=MINUTE_US)])
    denied = cached.bind(bucket)("key", 1)
    assert place
    cached.leave_line(place)
    assert cached.bind(bucket)("key", 1).retry_after_us < denied.retry_after_us


def test_settling_an_unknown_token_drops_all_denials(cached: Engine) -> None:
    limit = FixedWindow(3, MINUTE_US)
    (held,) = cached.decide([ChargeSet((Charge("key", limit, 3),), reserve_us=MINUTE_US)])
    spend(cached, limit)
    assert held.token is not None
    inner: Any = cached._engine if isinstance(cached, Blocking) else cached
    inner.guard._book._reserved.clear()  # As if another node had reserved it.
    cached.settle(held.token, 0)
    assert cached.bind(limit)("key", 1)


@pytest.mark.parametrize("limit", HOLDING, ids=by_name)
def test_another_nodes_reset_takes_effect_within_a_second(
    cached: Engine, store: Counted, clock: ManualClock, limit: Limit
) -> None:
    spend(cached, limit)
    store._engine.reset("key", limit)
    hit = cached.bind(limit)
    assert not hit("key", 1)
    clock.advance(us=899_999)  # A tenth less than a second: this clock may be that much slower.
    assert not hit("key", 1)
    clock.advance(us=1)
    assert hit("key", 1)


NEVER_FITS = [
    (FixedWindow(3, MINUTE_US), 4),
    (FixedWindow(0, MINUTE_US), 1),
    (SlidingWindow(0, MINUTE_US), 1),
    (SlidingLog(3, MINUTE_US), 4),
    (TokenBucket(3, MINUTE_US, 5), 6),
    (ExponentialBackoff(3, MINUTE_US), 4),
    (Adaptive(3, MINUTE_US), 4),
    (Concurrency(3), 4),
]


@pytest.mark.parametrize("limit, cost", NEVER_FITS, ids=lambda one: getattr(one, "name", str(one)))
def test_what_can_never_fit_is_denied_without_asking(
    cached: Engine, store: Any, limit: Limit, cost: int
) -> None:
    """The engine would say the same, whatever was asked before, and would not count it."""
    hit = cached.bind(limit)
    store.asked.clear()
    told = [hit("key", cost) for _ in range(3)]
    told += [cached.decide([ChargeSet((Charge("key", limit, cost, rule="r"),))])[0]]
    assert {(one.allowed, one.never, one.remaining, one.source) for one in told} == {
        (False, True, 0, "cache")
    }
    assert (told[3].rule, store.asked) == ("r", Counter())
    engine = MemoryEngine()
    assert engine.bind(limit)("key", cost).never
    assert engine.usage("key", limit).used == 0
    for key in ("", "x" * 10_000, 5):
        with pytest.raises(UsageError):
            hit(key, cost)  # type: ignore[arg-type]


def test_a_request_of_which_a_part_can_never_fit_is_denied_without_asking(
    cached: Engine, store: Any
) -> None:
    fits, never = FixedWindow(3, MINUTE_US), FixedWindow(0, MINUTE_US)
    store.asked.clear()
    request = ChargeSet((Charge("one", fits, rule="a"), Charge("two", never, rule="b")))
    (decision,) = cached.decide([request])
    assert (decision.allowed, decision.never, decision.key) == (False, True, "two")
    assert [(one.rule, one.allowed) for one in decision.rules] == [("a", True), ("b", False)]
    assert not store.asked
    shadow = ChargeSet((Charge("one", fits, kind=ChargeKind.SHADOW), Charge("two", never)))
    one, two = cached.decide([shadow, request])  # Shadows are counted also when others deny.
    assert (one.never, two.never, store.asked) == (True, True, Counter(decide=1))


def test_looks_forced_charges_and_several_charges_go_to_the_engine(cached: Engine) -> None:
    limit = FixedWindow(3, MINUTE_US)
    spend(cached, limit)
    for kind in (ChargeKind.PEEK, ChargeKind.FORCE, ChargeKind.SHADOW):
        (decision,) = cached.decide([ChargeSet((Charge("key", limit, kind=kind),))])
        assert decision.source != "cache"
    (decision,) = cached.decide([ChargeSet((Charge("key", limit), Charge("other", limit)))])
    assert not decision
    assert decision.source == "engine"


def test_the_cache_is_bounded(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "MAX_KEYS", 100)
    cache: Any = GuardedEngine(store, DenyCache(store.clock))
    limit = FixedWindow(1, MINUTE_US)
    hit = cache.bind(limit)
    for number in range(1_000):
        hit(f"key {number}", 1)
        assert not hit(f"key {number}", 1)
        (held,) = cache.decide(
            [ChargeSet((Charge(f"held {number}", limit),), reserve_us=MINUTE_US)]
        )
        assert held
    assert sum(len(one._known) for one in cache.guard._book._by_limit.values()) <= 100
    assert len(cache.guard._book._reserved) <= 100
    assert not hit("key 0", 1)  # Forgetting costs a question, never an answer.


def test_denials_of_all_limits_have_one_bound_in_keys_and_bytes(clock: ManualClock) -> None:
    """Half a million keys of a thousand limits, and long keys: what is kept fits into the bound, by its real size."""
    book = DenialBook(clock)
    limits = [FixedWindow(1, MINUTE_US + number) for number in range(1_000)]
    answer = (False, 0, 30_000_000, 30_000_000, 0)

    def deny(number: int, key: str) -> None:
        limit = limits[number % len(limits)]
        decision = Decision(key, limit, answer, ENGINE)
        book.of(limit, None).remember(decision, 1, clock.ticks(), book.era)

    def kept() -> list[str]:
        return [key for one in book._by_limit.values() for key in one._known]

    for number in range(500_000):
        deny(number, f"user:{number}")
    assert 0 < len(kept()) <= denials.MAX_KEYS
    for number in range(20_000):
        deny(number, f"{number:x>8000}")
    assert 0 < sum(map(len, kept())) <= denials.MAX_BYTES
    clock.advance(2.0)  # What has ended makes room first.
    for number in range(denials.MAX_KEYS):
        deny(number, f"later:{number}")
    assert len([key for key in kept() if key.startswith("later")]) > denials.MAX_KEYS // 3


def test_caches_of_limits_are_bounded() -> None:
    """Callers of a service may name any limit: nothing is kept of them without end."""
    engines: tuple[Any, ...] = (
        GuardedEngine(RedisEngine("redis://127.0.0.1:1"), DenyCache(ManualClock())),
        AsyncGuardedEngine(AsyncRedisEngine("redis://127.0.0.1:1"), DenyCache(ManualClock())),
    )
    for engine in engines:
        inner = engine.unguarded
        codec = inner._operations.codec
        for number in range(3 * denials.MAX_LIMITS):
            engine.bind(FixedWindow(1 + number, MINUTE_US + number), str(number))
        assert 0 < len(engine._bound) <= denials.MAX_LIMITS
        assert 0 < len(engine.guard._book._by_limit) <= denials.MAX_LIMITS
        assert 0 < len(codec._rules) <= MAX_KNOWN
        assert 0 < len(codec._prefixes) <= MAX_KNOWN
    starts = BulkPrefixes(b"before")
    assert {len(starts[length]) for length in range(1, 250)}
    assert len(starts) <= MAX_STARTS


def test_the_number_of_limits_is_bounded(cached: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates may come from users; one that was bound long ago is remembered for all that."""
    for module in (questions, denials):
        monkeypatch.setattr(module, "MAX_LIMITS", 10)
    limit = FixedWindow(3, MINUTE_US)
    hit = cached.bind(limit)
    spend(cached, limit)
    inner: Any = cached._engine if isinstance(cached, Blocking) else cached
    for number in range(100):
        spend(cached, SlidingWindow(1 + number % 50, MINUTE_US + number))
        assert len(inner.guard._book._by_limit) <= 10
        assert len(inner._bound) <= 10
    assert [hit("key", 1).source for _ in range(2)] == ["engine", "cache"]
    cached.reset("key", limit)
    assert hit("key", 1)  # It is in the book again, so the reset was seen.


def test_a_limit_is_bound_once(cached: Engine, store: Counted) -> None:
    for limit in (HOLDING[0], CHANGING[0]):
        before = store.bound
        for _ in range(10):
            cached.decide([ChargeSet((Charge("key", limit, rule="rule"),))])
        assert store.bound == before + 1


@pytest.mark.parametrize("key", [["a"], {}, {"a"}, bytearray(b"a")], ids=repr)
def test_a_key_that_cannot_be_hashed_is_refused_like_any_that_is_no_text(
    cached: Engine, key: Any
) -> None:
    for limit in (HOLDING[0], CHANGING[0]):
        with pytest.raises(UsageError, match="a key must be a string"):
            cached.bind(limit)(key, 1)
        with pytest.raises(UsageError, match="a key must be a string"):
            cached.decide([ChargeSet((Charge(key, limit),))])


def test_random_calls_get_the_answers_of_an_engine_without_it() -> None:
    """Everything but who answered is equal, at every moment."""
    for seed in range(150):
        choose = random.Random(seed)
        limit = choose.choice(HOLDING)
        clocks = [ManualClock(1_800_000_000.0), ManualClock(1_800_000_000.0)]
        plain = MemoryEngine(clock=clocks[0])
        cached = GuardedEngine(MemoryEngine(clock=clocks[1]), DenyCache(clocks[1]))
        for number in range(60):
            move = choose.choice([0, 0, 1, 1_000, 400_000, 999_999, 1_000_000, 20_000_000])
            cost = choose.choice([0, 1, 1, 1, 2, 3, 4])
            engines: tuple[Engine, Engine] = (plain, cached)
            if choose.random() < 0.05:
                for engine in engines:
                    engine.reset("key", limit)
            answers: list[Any] = []
            for engine, clock in zip(engines, clocks, strict=True):
                clock.advance(us=move)
                answers.append(engine.bind(limit)("key", cost).answer)
            if cost > limit.limit:  # Not asked for, so what is left is not known.
                answers = [(answer[0], answer[2]) for answer in answers]
            assert answers[0] == answers[1], (seed, number)


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_two_nodes_with_caches_admit_exactly_the_limit_and_see_each_others_resets(
    redis_server: RedisServer,
) -> None:
    """By the real clock: a node is wrong about another's reset for a second, and not longer."""
    limit = FixedWindow(10, 250 * 86_400_000_000)
    engines = [RedisEngine(redis_server.url) for _ in range(2)]
    nodes = [GuardedEngine(engine, DenyCache(engine.clock)) for engine in engines]
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
def test_a_denial_is_cached_before_its_caller_gets_it(
    redis_server: RedisServer, receipts: str
) -> None:
    """In a batch of one limit and in one of several."""

    async def main() -> None:
        inner = AsyncRedisEngine(f"{redis_server.url}?receipts={receipts}")
        engine = AsyncGuardedEngine(inner, DenyCache(inner.clock))
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
