"""The store: one master that decides with the memory engine, and keeps a log of what it did.

The memory engine gives the same answers as Redis, which its own tests see to, so here it stands for any store. Every
command is carried out at one moment of the store's clock, and the log is all there is to know: a replica is a shorter
log, a restart from disk replays all of it, and one without a disk begins a new one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...decision import Decision, Receipt
from ...engines.memory import MemoryEngine
from ...errors import EngineError
from .clocks import EPOCH_US, SetClock
from .sometimes import Sometimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import SimulatedLoop

MAX_KEYS: Final = 1_000


class StoreCommand(NamedTuple):
    """A verb of `Engine`, and what it is called with."""

    verb: str
    args: tuple[Any, ...]


class LogEntry(NamedTuple):
    """A command that was carried out: when, by the store's clock, and when in truth."""

    command: StoreCommand
    at_us: int
    done: int


@dataclass(eq=False)
class Master:
    """A store that is up: its states, and how many decisions each has made."""

    epoch: str
    clock: SetClock = field(default_factory=SetClock)
    log: list[LogEntry] = field(default_factory=list)
    withdrawn: set[str | None] = field(default_factory=set)
    """Tokens that were withdrawn: a request that comes later than that takes nothing."""
    versions: Counter[tuple[str | None, str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.engine = MemoryEngine(max_keys=MAX_KEYS, clock=self.clock)

    def carry_out(self, entry: LogEntry) -> Any:
        """Do it, and note it; what cannot be done changes nothing."""
        self.clock.us = entry.at_us
        verb, args = entry.command
        self.log.append(entry)
        if verb == "withdraw":
            self.withdrawn.add(args[0].token)
        elif verb == "decide" and any(one.token in self.withdrawn for one in args[0]):
            return []  # Whoever asked has taken it back since, and does not wait.
        answer = getattr(self.engine, verb)(*args)
        if verb == "decide":
            return [self._numbered(decision) for decision in answer]
        return answer

    def _numbered(self, decision: Decision) -> Decision:
        parts = tuple([self._receipted(part) for part in decision.rules])
        if len(parts) == 1:
            return parts[0]
        spokesman = decision.rules.index(_same(decision))
        context = decision.context._replace(receipt=parts[spokesman].context.receipt)
        return Decision(decision.key, decision.limited_by, decision.answer, context, parts)

    def _receipted(self, part: Decision) -> Decision:
        name = (part.rule, part.key, part.limited_by.identity)
        self.versions[name] += 1
        receipt = Receipt(self.versions[name], self.clock.us, self.epoch)
        context = part.context._replace(receipt=receipt)
        return Decision(part.key, part.limited_by, part.answer, context)


def _same(decision: Decision) -> Decision:
    """The part that speaks for a decision of several."""
    for part in decision.rules:
        if (part.key, part.limited_by, part.answer) == (
            decision.key,
            decision.limited_by,
            decision.answer,
        ):
            return part
    return decision.rules[0]


@dataclass(eq=False)
class SimulatedStore:
    """A master that can be stopped, killed, replaced, filled up, and set to another time."""

    loop: SimulatedLoop
    reached: Counter[Sometimes]
    master: Master | None = None
    offset_us: int = 0
    """How far its clock is from the truth."""
    stopped: bool = False
    full: bool = False
    slow_us: tuple[int, int] | None = None
    """How long the way there takes for everybody, where that is longer than usual."""
    lives: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """What arrived while it was stopped; it is worked off in order."""

    def __post_init__(self) -> None:
        self.start([])

    @property
    def up(self) -> bool:
        """Whether it takes connections."""
        return self.master is not None

    def now_us(self) -> int:
        """The store's clock."""
        return self.loop.now + EPOCH_US + self.offset_us

    def start(self, log: list[LogEntry]) -> None:
        """A new master that knows this much."""
        self.lives += 1
        self.master = Master(f"life {self.lives}")
        for entry in log:
            self.master.carry_out(entry)

    def kill(self) -> list[LogEntry]:
        """End it; the log that it had."""
        assert self.master is not None
        log, self.master = self.master.log, None
        self.stopped = False
        self.waiting.clear()
        return log

    def go_on(self) -> None:
        """Work off what came while it was stopped."""
        self.stopped = False
        waiting, self.waiting = self.waiting, []
        for arrive in waiting:
            arrive()

    def arrive(self, command: StoreCommand, answer: Callable[[Any], None]) -> None:
        """A command has come; its answer, or the error, goes back the way it came."""
        if self.master is None:
            self.reached[Sometimes.LOST_UNKNOWN] += 1
            return
        if self.stopped:
            self.waiting.append(lambda: self.arrive(command, answer))
            return
        if self.full and command.verb in ("decide", "settle", "renew"):
            answer(EngineError("OOM: the store is full", transient=True))
            return
        try:
            result = self.master.carry_out(LogEntry(command, self.now_us(), self.loop.now))
        except EngineError as error:
            result = error
        answer(result)
