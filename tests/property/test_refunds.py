"""Refunds into a bucket are exact: the state is what a slow twin gets that replays every take with its real cost.

What exceeds a reservation is charged when it settles; everything else counts as if it had been known from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from headgate.algorithms import Adaptive, TokenBucket
from headgate.charge import Charge, ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines.memory import MemoryEngine
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.property.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from tests.servers.redis import RedisServer

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

Step = tuple[str, int, int, int]
"""What happens, after how long, with what cost, and to which of the open reservations."""


@dataclass
class Taken:
    """One take, with its real cost as far as it is known."""

    at_us: int
    cost: int


@dataclass
class Replayed:
    """A bucket that keeps everything that was ever taken."""

    limit: Any
    history: list[Taken] = field(default_factory=list)

    def __post_init__(self) -> None:
        """A unit takes so long to flow back, rounded up to 1/256 of a microsecond."""
        self.unit = Fraction(ceil(Fraction(256 * self.limit.window_us, self.limit.limit)), 256)

    def debt(self, now_us: int) -> Fraction:
        """In microseconds, from the beginning."""
        debt, before_us = Fraction(0), 0
        for one in [*self.history, Taken(now_us, 0)]:
            debt = max(Fraction(0), debt - (one.at_us - before_us)) + one.cost * self.unit
            before_us = one.at_us
        return debt

    def free(self, now_us: int) -> Fraction:
        full: Fraction = self.limit.burst * self.unit
        return full - self.debt(now_us)

    def left(self, now_us: int) -> int:
        return max(0, floor(self.free(now_us) / self.unit))

    def take(self, now_us: int, cost: int) -> Taken | None:
        """Take if it fits."""
        if cost > self.limit.burst or cost * self.unit > self.free(now_us):
            return None
        return self.force(now_us, cost)

    def force(self, now_us: int, cost: int) -> Taken:
        self.history.append(Taken(now_us, cost))
        return self.history[-1]

    def settle(self, taken: Taken, now_us: int, actual: int) -> None:
        """As if the real cost had been known when it was taken; what exceeds it is charged now."""
        if actual > taken.cost:
            self.force(now_us, actual - taken.cost)
        else:
            taken.cost = actual


@dataclass
class Played:
    """The same things happen to a key of an engine and to its twin."""

    engine: Engine
    clock: ManualClock
    limit: Any
    key: str
    open: list[tuple[str, Taken]] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.twin = Replayed(self.limit)

    def play(self, step: Step) -> None:
        verb, move_us, cost, which = step
        self.clock.advance(us=move_us)
        now_us = self.clock.now_us()
        charge = Charge(self.key, self.limit, cost)
        if verb == "hit":
            assert bool(self.engine.bind(self.limit)(self.key, cost)) == bool(
                self.twin.take(now_us, cost)
            )
        elif verb == "force":
            self.engine.decide([ChargeSet((charge.of_kind(ChargeKind.FORCE),))])
            self.twin.force(now_us, cost)
        elif verb == "reserve":
            self.names += 1
            token = f"{self.key}:{self.names}"
            (answer,) = self.engine.decide([ChargeSet((charge,), reserve_us=DAY_US, token=token)])
            taken = self.twin.take(now_us, cost)
            assert bool(answer) == (taken is not None)
            if taken is not None:
                self.open.append((token, taken))
        elif self.open:
            token, taken = self.open.pop(which % len(self.open))
            assert self.engine.settle(token, cost)
            self.twin.settle(taken, now_us, cost)
        self.compare(now_us)

    def compare(self, now_us: int) -> None:
        """All that can be seen of a bucket."""
        answer = self.engine.usage(self.key, self.limit).answer
        assert answer[1] == self.twin.left(now_us)
        assert answer[3] == ceil(self.twin.debt(now_us))


buckets = st.builds(
    TokenBucket,
    st.integers(1, 20),
    st.sampled_from([1_000, 1_009, 777_777, SECOND_US, 60 * SECOND_US]),
    st.integers(0, 30),
)
adaptives = buckets.map(lambda one: Adaptive(one.limit, one.window_us, one.burst, TokenBucket.name))
steps = st.lists(
    st.tuples(
        st.sampled_from(["hit", "reserve", "reserve", "settle", "settle", "force"]),
        st.sampled_from([0, 0, 0, 1, 5]) | st.integers(0, 300_000),
        st.integers(0, 12),
        st.integers(0, 9),
    ),
    max_size=40,
)


def play(engine: Engine, clock: ManualClock, limit: Any, program: list[Step], key: str) -> None:
    played = Played(engine, clock, limit, key)
    for step in program:
        played.play(step)
    while played.open:
        played.play(("settle", 0, 0, len(played.open) - 1))


TEN_A_SECOND = TokenBucket(10, 10 * SECOND_US)
COUNTEREXAMPLE: list[Step] = [
    ("reserve", 0, 10, 0),
    ("hit", 5 * SECOND_US, 5, 0),
    ("settle", 0, 0, 0),
    ("hit", 0, 10, 0),
]
"""What has flowed back by itself is not given back once more: 15 of 10 in five seconds would pass."""
BACKWARDS: list[Step] = [("reserve", 0, 1, 0)] * 10 + [("settle", 0, 0, 9)] * 10


@examples(3)
@example(limit=TEN_A_SECOND, program=COUNTEREXAMPLE)
@example(limit=TEN_A_SECOND, program=BACKWARDS)
@given(limit=buckets, program=steps)
def test_refunds_in_memory_equal_a_replay_with_the_real_costs(
    limit: TokenBucket, program: list[Step]
) -> None:
    clock = ManualClock()
    play(MemoryEngine(clock=clock), clock, limit, program, "key")


@given(limit=buckets, program=steps)
def test_refunds_of_a_shared_state_equal_a_replay_with_the_real_costs(
    limit: TokenBucket, program: list[Step]
) -> None:
    """Memory is full, so the key lives in a state that it could share with strangers."""
    clock = ManualClock()
    engine = MemoryEngine(clock=clock, max_keys=1)
    engine.bind(TokenBucket(1, DAY_US * 365))("somebody else", 1)
    play(engine, clock, limit, program, "key")


@given(limit=adaptives, program=steps)
def test_the_bucket_in_adaptive_is_refunded_exactly(limit: Adaptive, program: list[Step]) -> None:
    clock = ManualClock()
    play(MemoryEngine(clock=clock), clock, limit, program, "key")


@pytest.fixture(scope="module")
def redis_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def redis_engine(redis_server: RedisServer, redis_clock: ManualClock) -> Iterator[RedisEngine]:
    engine = RedisEngine(f"{redis_server.url}?deadline=10", clock=redis_clock)
    yield engine
    engine.close()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(limit=TEN_A_SECOND, program=COUNTEREXAMPLE, seed=1)
@example(limit=TEN_A_SECOND, program=BACKWARDS, seed=2)
@given(limit=buckets | adaptives, program=steps, seed=st.integers(10, 2**60))
def test_refunds_in_redis_equal_a_replay_with_the_real_costs(
    redis_engine: RedisEngine,
    redis_clock: ManualClock,
    limit: Any,
    program: list[Step],
    seed: int,
) -> None:
    redis_engine.reset(f"{seed}", limit)
    play(redis_engine, redis_clock, limit, program, f"{seed}")


@given(
    order=st.permutations(range(12)),
    actual=st.lists(st.integers(0, 900), min_size=12, max_size=12),
)
def test_everything_comes_back_in_any_order_while_no_time_passes(
    order: list[int], actual: list[int]
) -> None:
    engine = MemoryEngine(clock=ManualClock())
    limit = TokenBucket(12_000, 60 * SECOND_US)
    for number in range(12):
        charge = Charge("key", limit, 900)
        assert engine.decide([ChargeSet((charge,), reserve_us=DAY_US, token=f"{number}")])[0]
    for number in order:
        assert engine.settle(f"{number}", actual[number])
    assert engine.usage("key", limit).used == sum(actual)
