"""What both limiters share about rules: the current rules, the requests to the engine, and the special answers.

A request becomes one call to the engine, for all rules together, so if one rule denies it, none is charged. In three
cases the engine's answer cannot be returned as it is:

- **The path is invalid**: it has control characters or broken escapes. The request is always denied, unless the limiter
  was told to `pass` such requests to the rules without a path pattern.
- **No rule applies.** The request passes, and `limited` is false: there is no limit to report.
- **Only shadows apply.** The same, with the shadows' answers in `rules`: they never deny.

If the engine fails, a guard answers (`guards/fallback.py`), for rules as for everything else; it reads the rule's
`on_error` here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Final,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from .algorithms import NEVER
from .charge import Charge, ChargeSet as Asked
from .charge_kind import ChargeKind
from .decision import NO_LIMIT, UNLIMITED, Context, Decision
from .errors import ConfigError, UsageError
from .regions.model import require_modes
from .rules.matching.paths import BadPathError
from .rules.model import ON_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from .algorithms import Limit
    from .errors import EngineError
    from .regions.model import Regions
    from .rules.matching.explain import Trace
    from .rules.matching.rulebook import BadPaths, Rulebook
    from .rules.model import OnError, RuleSet
    from .rules.request import Request

Refuses: TypeAlias = "Callable[[Limit], str | None]"
"""Why an engine cannot keep a limit."""

OnFailure: TypeAlias = "Callable[[EngineError], None]"
"""Called with each engine error."""

UNMATCHED: Final = Decision("", NO_LIMIT, UNLIMITED, Context())
"""The answer to a request that no rule matches."""

BAD_PATH: Final = Decision("", NO_LIMIT, (False, 0, NEVER, 0, 0), Context("closed"))
"""The answer to a request with an invalid path."""

MAX_BOUND: Final = 10_000
"""How many pairs of rule and limit a limiter caches."""

H = TypeVar("H")


@runtime_checkable
class CurrentRules(Protocol):
    """Rules that may change over time."""

    @property
    def current(self) -> Rulebook:
        """The rules in force."""

    def close(self) -> None:
        """Stop following their source."""


RulesLike: TypeAlias = "str | PathLike[str] | RuleSet | Rulebook | CurrentRules"
"""What a limiter accepts as rules: a file, the URL of a source, or parsed rules."""


def require_countable(regions: Regions | None, refuses: Refuses | None, rules: RuleSet) -> None:
    """Refuse rules whose consistency is not possible here, or that the engine cannot store."""
    require_modes(regions, rules)
    if refuses is None:
        return
    for rule in rules:
        for limit in rule.limits:
            problem = refuses(limit)
            if problem is not None:
                raise ConfigError(f"the rule {rule.rule_id!r}: {problem}")


def open_rules(
    rules: RulesLike, regions: Regions | None, refuses: Refuses | None
) -> tuple[CurrentRules, bool]:
    """The rules, and whether the caller has to close them."""
    if isinstance(rules, CurrentRules):
        return rules, False
    from .rules.live.opening import open_rules  # noqa: PLC0415 - following needs more than deciding does

    return open_rules(rules, require=partial(require_countable, regions, refuses)), True


class RuleQuestion(NamedTuple, Generic[H]):
    """The call to the engine for one request."""

    charges: tuple[Charge, ...]
    hit: H | None
    """The engine's fast path, if there is only one limit."""

    @property
    def request(self) -> Asked:
        """All charges together."""
        return Asked(self.charges)


