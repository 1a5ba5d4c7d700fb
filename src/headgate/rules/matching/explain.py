"""Traces: why each rule applies to a request, or does not, in words.

Every rule is tested, one after the other. This is slow, but it defines what a rule set means: a property test compares
the rulebook with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...charge import MAX_STEPS, Charge
from ...charge_kind import ChargeKind
from ...rate import span_text
from .charging import TOO_MANY, ChargeBuilder, bucket_of, cost_of, fitting
from .conditions import why_not
from .normalized_request import NormalizedRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...algorithms import Limit
    from ..model import Rule, RuleSet
    from ..request import Request
    from .identity import IdentifiedKey

Outcome: TypeAlias = Literal[
    "enforced", "shadow", "exempt", "skipped", "not matched", "stopped", "disabled", "left out"
]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """What one rule has to do with the request."""

    rule: Rule
    outcome: Outcome
    why: str
    """In words; for a rule that does not match, the first condition that does not hold."""
    charge: Charge | None = None
    """What it charges, if it applies."""
    notes: tuple[str, ...] = ()
    """What had to be assumed: a fallback identifier, a cost that was cut."""

    @property
    def applies(self) -> bool:
        """Whether the rule is asked when the request is decided."""
        return self.outcome in {"enforced", "shadow"}

    def as_json(self) -> dict[str, Any]:
        """The step as plain values."""
        step: dict[str, Any] = {
            "rule": self.rule.rule_id,
            "priority": self.rule.priority,
            "outcome": self.outcome,
            "why": self.why,
        }
        if self.charge is not None:
            step |= {
                "key": self.charge.key,
                "cost": self.charge.cost,
                "limits": [limit_text(limit) for limit in self.charge.limits],
            }
        return step | ({"notes": list(self.notes)} if self.notes else {})


@dataclass(frozen=True, slots=True)
class Trace:
    """How a rule set sees one request: its one spelling, and every rule in order."""

    method: str
    path: str | None
    """Canonical; `None` when it was refused."""
    others: tuple[str, ...]
    """What else the path may mean; a rule that matches any reading applies."""
    refusal: str
    """Why it was refused; rules with a path pattern do not match then."""
    host: str | None
    address: str | None
    notes: tuple[str, ...]
    steps: tuple[TraceStep, ...]
    version: str

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What the rules that apply charge, in order."""
        return tuple(step.charge for step in self.steps if step.applies and step.charge is not None)

    def as_json(self) -> dict[str, Any]:
        """The trace as plain values."""
        return {
            "method": self.method,
            "path": self.path,
            "also_read_as": list(self.others),
            "refused": self.refusal or None,
            "host": self.host,
            "ip": self.address,
            "notes": list(self.notes),
            "rules_version": self.version,
            "rules": [step.as_json() for step in self.steps],
        }


def explain(rules: RuleSet, request: Request) -> Trace:
    """Ask every rule about this request."""
    normalized = NormalizedRequest(request)
    return Trace(
        method=normalized.method,
        path=normalized.path,
        others=normalized.others,
        refusal=normalized.refusal,
        host=normalized.host,
        address=None if normalized.address is None else normalized.address.text,
        notes=tuple(_notes(normalized)),
        steps=_placed(list(_together([_steps(rules, one) for one in normalized.readings()]))),
        version=rules.version,
    )


def _notes(normalized: NormalizedRequest) -> Iterator[str]:
    if normalized.refusal:
        yield f"the path was refused, so the request is denied unless bad_paths is pass: {normalized.refusal}"
    for other in normalized.others:
        yield f"the path may also be read as {other}, and rules that match that apply too"
    if normalized.ip and normalized.address is None:
        yield f"{normalized.ip[:100]!r} is not an address, and counts as missing"


def _together(readings: Sequence[Iterable[TraceStep]]) -> Iterator[TraceStep]:
    """What each rule has to do with any reading of the path.

    Those that count it for somebody else come once for each.
    """
    for steps in zip(*readings, strict=True):
        applying: dict[str, TraceStep] = {}
        for step in steps:
            if step.charge is not None:
                applying.setdefault(step.charge.key, step)
        if applying:
            yield from applying.values()
        else:
            yield min(steps, key=lambda step: step.outcome == "not matched")


