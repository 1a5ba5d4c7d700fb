"""Traces: why each rule applies to a request, or does not, in words.

Every rule is asked, one after the other. That is slow, and it is the meaning of a rule set: what the rulebook finds quickly
is held to this by a test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..charge import MAX_STEPS, Charge, Kind
from ..rate import span_text
from .conditions import why_not
from .counting import Counting, bucket_of, cost_of, fitting
from .crowds import TOO_MANY
from .facts import Facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..algorithms import Limit
    from .identify import Identity
    from .model import Rule, RuleSet
    from .request import Request

Outcome: TypeAlias = Literal[
    "enforced", "shadow", "exempt", "skipped", "not matched", "stopped", "disabled", "left out"
]


@dataclass(frozen=True, slots=True)
class Step:
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
    refusal: str
    """Why it was; rules with a path pattern do not match then."""
    host: str | None
    address: str | None
    notes: tuple[str, ...]
    steps: tuple[Step, ...]
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
            "refused": self.refusal or None,
            "host": self.host,
            "ip": self.address,
            "notes": list(self.notes),
            "rules_version": self.version,
            "rules": [step.as_json() for step in self.steps],
        }


def explain(rules: RuleSet, request: Request) -> Trace:
    """Ask every rule about this request."""
    facts = Facts(request)
    return Trace(
        method=facts.method,
        path=facts.path,
        refusal=facts.refusal,
        host=facts.host,
        address=None if facts.address is None else facts.address.text,
        notes=tuple(_notes(facts)),
        steps=_placed(list(_steps(rules, facts))),
        version=rules.version,
    )


def _notes(facts: Facts) -> Iterator[str]:
    if facts.refusal:
        yield f"the path was refused, and only rules without a path pattern apply: {facts.refusal}"
    if facts.ip and facts.address is None:
        yield f"{facts.ip[:100]!r} is no address, and is taken as missing"


def _steps(rules: RuleSet, facts: Facts) -> Iterator[Step]:
    stopped_by = ""
    for rule in rules.rules:
        if not rule.enabled:
            yield Step(rule, "disabled", "it is not enabled")
            continue
        reason = why_not(rule.match, facts)
        if reason is not None:
            yield Step(rule, "not matched", reason)
            continue
        if stopped_by:
            yield Step(rule, "stopped", stopped_by)
            continue
        step = _matched(rule, facts)
        if step.outcome == "enforced" and rule.stop:
            stopped_by = f"the rule {rule.rule_id} stops here"
        yield step


def _placed(steps: list[Step]) -> tuple[Step, ...]:
    """The steps, as far as their charges can be asked in one go."""
    charges = [step.charge for step in steps if step.charge is not None]
    if sum(len(charge.limits) for charge in charges) <= MAX_STEPS:
        return tuple(steps)
    kept = {charge.rule: charge for charge in fitting(charges)}
    placed = []
    for step in steps:
        charge = kept.get(step.rule.rule_id)
        if step.charge is None or charge is step.charge:
            placed.append(step)
        elif charge is None:
            placed.append(Step(step.rule, "left out", TOO_MANY))
        else:
            why = f"{TOO_MANY}, and this rule has no place left: the request is denied"
            placed.append(replace(step, why=why, charge=charge))
    return tuple(placed)


def _matched(rule: Rule, facts: Facts) -> Step:
    """What a rule that matches does."""
    counting = Counting(rule)
    identity = counting.identify(facts)
    exempt = counting.why_exempt(facts, identity)
    if exempt is not None:
        return Step(rule, "exempt", exempt)
    if identity.missing and rule.on_missing == "skip":
        return Step(rule, "skipped", f"there is no {identity.missing}, and on_missing is skip")
    charge = counting.charge(facts)
    assert charge is not None
    notes = tuple(_assumed(rule, facts, identity))
    if charge.kind is Kind.SHADOW:
        return Step(rule, "shadow", _why_shadow(rule, charge.key), charge, notes)
    why = "all of its conditions hold"
    if rule.enforce_percent < 100:
        why += f"; the key stands at {bucket_of(rule, charge.key)} of 100, and below {rule.enforce_percent} the rule is enforced"
    return Step(rule, "enforced", why, charge, notes)


def _why_shadow(rule: Rule, key: str) -> str:
    if rule.shadow:
        return "it matches, and is a shadow: it counts, and denies nobody"
    return (
        f"it matches, but the key stands at {bucket_of(rule, key)} of 100, and only below "
        f"{rule.enforce_percent} the rule is enforced"
    )


def _assumed(rule: Rule, facts: Facts, identity: Identity) -> Iterator[str]:
    if identity.missing:
        instead = {
            "deny": "so it is denied",
            "share": "so it is counted with all others that have none",
        }.get(rule.on_missing, "so its address is counted")
        if rule.on_missing == "ip_address" and facts.address is None:
            instead = "nor an address, so it is counted with all others that have none"
        yield f"there is no {identity.missing}, {instead}"
    elif identity.value in rule.overrides:
        yield f"{identity.value!r} has limits of its own"
    if facts.cost is not None:
        yield f"the caller says that it costs {facts.cost}"
    elif note := cost_of(rule.cost, facts)[1]:
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
