"""The verdict on a history: all checks, the figures, and whether its promise was kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .checks import leases, ledger, liveness, policy, receipts, replay, requests, safety, slots
from .checks.finding import Finding
from .scene import ASKED, counted_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .history import Operation
    from .promises import ModePromise
    from .scene import Scene

SHOWN: Final = 20
"""How many findings of one check are kept; all are counted."""
MARGIN_US: Final = 5_000
LATE_PER_MILLE: Final = 1
"""One in a thousand may be late: the machine's scheduler can delay it."""


@dataclass
class HistoryVerdict:
    """The checker's verdict."""

    promise: ModePromise
    keys: int
    lasts_us: int
    begin: int
    faults: int
    figures: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """The number of findings, by check."""
    unanswered: str = ""
    """Why nothing could be judged, if no call was answered; else empty."""

    @property
    def outcome(self) -> str:
        """In one word; without an answer, a promise can neither hold nor be seen to."""
        if self.counts:
            return "violated"
        return "unjudged" if self.unanswered else "holds"

    @property
    def holds(self) -> bool:
        """Whether nothing shows that the promise was broken."""
        return not self.counts

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "verdict": self.outcome,
            "promise": {
                "engine": self.promise.engine,
                "mode": self.promise.mode,
                "words": self.promise.words,
            },
            "keys": self.keys,
            "faults": self.faults,
            "seconds": round(self.lasts_us / 1e6, 6),
            "figures": self.figures,
            "violations": dict(self.counts),
            "findings": [
                {**one._asdict(), "seconds": round((one.at_us - self.begin) / 1e6, 6)}
                for one in self.findings
            ],
        }


def judge(scene: Scene) -> HistoryVerdict:
    """Check a history against the promise that it names."""
    verdict = HistoryVerdict(
        scene.promise,
        len(scene.trails),
        scene.end - scene.begin,
        scene.begin,
        len(scene.faults),
        _counted(scene),
    )
    excesses = [*safety.excesses(scene), *slots.excesses(scene)]
    _note(verdict, safety.findings(excesses))
    figures = verdict.figures
    figures["over_limit"] = max((one.over_limit for one in excesses), default=0)
    figures["bound"] = max((one.bound for one in excesses), default=0)
    figures["over_bound"] = max((one.over_bound for one in excesses), default=0)
    false = [*liveness.findings(scene), *slots.denials(scene)]
    figures["false_denials"] = len(false)
    if not scene.promise.denies_freely:
        _note(verdict, false)
    _judge_receipts(scene, verdict)
    for check in (ledger, leases, policy, requests):
        _note(verdict, check.findings(scene))
    _judge_lateness(scene, verdict)
    figures.update(_utilisation(scene))
    operations = scene.operations
    first = next((one.err for one in operations if one.err), None)
    verdict.unanswered = unanswered(Counter(one.type for one in operations), first)
    return verdict


def unanswered(types: Counter[str], first: str | None) -> str:
    """Why nothing can be judged, if no call was answered; the first error may tell more.

    >>> unanswered(Counter(fail=2, info=3), "status 404")
    'no answer said allowed or denied: 2 failed, 3 unknown, the first because of: status 404'
    >>> unanswered(Counter(fail=2, deny=1), "status 404")
    ''
    """
    if types["allow"] or types["deny"]:
        return ""
    counts = f"{types['fail']} failed, {types['info']} unknown"
    because = f", the first because of: {first}" if first else ""
    return f"no answer said allowed or denied: {counts}{because}"


def _judge_receipts(scene: Scene, verdict: HistoryVerdict) -> None:
    by_trail = [(trail, receipts.eras(scene, trail)) for trail in scene.trails]
    figures = verdict.figures
    figures["lost"] = sum(len(era.lost) for _, eras in by_trail for era in eras)
    before = verdict.counts["duplicate version"]
    for trail, eras in by_trail:
        _note(verdict, receipts.findings(scene, trail, eras))
    figures["duplicates"] = verdict.counts["duplicate version"] - before
    figures["replayed"] = figures["unjudged"] = 0
    for one in replay.replays(scene, by_trail):
        figures["replayed"] += one.replayed
        figures["unjudged"] += one.unjudged
        _note(verdict, one.findings)
    verdict.counts += Counter()  # Drops zeros.


def _judge_lateness(scene: Scene, verdict: HistoryVerdict) -> None:
    """How long callers waited; with a deadline, one in a thousand may exceed it by more than the margin."""
    took = sorted(one.t1 - one.t0 for one in scene.operations if one.f in ASKED)
    if not took:
        return
    figures = verdict.figures
    figures["p50_us"], figures["p99_us"] = _quantile(took, 0.5), _quantile(took, 0.99)
    figures["slowest_us"] = took[-1]
    deadline_us = scene.parameters.get("deadline_us")
    if deadline_us is None:
        return
    most_us = deadline_us + scene.parameters.get("margin_us", MARGIN_US)
    late = [one for one in scene.operations if one.f in ASKED and one.t1 - one.t0 > most_us]
    figures["late"] = len(late)
    if len(late) * 1_000 > len(took) * LATE_PER_MILLE:
        worst = max(late, key=lambda one: one.t1 - one.t0)
        message = (
            f"{len(late)} of {len(took)} answers came later than {most_us} us, "
            f"this one after {worst.t1 - worst.t0} us"
        )
        _note(verdict, [_finding("late", message, worst, len(late))])


def _counted(scene: Scene) -> dict[str, Any]:
    asked = [one for one in scene.operations if one.f in ASKED]
    types = Counter(one.type for one in asked)
    sources = Counter(one.source for one in asked if one.type in ("allow", "deny"))
    return {
        "operations": len(scene.operations),
        "allowed": types["allow"],
        "denied": types["deny"],
        "failed": types["fail"],
        "unknown": types["info"],
        "units": sum(one.cost for one in asked if one.type == "allow"),
        "sources": dict(sorted(sources.items())),
        "strays": sum(scene.is_stray(one) for one in asked),
    }


def _utilisation(scene: Scene) -> dict[str, float]:
    """For the busiest key: the share of the possible units that was given, and how evenly among its callers."""
    trails = [one for one in counted_of(scene) if one.limit.window_us and one.limit.limit]
    if not trails:
        return {}
    trail = max(trails, key=lambda one: len(one.operations))
    given: dict[Any, int] = defaultdict(int)
    for one in trail.operations:
        if one.f in ASKED:
            given[one.proc] += one.cost if one.type == "allow" else 0
    lasts_us = trail.operations[-1].t1 - trail.operations[0].t0
    could = trail.limit.limit * lasts_us / trail.limit.window_us
    figures = {}
    if lasts_us >= 3 * trail.limit.window_us:
        figures["utilisation"] = round(sum(given.values()) / could, 4)
    squares = sum(units * units for units in given.values())
    if len(given) > 1 and squares:
        figures["jain"] = round(sum(given.values()) ** 2 / (len(given) * squares), 4)
    return figures


def _note(verdict: HistoryVerdict, found: Iterable[Finding]) -> None:
    for one in found:
        verdict.counts[one.check] += 1
        if verdict.counts[one.check] <= SHOWN:
            verdict.findings.append(one)


def _finding(check: str, message: str, one: Operation, units: int) -> Finding:
    return Finding(check, message, one.rule, one.key, one.line, one.t0, units)


def _quantile(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
