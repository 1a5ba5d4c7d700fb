"""The terms of a run: what is asked of it besides the promise, what was measured, and which terms it missed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STRAY_PER_MILLE: Final = 1_000
"""Until a fault is mended, any number of answers may come without the store, for a busy machine misses 25 ms now and
then. They are counted, and each adds its own cost to what is allowed, and no more."""
RUN_LATE_PER_MILLE: Final = 10
"""So many answers of a single run may be late; a fault's runs together must keep to the fault's terms."""


@dataclass(frozen=True)
class FaultTerms:
    """What is asked of every run of a fault."""

    late_per_mille: int | None = 1
    """How many answers in a thousand may be late, over all runs of the fault; none if that cannot be asked."""
    recovery_s: float = 1.0
    """How soon after the fault is mended the store must decide again."""
    settled_per_mille: int = 5
    """How many answers in a thousand may come without the store after that: a slow one, and those that wait for it."""
    all_answered: bool = False
    """Whether every request must be answered, also while the fault lasts."""
    why: str = ""
    """Why these are not the usual terms."""


USUAL: Final = FaultTerms()


@dataclass
class FaultFigures:
    """What was measured in one run."""

    fault: str
    words: str
    seed: int
    terms: FaultTerms
    holds: bool
    """Whether the promise was kept."""
    violations: dict[str, int]
    findings: list[str]
    operations: int
    sources: dict[str, int]
    failed: int
    unknown: int
    strays: int
    over_limit: int
    bound: int
    over_bound: int
    answers: int
    late: int
    worst_ms: float
    left_after_ms: float | None
    """From the beginning of the fault to the first answer without the store; none if there was no such answer."""
    back_after_ms: float
    """From when it was mended until 19 of 20 answers in a row were the store's."""
    settled: int
    """Requests after everything had its time to recover."""
    unanswered: int
    """Those of them that nobody decided."""
    crashes: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """What must not be, on any machine."""
        return list(_broken(self))

    @property
    def too_late(self) -> list[str]:
        """Whether more answers were late than a single run may have."""
        if self.terms.late_per_mille is None:
            return []
        most = max(self.terms.late_per_mille, RUN_LATE_PER_MILLE)
        return _lateness([self], most)

    @property
    def missed(self) -> list[str]:
        """Every term that this run missed, in words."""
        return self.broken + self.too_late

    @property
    def verdict(self) -> str:
        """One word: `BROKEN`, `LATE` (of which a busy machine can also be the cause), or `holds`."""
        if self.broken:
            return "BROKEN"
        return "LATE" if self.too_late else "holds"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict, "missed": self.missed}


def _broken(run: FaultFigures) -> Iterator[str]:
    if not run.holds:
        yield f"promise: {run.violations or run.findings}"
    for crash in run.crashes:
        yield f"crash: {crash}"
    most_ms = run.terms.recovery_s * 1_000
    if run.back_after_ms > most_ms:
        yield f"recovery: back after {run.back_after_ms:.0f} ms, of {most_ms:.0f}"
    if not run.settled:
        yield "recovery: nobody asked after it"
    elif run.unanswered * 1_000 > run.settled * run.terms.settled_per_mille:
        yield f"recovery: {run.unanswered} of {run.settled} requests after it were not decided"
    if run.terms.all_answered and run.failed + run.unknown:
        yield f"answers: {run.failed} requests failed, and of {run.unknown} nothing is known"


def _lateness(runs: list[FaultFigures], per_mille: int) -> list[str]:
    late, answers = sum(one.late for one in runs), sum(one.answers for one in runs)
    if late * 1_000 <= answers * per_mille:
        return []
    return [f"late: {late} of {answers} answers, at most {per_mille} in 1,000"]


def late_faults(results: Iterable[FaultFigures]) -> dict[str, str]:
    """Faults with more late answers in all their runs together than their terms allow, and how many."""
    found = {}
    ordered = sorted(results, key=lambda one: one.fault)
    for number, group in groupby(ordered, key=lambda one: one.fault):
        runs = list(group)
        per_mille = runs[0].terms.late_per_mille
        if per_mille is not None and (words := _lateness(runs, per_mille)):
            found[number] = words[0]
    return found


def exit_code(results: list[FaultFigures], not_done: int) -> int:
    """1 if any run missed a term or was not carried out, or a fault had too many late answers."""
    return int(bool(not_done or any(one.missed for one in results) or late_faults(results)))
