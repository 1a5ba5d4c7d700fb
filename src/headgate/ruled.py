"""What both limiters share about rules: which are current, what to ask the engine, and what to say if it cannot answer.

A request becomes one question to the engine, for all rules together, so a request that one rule denies is charged by
none. Three cases have no engine's answer that could be handed on as it is:

- **No rule applies.** The request passes, and `limited` is false: there is no limit that any number could speak of.
- **Only shadows apply.** The same, with the shadows' answers in `rules`: whatever they say, nobody is denied.
- **The engine fails.** Rules say what happens then (`on_error`), and the limiter's own `on_error` speaks for those that do
  not. One that says closed denies; else one that says raise raises; else the request passes. The decision says so in
  `source` and `degraded`. What is left is not known, and told as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from .charge import Charge, Kind, Request as Asked
from .decision import NO_LIMIT, UNLIMITED, Context, Decision
from .engines.base import combined
from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from .algorithms import Answer, Limit
    from .errors import EngineError
    from .rules.explain import Trace
    from .rules.match import Rulebook
    from .rules.model import RuleSet
    from .rules.request import Request

OnError: TypeAlias = Literal["raise", "open", "closed"]
"""What a limiter does when its engine fails and a rule does not say."""

OnFailure: TypeAlias = "Callable[[EngineError], None]"
"""Told about each failure of the engine that rules have an answer to."""

CLOSED_RETRY_US: Final = 1_000_000
"""When to come back after a denial that only says that the engine is away."""

UNMATCHED: Final = Decision("", NO_LIMIT, UNLIMITED, Context())
"""The answer to a request that no rule is about."""

MAX_BOUND: Final = 10_000
"""How many pairs of rule and limit a limiter remembers how to count."""

H = TypeVar("H")


@runtime_checkable
class CurrentRules(Protocol):
    """Rules that may be others tomorrow."""

    @property
    def current(self) -> Rulebook:
        """Those that hold now."""

    def close(self) -> None:
        """Stop following whatever they come from."""


RulesLike: TypeAlias = "str | PathLike[str] | RuleSet | Rulebook | CurrentRules"
"""What a limiter takes as rules: a file, the URL of a source, or rules that were read already."""


def open_rules(rules: RulesLike) -> tuple[CurrentRules, bool]:
    """The rules, and whether whoever asked has to close them."""
    if isinstance(rules, CurrentRules):
        return rules, False
    from .rules.opening import open_rules  # noqa: PLC0415 - following needs more than deciding does

    return open_rules(rules), True


class Question(NamedTuple, Generic[H]):
    """What the engine is to be asked about one request."""

    charges: tuple[Charge, ...]
    hit: H | None
    """The engine's fast path, where there is one limit to ask."""

    @property
    def request(self) -> Asked:
        """All charges together."""
        return Asked(self.charges)


