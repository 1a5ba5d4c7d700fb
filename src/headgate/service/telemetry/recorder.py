"""Recorder: what a node has decided, in plain integers.

On the hot path a decision is appended to a list, and a denial's time to another: no lookups, no hashing. The lists are
folded into counters when they hold `FOLD_AT` decisions, when the board beats, and before every read, so reads are
always up to date. Used from one event loop only.

Everything is bounded: series by `MAX_SERIES` (further rules are counted together as `other`), top keys by the sketch,
blocks by `MAX_BLOCKS`. Every duration is counted, none is sampled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ...algorithms import NEVER
from ...board.model import NONE_YET, Report, Totals
from ...board.shared_lists import blocks_to_bytes, top_to_bytes
from ...board.sketch import RecentKeys
from ...charge import shown
from ...clock import SystemClock
from .denied_keys import DeniedKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ...board.model import Block
    from ...board.sketch import TopKey
    from ...clock import Clock
    from ...decision import Decision
    from ...engines.base import Run
    from .tracing import Tracing

FOLD_AT: Final = 1_024
MAX_SERIES: Final = 1_000
MAX_RULE_TOTALS: Final = 20_000
"""Totals of rules that are kept apart: of each rule of the largest set, what passed and what did not."""
NO_RULE: Final = "-"
OTHER: Final = "other"
TOP_SHARED: Final = 100
"""How many of its top keys a node shares."""
TOP_PERIOD_US: Final = 60_000_000
BUCKETS_NS: Final = (
    10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
    25_000_000, 50_000_000, 100_000_000, 250_000_000, 500_000_000, 1_000_000_000,
)  # fmt: skip
"""Upper bounds of the duration histograms."""
NS: Final = 1e-9
BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)

PARTS: Final = attrgetter("key", "limited_by", "answer", "context")
SEVERAL: Final = attrgetter("several")
DECIDER: Final = attrgetter("decider")
FIRST: Final = itemgetter(0)
RULE: Final = itemgetter(2)
"""Positions in a decision and its parts; `Context` and `Answer` are tuples."""


class Series(NamedTuple):
    """The labels of one counter."""

    rule: str
    algorithm: str
    result: str
    """`allowed`, `denied`, or `never` if the cost would not fit even an idle key."""
    source: str


class Record(Protocol):
    """Called on the hot path after every decision."""

    def __call__(self, decision: Decision, took_ns: int = 0) -> None:
        """Record a decision, and how long it took."""


class RecordRun(Protocol):
    """Called on the hot path after several decisions that have most in common."""

    def __call__(self, run: Run, took_ns: int = 0) -> None:
        """Record them, and how long each took."""


class Histogram:
    """Counts in fixed buckets, with one more for values above all bounds."""

    __slots__ = ("_bounds", "counts", "sum", "unit")

    def __init__(self, bounds: Sequence[float], unit: float = 1) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0
        self.unit = unit
        """The factor for display: nanoseconds become seconds."""

    def add(self, values: list[Any]) -> None:
        """Count a batch: sorted once, a few searches find its buckets. Zeros were not measured."""
        values.sort()
        at = bisect_right(values, 0)
        for bucket, bound in enumerate(self._bounds):
            below, at = at, bisect_right(values, bound, at)
            self.counts[bucket] += at - below
        self.counts[-1] += len(values) - at
        self.sum += sum(values)

    def add_many(self, value: int, many: int) -> None:
        """Count one value `many` times. Zero means not measured."""
        if value:
            self.counts[bisect_left(self._bounds, value)] += many
            self.sum += value * many

    @property
    def value(self) -> list[Any]:
        """Counts and sum, in the displayed unit."""
        return [list(self.counts), self.sum * self.unit]


class Recorder:
    """Counts what a node does."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._decisions: list[Decision] = []
        self._took_ns: list[int] = []
        self._denied_ns: list[int] = []
        self._asked: list[str] = []  # Keys of runs that are not in the sketch yet.
        self.record: Record = self._recording()
        self.record_run: RecordRun = self._record_run
        self._checks: Counter[tuple[str | None, str, bool | None, str]] = Counter()
        self._by_rule: Counter[tuple[str | None, bool]] = Counter()
        self._blocks = DeniedKeys()
        self._sketch = RecentKeys()
        self._turn_us = self._clock.now_us() + TOP_PERIOD_US
        self._requests = self._denied = 0
        self.durations = Histogram(BUCKETS_NS, NS)
        self.failures: Counter[str] = Counter()
        """Checks that could not be decided, by whether they may have been charged."""
        self.ignored_fields = 0
        self.fast_answers: defaultdict[int, int] = defaultdict(int)
        """Answers of the hot path, by status; it counts them itself."""
        self.tracing: Tracing | None = None
        """Exports spans, if tracing is on."""
        self.each_second: list[Callable[[], None]] = []
        """Further work to do when the board beats."""
        self.http: Counter[tuple[str, str, int]] = Counter()
        """Answers of the framework, by method, route and status."""
        self.http_durations = Histogram(BUCKETS_NS, NS)
        self.resp: Counter[tuple[str, str]] = Counter()
        """Commands of the Redis protocol, by name and by whether they were answered or refused."""
        self.resp_connections = 0
        self.store_durations = Histogram(BUCKETS_NS, NS)
        self.batch_sizes = Histogram(BATCH_SIZES)

    def _recording(self) -> Record:
        """`record(decision, took_ns)`, as a closure: it is called for every decision."""
        decisions, ticks, fold = self._decisions, self._clock.ticks, self.fold
        append, append_took, append_denied = (
            decisions.append, self._took_ns.append, self._denied_ns.append,
        )  # fmt: skip

        def record(decision: Decision, took_ns: int = 0) -> None:
            """Record a decision, and how long it took."""
            append(decision)
            append_took(took_ns)
            if not decision.answer[0]:
                append_denied(ticks())
            if len(decisions) >= FOLD_AT:
                fold()

        return record

    def _record_run(self, run: Run, took_ns: int = 0) -> None:
        """Count a run at once, except for its keys, by what its decisions have in common."""
        self.fold()  # Earlier decisions come first.
        keys, limit, answers, context, _ = run
        many, allowed = len(answers), sum(map(FIRST, answers))
        denied = many - allowed
        if allowed:
            self._checks[context.rule, limit.decider, True, context.source] += allowed
            self._by_rule[context.rule, True] += allowed
        if denied:
            self._by_rule[context.rule, False] += denied
            self._checks[context.rule, limit.decider, False, context.source] += denied
        self._asked += keys
        # A sketch handles one large batch faster than many small ones.
        if len(self._asked) >= FOLD_AT:
            self._fold_asked()
        self.durations.add_many(took_ns, many)
        if denied or self._blocks:
            now_ns = self._clock.ticks()
            self._fold_denials(run.decisions(), [now_ns] * denied)
        self._bound_checks()
        self._requests += many
        self._denied += denied

    def record_failure(self, error: Exception) -> None:
        """Record a check that could not be answered, because the store failed."""
        self.failures["unknown" if getattr(error, "indefinite", False) else "not_charged"] += 1

    def record_ignored_fields(self, count: int) -> None:
        """Record the number of unknown fields in a body."""
        self.ignored_fields += count

    def record_batch(self, took: float, size: int) -> None:
        """Record a call to the store: how many seconds it took, and how many requests it carried."""
        self.store_durations.add([round(took * 1e9) or 1])
        self.batch_sizes.add([size])

    def record_http(self, method: str, route: str, status: int, took_ns: int) -> None:
        """Record an answer of the framework. `route` is one of our patterns, never a path that was sent."""
        self.http[method, route, status] += 1
        self.http_durations.add([took_ns])

    def fold(self) -> None:
        """Count what was appended. Written as passes over whole lists, which run in C."""
        if not self._decisions:
            return
        decisions, denied_ns = self._decisions[:], self._denied_ns[:]
        self.durations.add(self._took_ns[:])
        self._decisions.clear()
        self._denied_ns.clear()
        self._took_ns.clear()
        keys, limits, answers, contexts = zip(*map(PARTS, decisions), strict=True)
        allowed = tuple(map(FIRST, answers))
        series = zip(
            map(RULE, contexts), map(DECIDER, limits), allowed, map(FIRST, contexts), strict=True
        )
        self._checks.update(series)
        self._by_rule.update(zip(map(RULE, contexts), allowed, strict=True))
        self._sketch.add(keys)
        if denied_ns or self._blocks:
            self._fold_denials(decisions, denied_ns)
        self._fold_several(filter(SEVERAL, decisions))
        self._bound_checks()
        self._requests += len(decisions)
        self._denied += len(denied_ns)

    def _bound_checks(self) -> None:
        """Count further rules together; otherwise those of years of changes would all be here."""
        if len(self._by_rule) > 2 * MAX_RULE_TOTALS:  # Some rules are counted only here.
            for (rule, allowed), many in list(self._by_rule.items())[MAX_RULE_TOTALS:]:
                del self._by_rule[rule, allowed]
                self._by_rule[OTHER, allowed] += many
        if len(self._checks) <= 2 * MAX_SERIES:
            return
        late = list(self._checks.items())[MAX_SERIES:]
        for kind, many in late:
            del self._checks[kind]
            self._checks[OTHER, *kind[1:]] += many
        for rule in {kind[0] for kind, _ in late}:
            for allowed in (True, False):
                self._by_rule[OTHER, allowed] += self._by_rule.pop((rule, allowed), 0)

    def _fold_asked(self) -> None:
        self._sketch.add(self._asked)
        self._asked.clear()

    def _fold_denials(self, decisions: Sequence[Decision], denied_ns: Sequence[int]) -> None:
        """Update the blocked keys. There is a time for each denial."""
        self._blocks.update(decisions, denied_ns, self._clock.epoch_ns)
        denials = [decision for decision in decisions if not decision.answer[0]]
        if any(decision.answer[2] == NEVER for decision in denials):
            self._fold_nevers(denials)

    def _fold_nevers(self, denials: list[Decision]) -> None:
        """Count costs that can never fit separately: waiting does not help."""
        for decision in denials:
            if decision.answer[2] == NEVER and decision.context[0] != "ban":
                limit, context = decision.limited_by, decision.context
                self._checks[context.rule, limit.decider, False, context.source] -= 1
                self._checks[context.rule, limit.decider, None, context.source] += 1

    def _fold_several(self, decisions: Iterable[Decision]) -> None:
        """Count rules that did not decide their request, and those that would have denied if enforced."""
        for decision in decisions:
            passed: dict[str | None, bool] = {}
            for one in decision.several:
                (source, _, rule, *_), allowed = one.context, one.answer[0]
                if source == "shadow" and not allowed:
                    self._checks[rule, one.limited_by.decider, False, source] += 1
                passed[rule] = allowed and passed.get(rule, True)
            passed.pop(decision.context[2], None)
            self._by_rule.update(passed.items())

    @property
    def totals(self) -> Totals:
        """Decisions and denials since the node started."""
        self.fold()
        return Totals(self._requests, self._denied)

    def checks(self) -> Mapping[Series, int]:
        """The number of decisions of each kind."""
        self.fold()
        counted: dict[Series, int] = {}
        for (rule, algorithm, allowed, source), many in self._checks.items():
            result = "never" if allowed is None else "allowed" if allowed else "denied"
            series = Series(rule or NO_RULE, algorithm, result, source)
            if series not in counted and len(counted) >= MAX_SERIES:
                series = series._replace(rule=OTHER)
            counted[series] = counted.get(series, 0) + many
        return counted

    def rule_totals(self) -> dict[str | None, Totals]:
        """Requests and denials of each rule, even if another one decided the request; `None` for no rule."""
        self.fold()
        found: dict[str | None, Totals] = {}
        for (rule, allowed), many in self._by_rule.items():
            known = found.get(rule, NONE_YET)
            found[rule] = Totals(known.requests + many, known.denied + (0 if allowed else many))
        return found

    def blocks(self, offset_us: int = 0) -> list[Block]:
        """The current blocks of this node, with times on the board's clock, which is `offset_us` ahead."""
        self.fold()
        return self._blocks.live(self._clock.now_us(), offset_us)

    def blocking(self, key: str) -> list[tuple[str | None, Any]]:
        """What currently blocks a key on this node: pairs of rule, if any, and limit."""
        self.fold()
        return self._blocks.limits(key, self._clock.now_us())

    def unblock(self, key: str) -> None:
        """Remove the blocks of a key that was changed: it may not be denied any more."""
        self.fold()
        self._blocks.forget(key)

    def top(self, many: int = TOP_SHARED) -> tuple[list[TopKey], int]:
        """The busiest keys, and an upper bound for the hits of any other."""
        self.fold()
        self._fold_asked()
        top = self._sketch.top(many)
        return top, top[-1].hits if len(top) == many else 0

    def report(self, *, alone: bool = False, offset_us: int = 0) -> Report:
        """The report for the board, once a second and by its clock; a node that is alone does not share its lists."""
        self.fold()
        for work in self.each_second:
            work()
        now_us = self._clock.now_us()
        if now_us >= self._turn_us:
            self._fold_asked()
            self._sketch.rotate()
            self._turn_us = now_us + TOP_PERIOD_US
        totals = Totals(self._requests, self._denied)
        if alone:
            return Report(totals)
        top, floor = self.top()
        # The lists are for display, and a key may be long.
        shared = [hot._replace(key=shown(hot.key)) for hot in top]
        lists = {
            "blocks": blocks_to_bytes(self.blocks(offset_us)),
            "top": top_to_bytes(shared, floor),
        }
        return Report(totals, lists)
