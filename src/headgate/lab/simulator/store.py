"""The store: one master that decides with the memory engine, and logs its commands.

The memory engine gives the same answers as Redis, which the conformance tests verify, so here it stands for any store.
Every command is carried out at one moment of the store's clock, and the log defines everything: a replica is a shorter
log, a restart from disk replays all of it, and one without a disk starts a new one.
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
    """A verb of `Engine`, and its arguments."""

    verb: str
    args: tuple[Any, ...]


class LogEntry(NamedTuple):
    """A command that was carried out: the time on the store's clock, and the true time."""

    command: StoreCommand
    at_us: int
    done: int


@dataclass(eq=False)
class Master:
    """A store that is up: its states, and the number of decisions of each."""

    epoch: str
    clock: SetClock = field(default_factory=SetClock)
    log: list[LogEntry] = field(default_factory=list)
    withdrawn: set[str | None] = field(default_factory=set)
    """Tokens that were withdrawn: a request that arrives later takes nothing."""
    versions: Counter[tuple[str | None, str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.engine = MemoryEngine(max_keys=MAX_KEYS, clock=self.clock)

    def carry_out(self, entry: LogEntry) -> Any:
        """Carry it out and log it; a command that fails changes nothing."""
        self.clock.us = entry.at_us
        verb, args = entry.command
        self.log.append(entry)
        if verb == "withdraw":
            self.withdrawn.add(args[0].token)
        elif verb == "decide" and any(one.token in self.withdrawn for one in args[0]):
            return []  # The sender has withdrawn it since, and does not wait.
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
    """The part that represents a decision of several."""
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
    """The offset of its clock from the true time."""
    stopped: bool = False
    full: bool = False
    slow_us: tuple[int, int] | None = None
    """The delay for all nodes, if it is longer than usual."""
    lives: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """What arrived while it was stopped; processed in order."""

    def __post_init__(self) -> None:
        self.start([])

    @property
    def up(self) -> bool:
        """Whether it accepts connections."""
        return self.master is not None

    def now_us(self) -> int:
        """The store's clock."""
        return self.loop.now + EPOCH_US + self.offset_us

    def start(self, log: list[LogEntry]) -> None:
        """Start a new master with this log."""
        self.lives += 1
        self.master = Master(f"life {self.lives}")
        for entry in log:
            self.master.carry_out(entry)

    def kill(self) -> list[LogEntry]:
        """Kill it; returns its log."""
        assert self.master is not None
        log, self.master = self.master.log, None
        self.stopped = False
        self.waiting.clear()
        return log

    def go_on(self) -> None:
        """Process what arrived while it was stopped."""
        self.stopped = False
        waiting, self.waiting = self.waiting, []
        for arrive in waiting:
            arrive()

    def arrive(self, command: StoreCommand, answer: Callable[[Any], None]) -> None:
        """Process a command; its answer or error is passed to `answer`."""
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