class Ruled(Generic[H]):
    """A limiter's rules, and how its engine counts for each of them. `bind` is the engine's."""

    def __init__(
        self,
        rules: RulesLike | None,
        on_error: OnError,
        bind: Callable[[Limit, str | None], H],
        on_failure: OnFailure | None = None,
    ) -> None:
        if on_error not in {"raise", "open", "closed"}:
            raise UsageError(f"on_error is 'raise', 'open' or 'closed', not {on_error!r}")
        self._on_error = on_error
        self._bind = bind
        self._on_failure = on_failure
        self._rules: CurrentRules | None = None
        self.owned = False
        """Whether the rules were opened here, and have to be closed."""
        if rules is not None:
            self._rules, self.owned = open_rules(rules)
        self._bound: dict[tuple[str | None, int], tuple[tuple[Limit, ...], H]] = {}

    @property
    def version(self) -> str | None:
        """Names the rules that hold now."""
        return None if self._rules is None else self._rules.current.version

    @property
    def current(self) -> Rulebook:
        """The rules that hold now."""
        if self._rules is None:
            raise UsageError(
                "this limiter has no rules; make it with Limiter(rules='rules.yaml'), or ask hit()"
            )
        return self._rules.current

    def close(self) -> None:
        """Stop following the rules, if they were opened here."""
        if self._rules is not None and self.owned:
            self._rules.close()

    def question(self, request: Request) -> Question[H] | None:
        """What to ask about this request; nothing if no rule is about it."""
        charges = self.current.charges(request)
        if not charges:
            return None
        hit = None
        if len(charges) == 1:
            (charge,) = charges
            if charge.kind is Kind.TAKE and len(charge.limits) == 1:
                hit = self._hit(charge)
        return Question(charges, hit)

    def _hit(self, charge: Charge) -> H:
        """How to count for one rule and limit. Nothing here holds on to a rulebook, so an old one can go at once."""
        known_by = (
            charge.rule,
            id(charge.limits),
        )  # They are kept beside it, so nobody else is called that.
        known = self._bound.get(known_by)
        if known is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            known = self._bound[known_by] = (
                charge.limits,
                self._bind(charge.limits[0], charge.rule),
            )
        return known[1]

    def failed(self, question: Question[H], error: EngineError) -> Decision:
        """The answer when the engine has none; raises `error` where that is what was asked for."""
        if self._on_failure is not None:
            self._on_failure(error)
        says = {
            charge.rule: self._when_failed(charge.rule or "")
            for charge in question.charges
            if charge.kind is Kind.TAKE
        }
        if "raise" in says.values() and "closed" not in says.values():
            raise error
        decisions = [
            decision
            for charge in question.charges
            for decision in _without_engine(charge, says.get(charge.rule, "open"))
        ]
        return combined(decisions) if says else shadows_only(decisions)

    def _when_failed(self, rule_id: str) -> OnError:
        """What a rule says now; it may have gone since the engine was asked."""
        rule = self.current.by_id.get(rule_id)
        return self._on_error if rule is None or rule.on_error is None else rule.on_error


def _without_engine(charge: Charge, on_error: OnError) -> list[Decision]:
    """What one charge is answered when nobody was asked."""
    closed = on_error != "open"
    answer: Answer = (False, 0, CLOSED_RETRY_US, 0, 0) if closed else (True, 0, 0, 0, 0)
    source: Any = "shadow" if charge.kind is Kind.SHADOW else "closed" if closed else "open"
    return [
        Decision(charge.key, limit, answer, Context(source, degraded=True, rule=charge.rule))
        for limit in charge.limits
    ]


def enforced(decision: Decision) -> Decision:
    """The engine's answer, with shadows kept from speaking for the request."""
    if decision.context[0] != "shadow":
        return decision
    return shadows_only(decision.several or (decision,))


def shadows_only(decisions: Sequence[Decision]) -> Decision:
    """The request passes, whatever these say."""
    degraded = any(one.degraded for one in decisions)
    context = Context(degraded=degraded)
    return Decision(decisions[0].key, NO_LIMIT, UNLIMITED, context, tuple(decisions))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request is decided as it is, and what every rule would say to it now."""

    trace: Trace
    answers: tuple[Decision, ...]
    """What each limit that applies would answer now, in the order of the trace; nothing was taken."""

    @property
    def allowed(self) -> bool:
        """Whether the request would pass now."""
        return self.passes_after == 0

    @property
    def passes_after(self) -> float:
        """Seconds until it would pass if nobody else came: 0 for now, `math.inf` for never."""
        enforced = {step.rule.rule_id for step in self.trace.steps if step.outcome == "enforced"}
        return max(
            (one.retry_after for one in self.answers if one.rule in enforced and not one), default=0
        )

    def of(self, rule_id: str) -> tuple[Decision, ...]:
        """What the limits of one rule would answer."""
        return tuple(answer for answer in self.answers if answer.rule == rule_id)


def peeks(trace: Trace) -> Asked | None:
    """What to ask the engine for an explanation: everything that applies, taking nothing."""
    charges = tuple(charge.of_kind(Kind.PEEK) for charge in trace.charges)
    return Asked(charges) if charges else None


def explained(trace: Trace, decision: Decision | None) -> Explanation:
    """The trace with the engine's answers to `peeks`; those of shadows say that they are."""
    shadows = {step.rule.rule_id for step in trace.steps if step.outcome == "shadow"}
    answers = () if decision is None else decision.rules
    return Explanation(
        trace, tuple(_of_shadow(one) if one.rule in shadows else one for one in answers)
    )


def _of_shadow(decision: Decision) -> Decision:
    context = decision.context._replace(source="shadow")
    return Decision(decision.key, decision.limited_by, decision.answer, context)
