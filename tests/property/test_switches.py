"""A switch of the algorithm hands out nothing: random switches on real engines, judged by what was admitted.

Whoever decides keeps its own bound over everything that was admitted, by whomever. From that follows what `adaptive`
promises whatever is chosen when: in any span of a window's length at most twice the limit and the burst together.
"""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import HealthCheck, given, settings, strategies as st

from headgate import Limiter
from headgate.adaptive.guard import ChoosingGuard
from headgate.algorithms import Adaptive, TokenBucket
from headgate.algorithms.adaptive import CANDIDATES
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.property.strategies import examples
from tests.property.test_bounds import Use, intervals, per_window

if TYPE_CHECKING:
    from headgate import Engine
    from headgate.guards.base import Guard
    from tests.servers.redis import RedisServer

WINDOW_US = 60_000_000
keys = count()


class Step(NamedTuple):
    """After `move_us`, whoever is chosen is asked for `cost`, `many` times."""

    move_us: int
    chosen: int
    cost: int
    many: int


moves = st.one_of(
    st.just(0),
    st.integers(1, WINDOW_US // 4),
    st.sampled_from([WINDOW_US // 10, WINDOW_US // 2, WINDOW_US - 1, WINDOW_US, WINDOW_US + 1]),
)
programs = st.lists(
    st.builds(Step, moves, st.integers(0, 2), st.integers(1, 3), st.integers(1, 12)), max_size=25
)
limits = st.builds(Adaptive, st.integers(1, 10), st.just(WINDOW_US), st.integers(0, 15))


class Switched:
    """Chooses what the program says: a limiter asks it as it would ask the traffic."""

    index = 0

    def guards(self) -> list[Guard]:
        return [ChoosingGuard(self)]

    def chosen(self, _limit: Adaptive, _rule: str | None) -> Switched:
        return self


def play(
    engine: str | Engine, clock: ManualClock, limit: Adaptive, program: list[Step]
) -> list[Use]:
    """Hold every admission to the bound of who decided it, and every answer to the arithmetic."""
    choices = Switched()
    own = clock if isinstance(engine, str) else None
    limiter = Limiter(engine, clock=own, adaptive=choices)
    key, state, uses = f"key {next(keys)}", None, list[Use]()
    variants = [Adaptive(limit.limit, limit.window_us, limit.burst, one) for one in CANDIDATES]
    for step in program:
        clock.advance(us=step.move_us)
        variant = variants[step.chosen]
        choices.index = step.chosen
        for _ in range(step.many):
            now_us = clock.now_us()
            state, answer = variant.take(state, now_us, step.cost)
            decision = limiter.hit(key, limit, step.cost)
            assert (decision.allowed, decision.remaining) == (answer[0], answer[1])
            assert decision.algorithm == variant.chosen
            if decision.allowed:
                uses.append(Use(now_us, step.cost))
                hold_to_own_bound(variant, uses)
    return uses


def hold_to_own_bound(decided: Adaptive, uses: list[Use]) -> None:
    if decided.chosen == TokenBucket.name:
        rate = Fraction(decided.limit, decided.window_us)
        last_us = uses[-1].at_us
        total: Any = 0
        for use in reversed(uses):
            total += use.cost
            assert total <= decided.burst + rate * (last_us - use.at_us)
    else:
        assert per_window(uses, decided.window_us)[-1] <= decided.limit


def hold_to_promise(limit: Adaptive, uses: list[Use]) -> None:
    for begin_us, end_us, used in intervals(uses):
        if end_us - begin_us < limit.window_us:
            assert used <= 2 * limit.limit + limit.burst


@examples(0.5)
@given(limit=limits, program=programs)
def test_random_switches_in_memory_stay_within_the_bound(
    limit: Adaptive, program: list[Step]
) -> None:
    clock = ManualClock()
    hold_to_promise(limit, play("memory://", clock, limit, program))


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=limits, program=programs)
def test_random_switches_on_redis_stay_within_the_bound(
    redis_server: RedisServer, limit: Adaptive, program: list[Step]
) -> None:
    clock = ManualClock()
    with closing(RedisEngine(redis_server.url, clock=clock)) as engine:
        hold_to_promise(limit, play(engine, clock, limit, program))


def test_the_worst_that_switches_can_do_is_what_is_promised() -> None:
    """A bucket that is full and refills, and then a backoff whose window has just begun (windows are aligned)."""
    clock, limit = ManualClock(), Adaptive(10, WINDOW_US)
    bucket, backoff = 1, 2
    program = [Step(1_000, bucket, 1, 10)]
    program += [Step(WINDOW_US // 10, bucket, 1, 1)] * 9
    program += [Step(WINDOW_US // 10 - 1_000, backoff, 1, 20)]
    uses = play("memory://", clock, limit, program)
    assert max(used for begin, end, used in intervals(uses) if end - begin < WINDOW_US) == 29
    hold_to_promise(limit, uses)


def test_a_key_at_its_limit_gets_nothing_by_switching_back_and_forth() -> None:
    clock, limit = ManualClock(), Adaptive(10, WINDOW_US)
    program = [Step(0, 0, 1, 10), *(Step(0, chosen % 3, 1, 3) for chosen in range(30))]
    assert sum(use.cost for use in play("memory://", clock, limit, program)) == 10