class RuleDecider(Generic[H]):
    """A limiter's rules, and how its engine counts for each of them."""

    def __init__(
        self,
        rules: RulesLike | None,
        on_error: OnError,
        bad_paths: BadPaths = "deny",
        regions: Regions | None = None,
        refuses: Refuses | None = None,
    ) -> None:
        if bad_paths not in {"deny", "pass"}:
            raise UsageError(f"bad_paths must be 'deny' or 'pass', not {bad_paths!r}")
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}")
        self._bad_paths: BadPaths = bad_paths
        self._on_error = on_error
        self.bind: Callable[[Limit, str | None], H]
        """The engine's; known when that has been opened."""
        self._rules: CurrentRules | None = None
        self.owned = False
        """Whether the rules were opened here, and have to be closed."""
        if rules is not None:
            self._rules, self.owned = open_rules(rules, regions, refuses)
        self._bound: dict[tuple[str | None, int], tuple[tuple[Limit, ...], H]] = {}

    def keeps_share(self, rule_id: str | None) -> bool:
        """Whether a rule goes on with its region's share while another region cannot be reached."""
        if self._rules is None or rule_id is None:
            return False
        rule = self._rules.current.by_id.get(rule_id)
        return rule is not None and rule.when_cut_off == "share"

    @property
    def version(self) -> str | None:
        """The version of the rules in force."""
        return None if self._rules is None else self._rules.current.version

    @property
    def current(self) -> Rulebook:
        """The rules in force."""
        if self._rules is None:
            raise UsageError(
                "this limiter has no rules; create it with Limiter(rules='rules.yaml'), or use hit()"
            )
        return self._rules.current

    def close(self) -> None:
        """Stop following the rules, if they were opened here."""
        if self._rules is not None and self.owned:
            self._rules.close()

    def question(self, request: Request) -> RuleQuestion[H] | Decision:
        """The call to the engine for this request, or the decision if none is needed."""
        try:
            charges = self.current.charges(request, bad_paths=self._bad_paths)
        except BadPathError:
            return BAD_PATH
        if not charges:
            return UNMATCHED
        hit = None
        if len(charges) == 1:
            (charge,) = charges
            if charge.kind is ChargeKind.TAKE and len(charge.limits) == 1:
                hit = self._hit(charge)
        return RuleQuestion(charges, hit)

    def _hit(self, charge: Charge) -> H:
        """How to count for one rule and limit. Nothing here holds on to a rulebook, so an old one can go at once."""
        known_by = (
            charge.rule,
            id(charge.limits),
        )  # They are kept with it, so no other object has this id.
        known = self._bound.get(known_by)
        if known is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            known = self._bound[known_by] = (
                charge.limits,
                self.bind(charge.limits[0], charge.rule),
            )
        return known[1]

    def explained(self, trace: Trace, decision: Decision | None) -> Explanation:
        """The trace with the engine's answers to `peeks`; those of shadows are marked."""
        shadows = _asked(trace, "shadow")
        answers = () if decision is None else decision.rules
        return Explanation(
            trace,
            tuple(_of_shadow(one) if (one.rule, one.key) in shadows else one for one in answers),
            (trace.refusal or None) if self._bad_paths == "deny" else None,
        )

    def on_error(self, rule_id: str | None) -> OnError:
        """The `on_error` of a rule; also of a rule that was removed since, and without a rule."""
        if rule_id is None or self._rules is None:
            return self._on_error
        rule = self._rules.current.by_id.get(rule_id)
        return self._on_error if rule is None or rule.on_error is None else rule.on_error


def enforced(decision: Decision) -> Decision:
    """The engine's answer, in which shadows do not decide."""
    if decision.context[0] != "shadow":
        return decision
    return shadows_only(decision.several or (decision,))


def shadows_only(decisions: Sequence[Decision]) -> Decision:
    """The request passes, whatever these answers are."""
    degraded = any(one.degraded for one in decisions)
    context = Context(degraded=degraded)
    return Decision(decisions[0].key, NO_LIMIT, UNLIMITED, context, tuple(decisions))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request is decided as it is, and what every rule would answer now."""

    trace: Trace
    answers: tuple[Decision, ...]
    """What each limit that applies would answer now, in the order of the trace; nothing was taken."""
    refused: str | None = None
    """Why it is denied whatever they answer: its path is invalid."""

    @property
    def allowed(self) -> bool:
        """Whether the request would pass now."""
        return self.passes_after == 0

    @property
    def passes_after(self) -> float:
        """Seconds until it would pass without other traffic: 0 for now, `math.inf` for never."""
        if self.refused is not None:
            return math.inf
        enforced = _asked(self.trace, "enforced")
        return max(
            (
                one.retry_after
                for one in self.answers
                if (one.rule, one.key) in enforced and not one
            ),
            default=0,
        )

    def of(self, rule_id: str) -> tuple[Decision, ...]:
        """What the limits of one rule would answer."""
        return tuple(answer for answer in self.answers if answer.rule == rule_id)


def peeks(trace: Trace) -> Asked | None:
    """The peeks for an explanation: everything that applies, taking nothing."""
    charges = tuple(charge.of_kind(ChargeKind.PEEK) for charge in trace.charges)
    return Asked(charges) if charges else None


def _asked(trace: Trace, outcome: str) -> set[tuple[str | None, str]]:
    """Which rules have this outcome, and their keys."""
    charges = [step.charge for step in trace.steps if step.outcome == outcome]
    return {(charge.rule, charge.key) for charge in charges if charge is not None}


def _of_shadow(decision: Decision) -> Decision:
    context = decision.context._replace(source="shadow")
    return Decision(decision.key, decision.limited_by, decision.answer, context)
