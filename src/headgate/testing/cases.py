"""Run the test cases of a rules file: the real rulebook and the memory engine, on a clock that only cases move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clock import ManualClock
from ..engines.memory import MemoryEngine
from ..limiter import Limiter
from ..rules.matching.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..decision import Decision
    from ..rules.format.cases import CaseStep, RuleCase
    from ..rules.matching.explain import Trace
    from ..rules.model import RuleSet


@dataclass(frozen=True, slots=True)
class CaseMismatch:
    """One difference from what was expected."""

    field: str
    expected: Any
    got: Any


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step."""

    step: CaseStep
    at_us: int
    """How long after the case began."""
    hit: int
    """Which hit of the case it was, from 1."""
    differences: tuple[CaseMismatch, ...]
    decision: Decision
    trace: Trace


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case."""

    case: RuleCase
    steps: tuple[StepResult, ...]

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not any(step.differences for step in self.steps)


def run_cases(rules: RuleSet, cases: Iterable[RuleCase]) -> Iterator[CaseResult]:
    """Run every case on its own."""
    rulebook = Rulebook(rules)
    for case in cases:
        yield CaseResult(case, tuple(_steps(rulebook, case)))


def _steps(rulebook: Rulebook, case: RuleCase) -> Iterator[StepResult]:
    clock = ManualClock() if case.at_us is None else ManualClock(case.at_us / 1_000_000)
    began_us = clock.now_us()
    hits = 0
    with Limiter(MemoryEngine(clock=clock), rules=rulebook) as limiter:
        for step in case.steps:
            clock.advance(us=step.after_us)
            for _ in range(step.hits - 1):
                limiter.decide_request(step.request)
            decision = limiter.decide_request(step.request)
            hits += step.hits
            trace = rulebook.explain(step.request)
            found = tuple(_differences(step, decision, trace))
            yield StepResult(step, clock.now_us() - began_us, hits, found, decision, trace)


def _differences(step: CaseStep, decision: Decision, trace: Trace) -> Iterator[CaseMismatch]:
    got = {
        "matches": [one.rule.rule_id for one in trace.steps if one.applies],
        "allowed": decision.allowed,
        "denied_by": None if decision else decision.rule,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "key": decision.key,
        "shadow_denied_by": list(
            dict.fromkeys(one.rule for one in decision.rules if one.source == "shadow" and not one)
        ),
    }
    for field, expected in step.expected.items():
        if not _same(expected, got[field]):
            yield CaseMismatch(field, expected, got[field])


def _same(expected: Any, got: Any) -> bool:
    """Seconds are compared to the microsecond; everything else as it is."""
    if isinstance(expected, float) and isinstance(got, float) and math.isfinite(expected):
        return math.isfinite(got) and round(expected * 1_000_000) == round(got * 1_000_000)
    return bool(expected == got)
