"""A shard that is written to a journal and read back by another owner, after every step or now and then, answers as if
it never moved."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow, MemoryEngine
from headgate.engines.etcd.entries import read_journal, unpacked
from headgate.engines.etcd.journal import Journal
from headgate.engines.etcd.records import Tenure
from headgate.engines.etcd.shard import Rows, Shard
from headgate.testing import ManualClock
from headgate.testing.conformance import EngineConformance
from headgate.testing.differential import play_program, random_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from headgate import Limit
    from headgate.clock import Clock
    from headgate.decision import Decision
    from headgate.engines.base import Hit
    from headgate.engines.etcd.marks import MarkedStore, Marks

SECRET = bytes(16)
START = 1_700_000_000
HOUR_US = 3_600_000_000
PROGRAMS = 50
ME = Tenure("node", 1)


class MovingShard:
    """One shard that changes hands after every call, or after so many, by way of its journal alone.

    What is idle leaves its memory after each call, as it does after a second in a node.
    """

    blocking = False

    def __init__(self, clock: Clock, most_rows: int, every: int = 1) -> None:
        self.clock = clock
        self._every, self._calls = every, 0
        self._forms: dict[tuple[str, str | None, Limit], int] = {}
        self.namespace = ""
        self.most_rows = most_rows
        self.entries: dict[int, bytes] = {}
        self.journal = Journal()
        self.shard = self._new()
        self.turn = threading.Lock()

    def _new(self) -> Shard:
        return Shard(0, ME.epoch, self.clock, SECRET, 10_000, 10_000_000)

    def hit(self, namespace: str, limit: Limit, rule: str | None) -> Hit:
        """A function that takes units, the same for as long as the shard stays."""
        form = self._forms.setdefault((namespace, rule, limit), len(self._forms))
        take, _ = self.shard.bound(form, namespace, limit, rule)
        return take

    def move(self) -> None:
        """Commit, and load what was committed into a new shard, if it is time."""
        self._commit()
        self._calls += 1
        if self._calls % self._every == 0:
            self._load()
        else:
            self.shard.store.sweep(self.clock.now_us(), 64)

    def _commit(self) -> None:
        self.shard.serving = True
        tidy = self.journal.rows > self.most_rows
        for entry in self.journal.pack([self.shard], self.clock.now_us(), tidy=tidy):
            self.entries[entry.sequence] = entry.value
            for number in range(entry.done, entry.base):
                self.entries.pop(number, None)
        self.shard.landed()

    def _load(self) -> None:
        bodies = [(number, unpacked(value)) for number, value in self.entries.items()]
        loaded = self._new()
        for rows in read_journal(ME.incarnation, bodies).rows.get((0, ME), ()):
            loaded.restore(rows)
        loaded.take_off()
        loaded.landed()
        # The journal goes on for the next owner: what it knows of places is about the same ones.
        for _, _, unchecked in self.journal._entries:
            for at, (_, marks, places) in enumerate(unchecked):
                unchecked[at] = Rows(loaded, _marks_like(marks, loaded.store), places)
        self.shard = loaded


def _marks_like(marks: Marks, store: MarkedStore) -> Marks:
    """The marks of the same table, or of the reservations, in another store; their places are as well written."""
    own = store.reservations.marks if marks.name is None else store.marks_of(marks.name)
    own.written = marks.written
    return own


class MovingEngine:
    """The engine of such a shard."""

    blocking = False

    def __init__(self, moving: MovingShard, namespace: str = "") -> None:
        self._moving = moving
        self._namespace = namespace
        self.clock = moving.clock

    def scoped(self, namespace: str) -> Self:
        return type(self)(self._moving, namespace)

    def bind(self, limit: Limit, rule: str | None = None) -> Callable[[str, int], Decision]:
        def hit(key: str, cost: int) -> Decision:
            with self._moving.turn:
                decision = self._moving.hit(self._namespace, limit, rule)(key, cost)
                self._moving.move()
            return decision

        return hit

    def __getattr__(self, name: str) -> Any:
        def verb(*args: Any, **named: Any) -> Any:
            with self._moving.turn:
                engine = self._moving.shard.scoped(self._namespace)
                answer = getattr(engine, name)(*args, **named)
                self._moving.move()
            return answer

        return verb


class TestMovingShard(EngineConformance):
    programs = 15

    @pytest.fixture
    def engine(self, clock: Any) -> Any:
        return MovingEngine(MovingShard(clock, 10))


@pytest.mark.parametrize("every", [3, 10])
def test_a_shard_that_stays_for_a_while_forgets_what_is_idle_and_nothing_else(every: int) -> None:
    """Random programs in which time goes forward only, as it does on etcd: what was idle may not come back."""
    for seed in range(PROGRAMS):
        program = [
            (step[0], abs(step[1])) if step[0] == "advance" else step
            for step in random_program(seed)
        ]
        clock, model_clock = ManualClock(START), ManualClock(START)
        expected = play_program(program, MemoryEngine(clock=model_clock), model_clock)
        engine: Any = MovingEngine(MovingShard(clock, 10, every))
        assert play_program(program, engine, clock) == expected, f"seed {seed}"


class FullShard(MovingShard):
    """A shard with little memory."""

    def _new(self) -> Shard:
        return Shard(0, ME.epoch, self.clock, SECRET, 10_000, 100_000)


class TestFullShards:
    @pytest.mark.parametrize("seed", range(4))
    def test_the_next_owner_of_a_full_shard_forgets_no_count(self, seed: int) -> None:
        """Of whatever is counted under its own key, shared, or in a longer window."""
        chance = random.Random(seed)
        moving = FullShard(ManualClock(START), 10, every=1_000_000)
        engine = MovingEngine(moving)
        limits = [FixedWindow(9, HOUR_US + number) for number in range(3)]
        for turn in range(2_500):
            limit = limits[0] if turn < 1_000 else chance.choice(limits)
            moving.hit("", limit, None)(f"key:{chance.randint(0, 600)}", 1)
            if not turn % 10:
                moving.move()
        moving.move()
        before = {
            (key, limit): engine.usage(key, limit)
            for key in (f"key:{number}" for number in range(600))
            for limit in limits
        }
        assert moving.shard.engine.counters.shared > 100
        moving._load()
        for (key, limit), usage in before.items():
            assert moving.shard.engine.usage(key, limit) == usage

    def test_a_key_in_a_longer_window_stays_there_at_the_next_owner(self) -> None:
        clock = ManualClock(START)
        moving = FullShard(clock, 10, every=1_000_000)
        for number in range(600):
            moving.hit("", FixedWindow(9, 1_000_000), None)(f"key:{number}", 1)
        limit = FixedWindow(9, HOUR_US)
        decisions = [moving.hit("", limit, None)("me", 1) for _ in range(9)]
        assert all(decision.degraded for decision in decisions)
        clock.advance(60)
        for _ in range(5):
            moving.move()
        assert moving.shard.engine.counters.bytes < 50_000
        moving._load()
        decisions += [moving.hit("", limit, None)("me", 1) for _ in range(9)]
        assert sum(decision.allowed for decision in decisions) <= 9