def _steps(rules: RuleSet, normalized: NormalizedRequest) -> Iterator[TraceStep]:
    stopped_by = ""
    for rule in rules.rules:
        if not rule.enabled:
            yield TraceStep(rule, "disabled", "it is not enabled")
            continue
        reason = why_not(rule.match, normalized)
        if reason is not None:
            yield TraceStep(rule, "not matched", reason)
            continue
        if stopped_by:
            yield TraceStep(rule, "stopped", stopped_by)
            continue
        step = _matched(rule, normalized)
        if step.outcome == "enforced" and rule.stop:
            stopped_by = f"the rule {rule.rule_id} stops here"
        yield step


def _placed(steps: list[TraceStep]) -> tuple[TraceStep, ...]:
    """The steps, as far as their charges can be asked in one go."""
    charges = [step.charge for step in steps if step.charge is not None]
    if sum(len(charge.limits) for charge in charges) <= MAX_STEPS:
        return tuple(steps)
    kept = {(charge.rule, charge.key): charge for charge in fitting(charges)}
    placed = []
    for step in steps:
        asked = step.charge
        charge = None if asked is None else kept.get((asked.rule, asked.key))
        if asked is None or charge is asked:
            placed.append(step)
        elif charge is None:
            placed.append(TraceStep(step.rule, "left out", TOO_MANY))
        else:
            why = f"{TOO_MANY}, and this rule has no place left: the request is denied"
            placed.append(replace(step, why=why, charge=charge))
    return tuple(placed)


def _matched(rule: Rule, normalized: NormalizedRequest) -> TraceStep:
    """What a rule that matches does."""
    builder = ChargeBuilder(rule)
    identity = builder.identify(normalized)
    exempt = builder.why_exempt(normalized, identity)
    if exempt is not None:
        return TraceStep(rule, "exempt", exempt)
    if identity.missing and rule.on_missing == "skip":
        return TraceStep(rule, "skipped", f"there is no {identity.missing}, and on_missing is skip")
    charge = builder.charge(normalized)
    assert charge is not None
    notes = tuple(_assumed(rule, normalized, identity))
    if charge.kind is ChargeKind.SHADOW:
        return TraceStep(rule, "shadow", _why_shadow(rule, charge.key), charge, notes)
    why = "all of its conditions hold"
    if rule.enforce_percent < 100:
        at = bucket_of(rule, charge.key)
        why += f"; the key is at {at} of 100, and below {rule.enforce_percent} the rule is enforced"
    return TraceStep(rule, "enforced", why, charge, notes)


def _why_shadow(rule: Rule, key: str) -> str:
    if rule.shadow:
        return "it matches, and is a shadow: it counts but never denies"
    return (
        f"it matches, but the key is at {bucket_of(rule, key)} of 100, and only below "
        f"{rule.enforce_percent} the rule is enforced"
    )


def _assumed(rule: Rule, normalized: NormalizedRequest, identity: IdentifiedKey) -> Iterator[str]:
    if identity.missing:
        instead = {
            "deny": "so it is denied",
            "share": "so it is counted with all others that have none",
        }.get(rule.on_missing, "so its address is counted")
        if rule.on_missing == "ip_address" and normalized.address is None:
            instead = "nor an address, so it is counted with all others that have none"
        yield f"there is no {identity.missing}, {instead}"
    elif identity.value in rule.overrides:
        yield f"{identity.value!r} has its own limits"
    if normalized.cost is not None:
        yield f"the caller says that it costs {normalized.cost}"
    elif note := cost_of(rule.cost, normalized).note:
        yield note


def limit_text(limit: Limit) -> str:
    """A limit as one would write it, and how it is counted."""
    if limit.window_us == 0:
        return f"{limit.limit} ({limit.name})"
    burst = getattr(limit, "burst", limit.limit)
    more = f" burst {burst}" if burst != limit.limit else ""
    calendar = getattr(limit, "calendar", None)
    window = f"calendar {calendar.period}" if calendar is not None else span_text(limit.window_us)
    return f"{limit.limit}/{window}{more} ({limit.name})"
