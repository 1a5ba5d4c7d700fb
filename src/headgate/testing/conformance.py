"""The conformance suite that every engine has to pass.

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
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from ..algorithms import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from ..algorithms.adaptive import CANDIDATES
from ..charge import Charge, ChargeSet
from ..clock import ManualClock
from ..engines.memory import MemoryEngine
from ..errors import UsageError
from .differential import play_program, random_program
from .story import Story, all_stories, differences, replay, rewritten

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..engines.base import Engine

START = 1_800_000_000.0
"""A full hour, so that the windows of stories start with them."""


SECOND_US: Final = 1_000_000
STEP_US: Final = 60_000
"""How far callers move the clock on after each call."""
TEN_A_SECOND: Final[list[Limit]] = [
    FixedWindow(10, SECOND_US),
    SlidingWindow(10, SECOND_US),
    SlidingLog(10, SECOND_US),
    TokenBucket(10, SECOND_US),
    ExponentialBackoff(10, SECOND_US, denials_per_level=1_000_000),
    *(Adaptive(10, SECOND_US, chosen=one) for one in CANDIDATES),
    Concurrency(10, SECOND_US),
]


def _named(limit: Limit) -> str:
    return f"{limit.name} {getattr(limit, 'chosen', '')}".strip()


def _most(limit: Limit, from_us: int, to_us: int) -> int:
    """What ten a second give between two moments to a key that was never used."""
    chosen = limit.chosen if isinstance(limit, Adaptive) else limit.name
    if chosen == TokenBucket.name:
        return 10 + 10 * (to_us - from_us) // SECOND_US
    if chosen in {SlidingLog.name, Concurrency.name}:
        return 10 + 10 * ((to_us - from_us) // SECOND_US)
    return 10 + 10 * (to_us // SECOND_US - from_us // SECOND_US)


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
            Path(folder, f"{story.name}.txt").write_text(rewritten(played), "utf-8")
        assert differences(played) == ""

    def test_it_answers_as_the_memory_engine_does(self, engine: Engine, clock: ManualClock) -> None:
        """Random requests at random times, also back in time, get equal answers from both."""
        for seed in range(self.programs):
            program = random_program(seed)
            model_clock = ManualClock(clock.now_us() / 1_000_000)
            expected = play_program(program, MemoryEngine(clock=model_clock), model_clock)
            assert play_program(program, engine, clock) == expected, f"seed {seed}"

    @pytest.mark.parametrize("flip_us", [1, 2_000, 90_000, 999_999])
    @pytest.mark.parametrize("limit", TEN_A_SECOND, ids=_named)
    def test_a_clock_that_flips_over_a_boundary_gives_what_it_gives_once(
        self, limit: Limit, flip_us: int, engine: Engine, clock: ManualClock
    ) -> None:
        """The clock steps back and forth ten times, and everything available is taken at each end."""
        boundary_us = clock.now_us()
        ends_us = [boundary_us - flip_us, *10 * [boundary_us, boundary_us - flip_us]]
        hit = engine.bind(limit)
        given = 0
        for now_us in ends_us:
            clock.advance(us=now_us - clock.now_us())
            while hit("key", 1):
                given += 1
        assert given == _most(limit, boundary_us - flip_us, boundary_us) - self._fading(limit)
        for _ in range(10):  # And in one request of several charges, which takes another code path.
            clock.advance(us=flip_us)
            charges = (Charge("other", limit, 0), Charge("key", limit))
            assert not engine.decide([ChargeSet(charges)])[0]
            clock.advance(us=-flip_us)
            assert not engine.decide([ChargeSet(charges)])[0]

    @staticmethod
    def _fading(limit: Limit) -> int:
        """At the very start of a window the previous one still counts in full."""
        chosen = limit.chosen if isinstance(limit, Adaptive) else limit.name
        return 10 if chosen == SlidingWindow.name else 0

    @pytest.mark.parametrize("limit", TEN_A_SECOND, ids=_named)
    def test_concurrent_callers_are_given_no_more_than_one(
        self, limit: Limit, engine: Engine, clock: ManualClock
    ) -> None:
        """While the clock moves over the ends of windows, and shows some of them a time that is over by then.

        They start each round together, so that a caller who was shown a time and then had to wait is behind the others
        by less than the window. Behind by more than that is a clock that was set back, which may give more.
        """
        from_us = clock.now_us()
        hit = engine.bind(limit)
        callers, rounds, turns = 4, 10, 3
        together = threading.Barrier(callers, timeout=60)
        assert callers * turns * STEP_US < SECOND_US

        def call(number: int) -> int:
            given = 0
            try:
                for _ in range(rounds):
                    together.wait()
                    for turn in range(turns):
                        given += bool(hit("key", 1))
                        clock.advance(us=-2_000 if turn == number % turns else STEP_US)
            except BaseException:
                together.abort()
                raise
            return given

        with ThreadPoolExecutor(callers) as pool:
            given = sum(pool.map(call, range(callers)))
        to_us = from_us + callers * rounds * (turns - 1) * STEP_US
        assert clock.now_us() <= to_us
        assert 10 <= given <= _most(limit, from_us, to_us)

    @pytest.mark.parametrize("limit", TEN_A_SECOND, ids=_named)
    def test_a_refund_after_a_long_step_back_gives_at_most_what_was_reserved(
        self, limit: Limit, engine: Engine, clock: ManualClock
    ) -> None:
        """A clock that steps back by more than a window passes the same window twice.

        What was reserved on the first pass may be given back into the second one, once.
        """
        request = ChargeSet((Charge("key", limit, 10),), reserve_us=60 * SECOND_US)
        (reserved,) = engine.decide([request])
        assert reserved.token is not None
        hit = engine.bind(limit)

        def take_all() -> int:
            given = 0
            while hit("key", 1):
                given += 1
            return given

        clock.advance(us=-3 * SECOND_US)
        assert take_all() == 0
        clock.advance(us=3 * SECOND_US)
        assert take_all() == 10
        engine.settle(reserved.token, 0)
        assert take_all() <= 10
        assert not engine.settle(reserved.token, 0)
        assert take_all() == 0

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
        """A mistake of the caller raises `UsageError`."""
        with pytest.raises(UsageError):
            engine.list_keys(*page)

    def test_namespaces_never_meet(self, engine: Engine) -> None:
        """The same key in two namespaces counts as two keys."""
        limit = FixedWindow(1, 60_000_000)
        one, other = engine.scoped("one").bind(limit), engine.scoped("other").bind(limit)
        assert [bool(one("key", 1)), bool(other("key", 1)), bool(one("key", 1))] == [
            True,
            True,
            False,
        ]

    def test_reservations_of_two_namespaces_never_meet(self, engine: Engine) -> None:
        """A token settles nothing in another namespace, and both may use the same one."""
        charge = Charge("key", FixedWindow(9, 60_000_000), 2)
        request = ChargeSet((charge,), reserve_us=60_000_000, token="ours")  # noqa: S106
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
