"""A node's figures of the last ten seconds, by rule and by duration of decisions; and the same for all nodes.

Rates and counts of fixed buckets can be added, so nodes share those and not percentiles.
"""

from __future__ import annotations

import json
import time
from collections import deque
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from ...regions.rights_figures import RightsFigures
from .recorder import BUCKETS_NS, NO_RULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ...board.model import Totals
    from .recorder import Recorder

FIGURES: Final = "figures"
"""The name of the list in which nodes share them."""
SECONDS: Final = 10
SHOWN_RULES: Final = 200
"""How many rules a node reports: those with most requests."""
DEGRADED: Final = frozenset({"open", "closed", "fallback"})
"""Sources of answers given instead of the store."""


class RuleRates(NamedTuple):
    """Rates of one rule, per second."""

    allowed: float = 0.0
    denied: float = 0.0
    shadow_denied: float = 0.0


NO_RATES: Final = RuleRates()


class NodeFigures(NamedTuple):
    """A node's figures of the last ten seconds, per second."""

    requests: float = 0.0
    denied: float = 0.0
    degraded: float = 0.0
    failed: float = 0.0
    rules: Mapping[str, RuleRates] = {}
    """By rule; checks without one are under an empty name."""
    latency: Sequence[int] = (0,) * (len(BUCKETS_NS) + 1)
    """The number of decisions in each bucket of duration."""
    epoch: int = 0
    """The epoch of the choice that this node uses."""
    store: Sequence[int] = (0,) * (len(BUCKETS_NS) + 1)
    """The number of calls to the store in each bucket of duration."""
    engine: Mapping[str, float] = {}
    """Figures of its engine, by the names of the metrics."""
    uncounted: float = 0.0
    """Degraded answers that let a request pass without any limit."""
    rights: RightsFigures | None = None
    """Traffic in rights of regions since the start; `None` if no rule uses escrow."""

    def to_bytes(self) -> bytes:
        """Serialise it for other nodes."""
        busiest = sorted(self.rules.items(), key=lambda one: -sum(one[1]))[:SHOWN_RULES]
        rules = {name: [round(one, 2) for one in rates] for name, rates in busiest}
        row = [
            *self[:4],
            rules,
            list(self.latency),
            self.epoch,
            list(self.store),
            dict(self.engine),
            self.uncounted,
            None if self.rights is None else self.rights.as_json(),
        ]
        return json.dumps(row, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, packed: bytes) -> NodeFigures:
        """The inverse of `to_bytes`."""
        requests, denied, degraded, failed, rules, latency, epoch, *more = json.loads(packed)
        read = {name: RuleRates(*one[:3]) for name, one in rules.items()}
        found = cls(requests, denied, degraded, failed, read, tuple(latency), epoch)
        store, engine, uncounted, rights = (*more, *MISSING[len(more) :])[:4]
        return found._replace(
            store=tuple(store),
            engine=engine,
            uncounted=uncounted,
            rights=None if rights is None else RightsFigures.from_json(rights),
        )


MISSING: Final = (NodeFigures().store, NodeFigures().engine, 0.0, None)
"""Values for the last fields, which older nodes do not send."""


def combined(every: Iterable[NodeFigures]) -> NodeFigures:
    """All nodes combined."""
    nodes = list(every)
    rules: dict[str, RuleRates] = {}
    for node in nodes:
        for name, rates in node.rules.items():
            rules[name] = RuleRates(*map(sum, zip(rates, rules.get(name, NO_RATES), strict=True)))
    rights = [node.rights for node in nodes if node.rights is not None]
    return NodeFigures(
        sum(node.requests for node in nodes),
        sum(node.denied for node in nodes),
        sum(node.degraded for node in nodes),
        sum(node.failed for node in nodes),
        rules,
        tuple(map(sum, zip(*(node.latency for node in nodes), strict=True))),
        store=tuple(map(sum, zip(*(node.store for node in nodes), strict=True))),
        uncounted=sum(node.uncounted for node in nodes),
        rights=RightsFigures.combined(rights) if rights else None,
    )


class _Counted(NamedTuple):
    at: float
    totals: Totals
    degraded: int
    failed: int
    rules: Mapping[str, tuple[int, int, int]]
    """By rule: requests, denied, denied by a shadow."""
    latency: Sequence[int]
    store: Sequence[int]
    uncounted: int


class RecentFigures:
    """Samples a recorder once a second, and computes what has changed in ten."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._clock = clock
        self._seen: deque[_Counted] = deque(maxlen=SECONDS + 1)
        self.note()

    def note(self) -> None:
        """Take a sample; called once a second."""
        recorder = self._recorder
        asked = {rule or "": totals for rule, totals in recorder.rule_totals().items()}
        shadows: dict[str, int] = {}
        degraded = uncounted = 0
        for series, many in recorder.checks().items():
            rule = "" if series.rule == NO_RULE else series.rule
            if series.source == "shadow" and series.result == "denied":
                shadows[rule] = shadows.get(rule, 0) + many
            if series.source in DEGRADED:
                degraded += many
            if series.source == "open":
                uncounted += many
        rules = {
            name: (one.requests, one.denied, shadows.get(name, 0)) for name, one in asked.items()
        }
        self._seen.append(
            _Counted(
                self._clock(),
                recorder.totals,
                degraded,
                sum(recorder.failures.values()),
                rules,
                tuple(recorder.durations.counts),
                tuple(recorder.store_durations.counts),
                uncounted,
            )
        )

    def figures(self) -> NodeFigures:
        """The figures of the last ten seconds."""
        first, last = self._seen[0], self._seen[-1]
        span = max(1.0, last.at - first.at)
        rules = {}
        for name, (requests, denied, shadow) in last.rules.items():
            before = first.rules.get(name, (0, 0, 0))
            asked, refused, shadowed = (
                max(0, now - then) / span
                for now, then in zip((requests, denied, shadow), before, strict=True)
            )
            enforced = refused - shadowed if refused >= shadowed else refused
            if asked or refused:
                rules[name] = RuleRates(asked - refused + (refused - enforced), enforced, shadowed)
        return NodeFigures(
            (last.totals.requests - first.totals.requests) / span,
            (last.totals.denied - first.totals.denied) / span,
            (last.degraded - first.degraded) / span,
            (last.failed - first.failed) / span,
            rules,
            tuple(map(sub, last.latency, first.latency)),
            store=tuple(map(sub, last.store, first.store)),
            uncounted=(last.uncounted - first.uncounted) / span,
        )


def percentile_us(counts: Sequence[int], share: float) -> int | None:
    """The duration below which this share of all decisions stayed, in microseconds; `None` if there were none.

    Within a bucket an even distribution is assumed.

    >>> percentile_us([0, 0, 0, 100] + [0] * 13, 0.5)
    75
    """
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0
    for bucket, many in enumerate(counts):
        if below + many >= wanted and many:
            low = BUCKETS_NS[bucket - 1] if bucket else 0
            high = BUCKETS_NS[bucket] if bucket < len(BUCKETS_NS) else low
            return round((low + (high - low) * (wanted - below) / many) / 1_000)
        below += many
    return BUCKETS_NS[-1] // 1_000
