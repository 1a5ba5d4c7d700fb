"""The conformance suite: what every engine has to pass.

Subclass it in a test file, say how to make the engine, and pytest does the rest:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def engine(self, clock: ManualClock) -> Iterator[Engine]:
            engine = MyEngine(clock=clock)
            yield engine
            engine.close()

An async engine goes in as `Blocking(engine)`. Needs pytest, which Headgate itself does not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..clock import ManualClock
from ..engines.memory import MemoryEngine
from ..errors import UsageError
from .differential import play_program, random_program
from .story import Story, all_stories, differences, replay, retold

if TYPE_CHECKING:
    from ..engines.base import Engine

START = 1_800_000_000.0
"""A full hour, so that windows of the stories begin with them."""


class EngineConformance:
    """Every algorithm and every operation, with exact answers, on a clock that the test moves."""

    programs = 200
    """How many random programs are compared with the memory engine."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the engine must use."""
        return ManualClock(START)

    @pytest.fixture
    def engine(self, clock: ManualClock) -> Engine:
        """The engine to be tested; override this."""
        raise NotImplementedError("override the fixture `engine`")

    @pytest.mark.parametrize("story", all_stories(), ids=lambda story: story.name)
    def test_it_answers_as_the_stories_tell(
        self, story: Story, engine: Engine, clock: ManualClock
    ) -> None:
        """Each story of `headgate/testing/stories`, word by word."""
        played = replay(story, engine, clock)
        if folder := os.environ.get("HEADGATE_RETELL"):
            Path(folder, f"{story.name}.txt").write_text(retold(played), "utf-8")
        assert differences(played) == ""

    def test_it_answers_as_the_memory_engine_does(self, engine: Engine, clock: ManualClock) -> None:
        """Random requests at random times, also back in time, get equal answers from both."""
        for seed in range(self.programs):
            program = random_program(seed)
            model_clock = ManualClock(clock.now_us() / 1_000_000)
            expected = play_program(program, MemoryEngine(clock=model_clock), model_clock)
            assert play_program(program, engine, clock) == expected, f"seed {seed}"

    @pytest.mark.parametrize(
        "page",
        [
            ("", "", 0),
            ("", "", -1),
            ("", "", 1.0),
            ("", "", True),
            (5, "", 1),
            ("\ud800", "", 1),
            ("", 5, 1),
        ],
        ids=repr,
    )
    def test_it_refuses_to_list_what_is_no_page(self, page: Any, engine: Engine) -> None:
        """A mistake of the caller is told as one."""
        with pytest.raises(UsageError):
            engine.list_keys(*page)

    def test_namespaces_never_meet(self, engine: Engine) -> None:
        """The same key in two namespaces is two keys."""
        from ..algorithms import FixedWindow  # noqa: PLC0415

        limit = FixedWindow(1, 60_000_000)
        one, other = engine.scoped("one").bind(limit), engine.scoped("other").bind(limit)
        assert [bool(one("key", 1)), bool(other("key", 1)), bool(one("key", 1))] == [
            True,
            True,
            False,
        ]

    def test_reservations_of_two_namespaces_never_meet(self, engine: Engine) -> None:
        """A token settles nothing elsewhere, and two may choose the same one."""
        from ..algorithms import FixedWindow  # noqa: PLC0415
        from ..charge import Charge, Request  # noqa: PLC0415

        charge = Charge("key", FixedWindow(9, 60_000_000), 2)
        request = Request((charge,), reserve_us=60_000_000, token="ours")  # noqa: S106
        one, other = engine.scoped("one"), engine.scoped("other")
        ((held,), (theirs,)) = (each.decide([request]) for each in (one, other))
        assert held.token is not None
        assert theirs.token is not None
        assert not engine.settle(held.token, 0)
        assert other.settle(theirs.token, 0)
        assert not other.settle(held.token, 0)
        assert one.settle(held.token, 1)
        (limit,) = charge.limits
        assert [each.usage("key", limit).used for each in (one, other)] == [1, 0]
