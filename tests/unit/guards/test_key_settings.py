"""What people have set for single keys holds for every kind of question, blocking and awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headgate import (
    AsyncLimiter,
    Concurrency,
    FixedWindow,
    Limiter,
    MemoryEngine,
    RateLimitExceeded,
    SlidingLog,
    TokenBucket,
    UsageError,
)
from headgate.board import Ban, BoardView
from headgate.charge import Charge, ChargeSet, ReadyCharge
from headgate.charge_kind import ChargeKind
from headgate.engines.base import Awaited
from headgate.guards.key_settings import KeySettingsGuard
from headgate.guards.shell import AsyncGuardedEngine, GuardedEngine
from headgate.testing import Blocking, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine

MINUTE_US = 60_000_000
LIMIT = FixedWindow(5, MINUTE_US)
OWN = FixedWindow(1, MINUTE_US)
HOLDER = "holder"


class FakeBoard:
    """A board whose view a test sets."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.view = BoardView()

    def now_us(self) -> int:
        return self.clock.now_us()


@pytest.fixture
def board() -> FakeBoard:
    return FakeBoard(ManualClock(1_800_000_000.0))


@pytest.fixture(params=["sync", "async"])
def engine(request: pytest.FixtureRequest, board: FakeBoard) -> Iterator[Engine]:
    memory, guard = MemoryEngine(clock=board.clock), KeySettingsGuard(lambda: board)
    if request.param == "sync":
        yield GuardedEngine(memory, guard)
        return
    blocking = Blocking(AsyncGuardedEngine(Awaited(memory), guard))
    yield blocking
    blocking.close()


def asked(key: str = "k", rule: str | None = None, **fields: Any) -> ChargeSet:
    return ChargeSet((Charge(key, LIMIT, rule=rule),), **fields)


def test_a_banned_key_is_denied_for_every_limit(engine: Engine, board: FakeBoard) -> None:
    hit = engine.bind(LIMIT)
    board.view = BoardView(bans={"k": Ban(key="k", reason="scraping")})
    slot = ChargeSet((Charge("k", Concurrency(3, MINUTE_US)),), token=HOLDER)
    several = ChargeSet((Charge("other", LIMIT), Charge("k", LIMIT, rule="r")))
    decisions = [
        hit("k", 1),
        engine.bind(LIMIT, "rule")("k", 1),
        *engine.decide([asked(), asked(reserve_us=MINUTE_US), several, slot]),
    ]
    for decision in decisions:
        assert (decision.allowed, decision.never, decision.source) == (False, True, "ban")
        assert decision.context.reason == "scraping"
    assert hit("other", 1).remaining == 4  # Nothing was taken of what was asked beside it.
    assert engine.usage("k", LIMIT).used == 0


def test_a_ban_ends_by_the_boards_clock(engine: Engine, board: FakeBoard) -> None:
    hit = engine.bind(LIMIT)
    board.view = BoardView(bans={"k": Ban(key="k", until_us=board.now_us() + MINUTE_US)})
    assert hit("k", 1).retry_after_us == MINUTE_US
    board.clock.advance(us=MINUTE_US)
    assert hit("k", 1)
    board.view = BoardView()
    assert hit("k", 1)


def test_peeks_and_shadows_are_not_banned(engine: Engine, board: FakeBoard) -> None:
    board.view = BoardView(bans={"k": Ban(key="k")})
    for kind in (ChargeKind.PEEK, ChargeKind.SHADOW):
        (decision,) = engine.decide([ChargeSet((Charge("k", LIMIT, kind=kind),))])
        assert decision.answer[0]
        assert decision.source != "ban"


def test_a_keys_own_limit_replaces_the_requested_one(engine: Engine, board: FakeBoard) -> None:
    hit = engine.bind(LIMIT)
    board.view = BoardView(limits={"k": OWN})
    assert [(one.allowed, one.limited_by) for one in (hit("k", 1), hit("k", 1))] == [
        (True, OWN),
        (False, OWN),
    ]
    (reserved, peeked) = engine.decide(
        [asked(reserve_us=MINUTE_US), ChargeSet((Charge("k", LIMIT, kind=ChargeKind.PEEK),))]
    )
    assert (reserved.limited_by, peeked.limited_by) == (OWN, OWN)
    assert hit("other", 1).limited_by == LIMIT


def test_rules_and_slots_keep_their_limits(engine: Engine, board: FakeBoard) -> None:
    board.view = BoardView(limits={"k": OWN})
    slots = Concurrency(3, MINUTE_US)
    (ruled, held) = engine.decide(
        [
            ChargeSet((Charge("k", LIMIT, rule="r"), Charge("x", LIMIT, rule="r"))),
            ChargeSet((Charge("k", slots),), token=HOLDER),
        ]
    )
    assert {one.limited_by for one in ruled.rules} == {LIMIT}
    assert held.limited_by == slots
    assert engine.bind(LIMIT, "r")("k", 1).limited_by == LIMIT


