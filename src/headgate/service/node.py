"""Node: one running process of the service, and everything it stands on.

The parts are attributes, so that each can be replaced by a test or by a larger build: the limiter decides, the board tells what
people have set (limits for one key, bans), the recorder counts. What is here by default works in one process and needs
nothing else.

On the hot path two things are asked of the parts: `board.view` is looked into before a keyed check, and `recorder.record` is
called after every decision. Both are plain calls without I/O.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..aio import AsyncLimiter
from ..clock import SystemClock
from ..rate import Rate, limits_of
from ..rules.opening import FixedRules, open_rules
from ..rules.parse import parse_rules
from ..rules.starter import STARTER
from .store import StoreWatch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..algorithms import Limit
    from ..clock import Clock
    from ..decision import Decision
    from ..engines.base import Run
    from ..rules.live import LiveRules
    from .settings import Settings
    from .tls import Certificate

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Ban(Protocol):
    """A key that a person has shut out."""

    @property
    def until_us(self) -> int | None:
        """When it ends, in microseconds since 1970; `None` for never."""

    @property
    def reason(self) -> str:
        """Why, in the words of who set it."""


class View(Protocol):
    """What people have set, as this node knows it now. Replaced as a whole when something changes."""

    @property
    def limits(self) -> Mapping[str, Limit]:
        """Limits that hold for one key, whatever a check asks for."""

    @property
    def bans(self) -> Mapping[str, Ban]:
        """Keys that are denied."""


class Board(Protocol):
    """Where nodes meet."""

    @property
    def view(self) -> View:
        """What holds now."""

    def now_us(self) -> int:
        """The clock that all nodes share; bans end by it."""

    async def start(self) -> None:
        """Begin to follow the other nodes."""

    async def stop(self) -> None:
        """Take leave of them."""


class Recorder(Protocol):
    """Counts what the node does; called on the hot path, so: integer adds, no I/O."""

    fast_answers: defaultdict[int, int]
    """Answers of the hot path, by status; it counts them itself."""

    def record(self, decision: Decision, took_ns: int = 0) -> None:
        """A decision was made, and took that long."""

    def record_run(self, run: Run, took_ns: int = 0) -> None:
        """Several decisions were made that have most in common, and each took that long."""

    def record_failure(self, error: Exception) -> None:
        """A check could not be answered, because the store failed."""

    def record_ignored_fields(self, count: int) -> None:
        """A body had that many fields that nobody knows."""


@dataclass(frozen=True, slots=True)
class EmptyView:
    """Nothing has been set."""

    limits: Mapping[str, Limit] = field(default_factory=lambda: NOTHING)
    bans: Mapping[str, Ban] = field(default_factory=lambda: NOTHING)


class NoBoard:
    """A board for a node that is alone and that nobody manages."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.view: View = EmptyView()
        self._clock: Clock = SystemClock() if clock is None else clock

    def now_us(self) -> int:
        """Nobody to share a clock with."""
        return self._clock.now_us()

    async def start(self) -> None:
        """Nobody to follow."""

    async def stop(self) -> None:
        """Nobody to leave."""


class NoRecorder:
    """Counts only what a plain node shows: decisions, denials and failures."""

    def __init__(self) -> None:
        self.decisions = self.denials = self.failures = self.ignored_fields = 0
        self.fast_answers: defaultdict[int, int] = defaultdict(int)

    def record(self, decision: Decision, took_ns: int = 0) -> None:
        """See `Recorder.record`."""
        self.decisions += 1
        if not decision.answer[0]:
            self.denials += 1

    def record_run(self, run: Run, took_ns: int = 0) -> None:
        """See `Recorder.record_run`."""
        for decision in run.decisions():
            self.record(decision, took_ns)

    def record_failure(self, error: Exception) -> None:
        """See `Recorder.record_failure`."""
        self.failures += 1

    def record_ignored_fields(self, count: int) -> None:
        """See `Recorder.record_ignored_fields`."""
        self.ignored_fields += count


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One process of the service. `start` before use, in the event loop that it will live in."""

    settings: Settings
    limiter: AsyncLimiter
    rules: LiveRules | FixedRules | None = None
    """The live rules, or `None` where there are none."""
    board: Board = field(default_factory=NoBoard)
    recorder: Recorder = field(default_factory=NoRecorder)
    auth: Any = None
    """Who may do what; `None` lets everybody do everything, which is for loopback only."""
    audit: Any = None
    store: StoreWatch = field(default_factory=StoreWatch)
    """Whether the engine's store answers."""
    certificate: Certificate | None = None
    """What it shows to those who connect by TLS."""
    port: int = 0
    """Where it listens; the settings may have left that to the system."""
    worker: int = 0
    """Which of the workers this is, from 0."""
    shared_dir: Path | None = None
    """A folder that all workers of one service share, for as long as it runs."""
    draining: bool = False
    """Set when the process has been told to end: it is not ready any more, and answers close their connection."""

    @property
    def default_limit(self) -> Limit:
        """What holds for checks that name no limit."""
        settings = self.settings
        rate = Rate(settings.default_limit, settings.default_window)
        return limits_of(rate, settings.default_algorithm)[0]

    async def start(self) -> None:
        """Begin to work."""
        await self.board.start()
        self.store.start(self.limiter.engine)

    async def stop(self) -> None:
        """End what `start` began, and let go of the engine."""
        await self.store.stop()
        await self.board.stop()
        await self.limiter.aclose()
        self.close()

    def close(self) -> None:
        """Stop following the rules, and let go of the audit log."""
        if self.rules is not None:
            self.rules.close()
        if self.audit is not None:
            self.audit.close()


def build_node(
    settings: Settings, *, port: int = 0, worker: int = 0, shared_dir: Path | None = None
) -> Node:
    """A node as the settings describe it, not started yet."""
    with settings.blamed("rules"):
        rules = _open_rules(settings)
    on_error: Any = settings.on_error
    store = StoreWatch()
    with settings.blamed("engine"):
        limiter = AsyncLimiter(
            settings.engine,
            namespace=settings.namespace,
            rules=rules,
            on_error=on_error,
            on_failure=store.failed,
        )
    return Node(
        settings=settings,
        limiter=limiter,
        store=store,
        rules=rules,
        port=port or settings.port,
        worker=worker,
        shared_dir=shared_dir,
    )


def _open_rules(settings: Settings) -> LiveRules | FixedRules:
    """The rules that the settings name, or those that everybody starts with."""
    if settings.rules:
        return open_rules(settings.rules)
    return FixedRules(parse_rules(STARTER, "the starter rules").rules)
