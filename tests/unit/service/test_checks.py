"""Checks: what a check names, what people have set, and what is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, FixedWindow, MemoryEngine, UsageError
from headgate.decision import Decision
from headgate.service import checks
from headgate.service.checks import Checks, usage_problem
from headgate.service.node import NoBoard, Node
from headgate.service.problems import ProblemError
from headgate.service.settings import Settings
from headgate.service.wire import Acquire, Check, Settle
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate.algorithms import Limit

SECOND_US = 1_000_000


class World:
    """A node in memory, with clocks that stand still: its own, and that of the board."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.shared_clock = ManualClock()
        self.board = NoBoard(self.shared_clock)
        limiter = AsyncLimiter(MemoryEngine(clock=self.clock))
        self.node = Node(settings=Settings(**settings), limiter=limiter, board=self.board)
        self.checks = Checks(self.node)

    def take(self, key: str = "k", **fields: Any) -> Decision:
        found = self.checks.take(Check(key, **fields))
        assert isinstance(found, Decision)
        return found

    def set(
        self, *, limits: dict[str, Limit] | None = None, bans: dict[str, Any] | None = None
    ) -> None:
        view: Any = SimpleNamespace(limits=limits or {}, bans=bans or {})
        self.board.view = view


def test_what_is_left_out_is_as_the_settings_say() -> None:
    world = World(default_limit=7, default_window=30, default_algorithm="fixed_window")
    decision = world.take()
    assert (decision.limit, decision.window, decision.algorithm) == (7, 30.0, "fixed_window")
    assert world.take(limit=9).window == 30.0
    assert world.take(window=0.5).window == 0.5


def test_a_burst_means_a_bucket() -> None:
    decision = World().take(limit=10, window=1, burst=30)
    assert (decision.algorithm, decision.burst, decision.remaining) == ("token_bucket", 30, 29)


def test_a_limit_for_one_key_takes_the_place_of_what_a_check_names() -> None:
    world = World()
    world.set(limits={"vip": FixedWindow(1_000, 60 * SECOND_US)})
    assert (world.take("vip", limit=3).limit, world.take("k", limit=3).limit) == (1_000, 3)


def test_a_banned_key_is_denied_until_the_ban_ends_and_takes_nothing() -> None:
    world = World()
    until_us = world.clock.now_us() + 10 * SECOND_US
    world.set(bans={"k": SimpleNamespace(until_us=until_us, reason="abuse")})
    denied = world.take()
    assert (denied.allowed, denied.source, denied.retry_after) == (False, "ban", 10.0)
    assert world.checks.reason(denied) == "abuse"
    world.clock.advance(3_600)  # It is the shared clock that counts, however wrong our own is.
    assert world.take().retry_after == 10.0
    world.shared_clock.advance(10)
    assert world.take().remaining == 99


def test_a_ban_without_end_never_passes() -> None:
    world = World()
    world.set(bans={"k": SimpleNamespace(until_us=None, reason="")})
    assert (world.take().allowed, world.take().never) == (False, True)


def test_callers_cannot_fill_the_memory_with_windows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checks, "MAX_WINDOWS", 3)
    world = World()
    for window in (1, 2, 3):
        assert world.take(window=window).allowed
    for window in (4, 5):
        with pytest.raises(ProblemError) as refused:
            world.take(window=window)
        assert refused.value.pointer == "#/window"
    assert world.take(window=3, limit=5).allowed
    assert caplog.messages == ["checks are refused: callers use 3 different windows"]


def test_windows_that_are_over_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_WINDOWS", 3)
    world = World()
    for round_ in range(3):
        for number in range(3):
            assert world.take(window=1 + 3 * round_ + number).allowed
        world.clock.advance(60)


def test_checks_that_name_no_window_are_taken_however_many_are_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "MAX_WINDOWS", 3)
    world = World()
    for window in (1, 2, 3):
        assert world.take(window=window).allowed
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
    asked = Acquire(**{"key": "k", "limit": 1, **fields})
    with pytest.raises(UsageError) as refused:
        asyncio.run(World().checks.acquire(asked))
    assert usage_problem(refused.value).pointer == pointer


def test_a_problem_that_is_about_no_field_points_nowhere() -> None:
    assert usage_problem(UsageError("there are too many keys already")).pointer is None


def test_settling_blames_the_field_that_was_sent() -> None:
    with pytest.raises(UsageError, match=r"^actual must be between 0 and"):
        asyncio.run(World().checks.settle(Settle("t", -1)))
