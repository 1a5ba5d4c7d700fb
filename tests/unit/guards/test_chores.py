"""Chores of async guards run in whatever event loop there is, and do not depend on one that was left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headgate.guards.base import Guard
from headgate.guards.chores import ChoreTimer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.engines.verbs import Verb
    from headgate.guards.base import Chore


class Engine:
    """Counts its calls, which take as long as the turns of a loop that they are given."""

    def __init__(self) -> None:
        self.calls = 0
        self.turns = 1_000

    async def call(self) -> None:
        self.calls += 1
        for _ in range(self.turns):
            await asyncio.sleep(0)


class Busy(Guard):
    """Always has something to do."""

    def chore_pause(self) -> float | None:
        return 0

    def chores(self) -> list[Chore]:
        return [_chore]


def _chore(engine: Any) -> Verb[None]:
    yield engine.call()


async def use(timer: ChoreTimer) -> None:
    """Let chores run for some turns of the loop."""
    timer.start()
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    made = [asyncio.new_event_loop() for _ in range(2)]
    yield made
    for loop in made:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_loop_that_was_left_in_the_middle_of_a_chore_does_not_keep_the_next_one_from_any(
    loops: list[asyncio.AbstractEventLoop],
) -> None:
    engine = Engine()
    timer = ChoreTimer(engine, Busy())

    loops[0].run_until_complete(use(timer))
    assert engine.calls == 1  # And it is still under way.
    engine.turns = 0
    loops[1].run_until_complete(use(timer))
    assert engine.calls > 1


def test_closing_does_not_wait_for_chores_of_a_loop_that_was_left(
    loops: list[asyncio.AbstractEventLoop],
) -> None:
    engine = Engine()
    timer = ChoreTimer(engine, Busy())

    async def finish() -> None:
        timer.start()
        async with asyncio.timeout(10):
            await timer.finish()

    loops[0].run_until_complete(use(timer))
    loops[1].run_until_complete(finish())
    assert engine.calls == 1
