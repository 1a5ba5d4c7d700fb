"""What limits admit under hammering: the real arithmetic, on a virtual clock.

A timeline has three windows of twenty columns. The first half of a window has no hits; then every column has the same
number of hits, evenly spaced, about twice as many as the limits admit in the long run. With this start, the first
window ends during the first rush, which is where algorithms differ most.

Large limits would need millions of hits, so hits arrive in batches, and as much of a batch is admitted as fits: a
simulation takes a few thousand steps, whatever the limit. A batch is never larger than what an idle key allows at once,
or too little would be admitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..algorithms import CalendarWindow, ExponentialBackoff, Limit, TokenBucket
from ..charge import Charge
from ..clock import ManualClock
from ..limiter import Limiter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..algorithms import State

WINDOWS: Final = 3
COLUMNS: Final = 20
"""Columns per window."""
QUIET: Final = COLUMNS // 2
"""Columns before the first hit."""
BATCHES: Final = 50
"""How many batches a column should have at most; more hits make larger batches."""
BATCHES_SHARED: Final = 20
"""The same where a limiter decides, which costs more: to be shared between its limits."""
MAX_DENIALS: Final = 60
"""This many denials at once raise any backoff to its top level."""
STEADY_DENIALS: Final = 12
"""After this many denials without a level change, more of them change nothing."""

SECOND_US: Final = 1_000_000
ROUND_LENGTHS_US: Final = tuple(
    sorted(
        [digit * 10**power for power in range(1, 7) for digit in (1, 2, 5)]
        + [seconds * SECOND_US for seconds in (10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)]
        + [hours * 3_600 * SECOND_US for hours in (2, 6, 12, 24, 168)]
    )
)


class Outcome(NamedTuple):
    """What a gate answered to a charge."""

    allowed: bool
    remaining: int
    level: int
    refused_by: tuple[int, ...]
    """Which of the limits denied it."""


class Gate(Protocol):
    """One key under one or several limits."""

    limits: tuple[Limit, ...]

    def take(self, now_us: int, cost: int) -> Outcome:
        """Take `cost` units at `now_us`."""


class OneLimit:
    """A limit on its own: the pure algorithm and a state."""

    def __init__(self, limit: Limit) -> None:
        self.limits: tuple[Limit, ...] = (limit,)
        self._limit = limit
        self._state: State = None

    def take(self, now_us: int, cost: int) -> Outcome:
        """Move the state."""
        self._state, answer = self._limit.take(self._state, now_us, cost)
        allowed, remaining, _, _, level = answer
        return Outcome(allowed, remaining, level, () if allowed else (0,))


class AllLimits:
    """Several limits on one key, all or nothing: a limiter on a manual clock."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits
        self._clock = ManualClock(0.0)
        self._limiter = Limiter(clock=self._clock)

    def take(self, now_us: int, cost: int) -> Outcome:
        """Ask the limiter."""
        self._clock.advance(us=now_us - self._clock.now_us())
        decision = self._limiter.decide([Charge("key", limit, cost) for limit in self.limits])
        refused_by = [i for i, one in enumerate(decision.rules) if not one]
        remaining = min(one.remaining for one in decision.rules)
        level = max(one.backoff_level for one in decision.rules)
        return Outcome(decision.allowed, remaining, level, tuple(refused_by))


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """When the hits come."""

    edges_us: tuple[int, ...]
    """Where the windows of the picture begin, and where the last one ends."""
    batches: int
    """In each column."""
    batch: int
    """Hits that come at the same moment."""
    cost: int
    """Units that each hit costs."""
    whole: bool = True
    """Whether the windows of the picture are those of the limit, and not shorter pieces."""

    @property
    def per_column(self) -> int:
        """Hits in each column."""
        return self.batches * self.batch


@dataclass(frozen=True, slots=True)
class Timeline:
    """The result of a plan: hits per column."""

    plan: SimulationPlan
    admitted: tuple[int, ...]
    denied: tuple[int, ...]
    refusals: tuple[int, ...]
    """For each limit, how many hits it denied; a hit may be denied by several."""


def edges_of(limit: Limit, now_us: int) -> tuple[int, ...]:
    """Three windows, beginning with the one that `now_us` lies in."""
    if isinstance(limit, CalendarWindow):
        edges = list(limit.bounds_us(now_us))
        while len(edges) <= WINDOWS:
            edges.append(limit.bounds_us(edges[-1])[1])
        return tuple(edges)
    start_us = now_us - now_us % limit.window_us
    return tuple(start_us + i * limit.window_us for i in range(WINDOWS + 1))


def plan(limits: Sequence[Limit], cost: int, edges_us: tuple[int, ...]) -> SimulationPlan | None:
    """A hammering over the given windows, or `None` if it would take too many steps."""
    most = _most_batches(limits)
    found = _plan(*_hammering(limits, cost, edges_us), most, cost, edges_us)
    return found if _is_short(found, most) else None