def test_an_override_that_names_a_rule_replaces_all_limits_of_that_rule_and_no_others(
    engine: Engine, board: FakeBoard
) -> None:
    board.view = BoardView(rule_limits={"r": {"k": OWN}})
    hit = engine.bind(LIMIT, "r")
    assert [hit("k", 1).allowed for _ in range(2)] == [True, False]
    limits = (LIMIT, FixedWindow(9, 1_000_000))
    several = ReadyCharge("k", limits, 1, ChargeKind.TAKE, "r")
    ruled, checked, other_rule, other_key = engine.decide(
        [
            ChargeSet((several,)),
            asked(),
            asked(rule="other"),
            asked("other", rule="r"),
        ]
    )
    assert (ruled.allowed, ruled.limited_by) == (False, OWN)
    assert {one.limited_by for one in (checked, other_rule, other_key)} == {LIMIT}
    slots = Concurrency(3, MINUTE_US)
    (held,) = engine.decide([ChargeSet((Charge("k", slots, rule="r"),), token=HOLDER)])
    assert held.limited_by == slots


def test_runs_of_a_rule_pass_by_what_is_set_for_other_rules(board: FakeBoard) -> None:
    engine = GuardedEngine(MemoryEngine(clock=board.clock), KeySettingsGuard(lambda: board))
    board.view = BoardView(rule_limits={"r": {"k": OWN}}, limits={"a": OWN})
    of_rule, of_other = engine.bind_run(LIMIT, "r"), engine.bind_run(LIMIT, "other")
    assert of_rule is not None
    assert of_other is not None
    assert of_rule(["a", "k"], 1) is None
    assert of_other(["a", "k"], 1) is not None


def test_an_invalid_key_is_refused_even_with_settings(engine: Engine, board: FakeBoard) -> None:
    board.view = BoardView(limits={"k": OWN})
    for key in ("", 5, ["k"]):
        with pytest.raises(UsageError, match="key"):
            engine.bind(LIMIT)(key, 1)  # type: ignore[arg-type]


def test_runs_are_taken_in_one_go_unless_something_is_set_for_one_of_the_keys(
    board: FakeBoard,
) -> None:
    engine = GuardedEngine(MemoryEngine(clock=board.clock), KeySettingsGuard(lambda: board))
    hit_run = engine.bind_run(LIMIT)
    assert hit_run is not None
    board.view = BoardView(bans={"c": Ban(key="c")}, limits={"d": OWN})
    run = hit_run(["a", "b"], 1)
    assert run is not None
    assert [one.remaining for one in run.decisions()] == [4, 4]
    assert [hit_run(keys, 1) for keys in (["a", "c"], ["d", "b"])] == [None, None]
    assert engine.usage("a", LIMIT).used == 1  # Nothing was taken by those.


@pytest.mark.parametrize("blocking", [False, True])
def test_a_keys_own_limit_is_charged_once_in_the_place_of_several(
    board: FakeBoard,
    blocking: bool,  # noqa: FBT001
) -> None:
    board.view = BoardView(limits={"k": FixedWindow(4, MINUTE_US)})
    engine = MemoryEngine(clock=board.clock)
    engine.blocking = blocking
    limiter = Limiter(engine, guards=[KeySettingsGuard(lambda: board)])
    limit = limiter.limit("k", "100/second;100/hour", mode="immediate")
    for left in (3, 2, 1, 0):
        assert limit.acquire().remaining == left
    with pytest.raises(RateLimitExceeded):
        limit.acquire()


def test_callers_wait_for_a_keys_own_limit_whatever_they_have_asked_for(board: FakeBoard) -> None:
    bucket, began_us = TokenBucket(5, MINUTE_US), board.clock.now_us()
    board.view = BoardView(limits={"k": SlidingLog(1, MINUTE_US)})
    limiter = Limiter(clock=board.clock, guards=[KeySettingsGuard(lambda: board)])
    limit = limiter.limit("k", bucket)
    limit.acquire()
    with pytest.raises(RateLimitExceeded):
        limit.acquire(timeout=59)
    assert limit.acquire(timeout=60).allowed
    assert board.clock.now_us() - began_us == MINUTE_US


def test_limiters_take_guards(board: FakeBoard) -> None:
    """In every namespace, and without awaiting where the engine needs none."""
    board.view = BoardView(bans={"k": Ban(key="k")})
    guards = [KeySettingsGuard(lambda: board)]
    for namespace in ("", "other"):
        limiter = Limiter(namespace=namespace, guards=guards)
        assert limiter.hit("k", "5/minute").source == "ban"
        assert limiter.limit("k", "5/minute").hit().source == "ban"
        assert limiter.hit("other", "5/minute")

    async def main() -> str:
        async with AsyncLimiter(guards=guards) as limiter:
            assert limiter.engine.nowait is not None
            return (await limiter.hit("k", "5/minute")).source

    assert asyncio.run(main()) == "ban"
