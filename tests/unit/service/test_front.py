"""The front: what a check names, what people have set, and what is refused."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import pytest

from headgate import EngineBusy, EngineError, FixedWindow, MemoryEngine, UsageError
from headgate.board import Ban, BoardView
from headgate.decision import Decision
from headgate.service.front import Check, Front, Pending
from headgate.service.http.problems import usage_problem
from headgate.service.node import Node
from headgate.service.settings import Settings
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate.algorithms import Limit

SECOND_US = 1_000_000


class World:
    """A node in memory, with clocks that stand still: its own, and that of the board."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.shared_clock = ManualClock()
        engine = MemoryEngine(clock=self.clock)
        self.node = Node(Settings(**settings), engine=engine, clock=self.shared_clock)
        self.front = Front(self.node)

    def take(self, key: str = "k", **fields: Any) -> Decision:
        found = self.front.check(Check(key, **fields), perf_counter_ns())
        assert isinstance(found, Decision)
        return found

    def set(
        self, *, limits: dict[str, Limit] | None = None, bans: dict[str, Ban] | None = None
    ) -> None:
        self.node.board.view = BoardView(limits=limits or {}, bans=bans or {})


def test_missing_fields_are_taken_from_the_settings() -> None:
    world = World(default_limit=7, default_window=30, default_algorithm="fixed_window")
    decision = world.take()
    assert (decision.limit, decision.window, decision.algorithm) == (7, 30.0, "fixed_window")
    assert world.take(limit=9).window == 30.0
    assert world.take(window=0.5).window == 0.5


def test_a_burst_means_a_bucket() -> None:
    decision = World().take(limit=10, window=1, burst=30)
    assert (decision.algorithm, decision.burst, decision.remaining) == ("token_bucket", 30, 29)


def test_a_per_key_limit_replaces_the_one_a_check_names() -> None:
    world = World()
    world.set(limits={"vip": FixedWindow(1_000, 60 * SECOND_US)})
    assert (world.take("vip", limit=3).limit, world.take("k", limit=3).limit) == (1_000, 3)


def test_a_banned_key_is_denied_until_the_ban_ends_and_takes_nothing() -> None:
    world = World()
    until_us = world.clock.now_us() + 10 * SECOND_US
    world.set(bans={"k": Ban(key="k", until_us=until_us, reason="abuse")})
    denied = world.take()
    assert (denied.allowed, denied.source, denied.retry_after) == (False, "ban", 10.0)
    assert denied.reason == "abuse"
    world.clock.advance(3_600)  # It is the shared clock that counts, however wrong our own is.
    assert world.take().retry_after == 10.0
    world.shared_clock.advance(10)
    assert world.take().remaining == 99


def test_what_is_known_at_once_is_answered_at_once_also_by_an_engine_that_does_io(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by the fallback, when too many requests wait for the store."""
    world = World()
    known = world.take()

    async def asked(outcome: Decision | EngineError) -> Decision | Pending[Decision]:
        future = asyncio.get_running_loop().create_future()
        if isinstance(outcome, Decision):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
        monkeypatch.setattr(world.front, "_taken", lambda _: future)
        return world.front.check(Check("k"), perf_counter_ns())

    assert asyncio.run(asked(known)) is known
    with pytest.raises(EngineBusy):
        asyncio.run(asked(EngineBusy("10 requests already wait", transient=True)))
    assert world.node.recorder.failures == {"not_charged": 1}


def test_a_ban_without_end_never_passes() -> None:
    world = World()
    world.set(bans={"k": Ban(key="k")})
    assert (world.take().allowed, world.take().never) == (False, True)


def test_no_number_of_windows_makes_the_service_refuse_another() -> None:
    """Half a megabyte of checks used to be enough, until the service was restarted."""
    world = World()
    for number in range(12_000):
        assert world.take(window=31_000_000 + number).allowed
    assert world.take(window=5).allowed
    assert world.take().allowed


@pytest.mark.parametrize(
    "fields, pointer",
    [
        ({"cost": -1}, "#/cost"),
        ({"limit": -1}, "#/limit"),
        ({"window": 1e-9}, "#/window"),
        ({"window": 1e300}, "#/window"),
        ({"algorithm": "fixed_window", "burst": 5}, "#/burst"),
        ({"limit": 1, "burst": 2**53 - 1}, "#/burst"),
        ({"limit": 2**40, "window": 1, "algorithm": "token_bucket"}, "#/limit"),
    ],
)
def test_a_problem_points_to_the_field_that_is_wrong(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(UsageError) as refused:
        World().take(**fields)
    assert usage_problem(refused.value).pointer == pointer


@pytest.mark.parametrize(
    "fields, pointer",
    [
        ({"key": ""}, "#/key"),
        ({"cost": 0}, "#/cost"),
        ({"limit": -1}, "#/limit"),
        ({"ttl": 0.0}, "#/ttl"),
        ({"token": "é"}, "#/token"),
    ],
)
def test_a_problem_with_a_slot_points_to_the_field_that_is_wrong(
    fields: dict[str, Any], pointer: str
) -> None:
    asked = {"key": "k", "limit": 1, **fields}
    with pytest.raises(UsageError) as refused:
        asyncio.run(World().front.acquire(began_ns=perf_counter_ns(), **asked))
    assert usage_problem(refused.value).pointer == pointer


def test_a_problem_that_is_about_no_field_points_nowhere() -> None:
    assert usage_problem(UsageError("there are too many keys already")).pointer is None


def test_settling_blames_the_field_that_was_sent() -> None:
    with pytest.raises(UsageError, match=r"^actual must be between 0 and"):
        asyncio.run(World().front.settle("t", -1))