def plan_start(limits: Sequence[Limit], cost: int, edges_us: tuple[int, ...]) -> SimulationPlan:
    """The same over the given windows or, if that is too much, over shorter pieces at their start.

    The rate 1,000,000/second burst 1 is an example: a picture of seconds would need every single hit.
    """
    most = _most_batches(limits)
    hits, at_once = _hammering(limits, cost, edges_us)
    found = _plan(hits, at_once, most, cost, edges_us)
    if _is_short(found, most):
        return found
    start_us, end_us = edges_us[:2]
    most_us = (end_us - start_us) * most // found.batches
    piece_us = max(length_us for length_us in ROUND_LENGTHS_US if length_us <= max(10, most_us))
    pieces_us = tuple(start_us + i * piece_us for i in range(WINDOWS + 1))
    hits = hits * piece_us // (end_us - start_us)
    return replace(_plan(hits, at_once, most, cost, pieces_us), whole=False)


def run(gate: Gate, plan: SimulationPlan) -> Timeline:
    """Let the hits come."""
    admitted: list[int] = []
    denied: list[int] = []
    steps = COLUMNS * plan.batches
    refusals = [0] * len(gate.limits)
    for start_us, end_us in pairwise(plan.edges_us):
        for column in range(COLUMNS):
            if len(admitted) < QUIET:
                admitted.append(0)
                denied.append(0)
                continue
            passed = 0
            for step in range(column * plan.batches, (column + 1) * plan.batches):
                now_us = start_us + (end_us - start_us) * step // steps
                fits, refused_by = _hit(gate, now_us, plan.cost, plan.batch)
                passed += fits
                for i in refused_by:
                    refusals[i] += plan.batch - fits
            admitted.append(passed)
            denied.append(plan.per_column - passed)
    return Timeline(plan, tuple(admitted), tuple(denied), tuple(refusals))


def _hit(gate: Gate, now_us: int, cost: int, hits: int) -> tuple[int, tuple[int, ...]]:
    """Send some hits at once: how many are admitted, and which limits denied the others."""
    outcome = gate.take(now_us, cost * hits)
    if outcome.allowed:
        return hits, ()
    if hits == 1:
        return 0, outcome.refused_by
    fits = min(outcome.remaining // cost, hits - 1)
    if fits:
        gate.take(now_us, cost * fits)
    outcome = gate.take(now_us, cost)  # Find out which limits deny the first hit that does not fit.
    if _tightens(gate.limits):
        level, steady = outcome.level, 1
        for _ in range(min(hits - fits - 1, MAX_DENIALS)):
            latest = gate.take(now_us, cost)
            steady = steady + 1 if latest.level == level else 1
            level = latest.level
            if steady == STEADY_DENIALS:
                break
    return fits, outcome.refused_by


def _hammering(limits: Sequence[Limit], cost: int, edges_us: tuple[int, ...]) -> tuple[int, int]:
    """How many hits are about twice what the limits admit in a window, and how many fit at once."""
    span_us = edges_us[1] - edges_us[0]
    at_once = min(_at_once(limit) for limit in limits) // cost
    if not at_once:  # Nothing ever passes, however many come.
        return 1, 1
    units = min(
        _demand(limit) * max(span_us, limit.window_us) // limit.window_us for limit in limits
    )
    return max(1, units // cost), at_once


def _demand(limit: Limit) -> int:
    """Twice the limit, and enough to empty a bucket within half a window."""
    if isinstance(limit, TokenBucket):
        return max(2 * limit.limit, limit.limit + 2 * limit.burst)
    return 2 * limit.limit


def _at_once(limit: Limit) -> int:
    """What an idle key allows at once."""
    return limit.burst if isinstance(limit, TokenBucket) else limit.limit


def _plan(
    hits: int, at_once: int, most_batches: int, cost: int, edges_us: tuple[int, ...]
) -> SimulationPlan:
    per_column = max(1, -(-hits // COLUMNS))
    batch = min(at_once, -(-per_column // most_batches))
    return SimulationPlan(edges_us, -(-per_column // batch), batch, cost)


def _most_batches(limits: Sequence[Limit]) -> int:
    """How many steps a column may take, so that a picture takes a tenth of a second at most."""
    tightens = _tightens(limits)
    if len(limits) == 1:
        return BATCHES // 4 if tightens else BATCHES
    return max(1, BATCHES_SHARED // (len(limits) * (STEADY_DENIALS if tightens else 1)))


def _is_short(plan: SimulationPlan, most_batches: int) -> bool:
    """Whether a plan keeps to its steps; a batch that fits in part needs three, a single hit one."""
    return plan.batches <= (4 if plan.batch == 1 else 1) * most_batches


def _tightens(limits: Sequence[Limit]) -> bool:
    """Whether being denied changes what comes next, so that every single denial matters."""
    return any(isinstance(limit, ExponentialBackoff) for limit in limits)
