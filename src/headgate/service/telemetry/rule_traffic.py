"""The traffic of rules with adaptive limits, reported once a second by the recorder to the algorithm selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...algorithms import Adaptive
from ...board.model import NONE_YET

if TYPE_CHECKING:
    from ...adaptive import AdaptiveControl
    from ...board.model import Totals
    from ...rules.model import Rule
    from .recorder import Recorder


class RuleTraffic:
    """Keeps the scopes of a control in step with the rules, and adds the recorder's counts to them."""

    def __init__(self, recorder: Recorder, control: AdaptiveControl, rules: Any) -> None:
        self._recorder = recorder
        self._control = control
        self._rules = rules
        self._version: str | None = None
        self._reported: dict[str, Totals] = {}
        self.adaptive: frozenset[str] = frozenset()
        """The rules with an adaptive limit."""

    def report(self) -> None:
        """Report what was counted since the last call."""
        self._follow_rules()
        if not self.adaptive:
            return
        totals = self._recorder.rule_totals()
        for rule in self.adaptive:
            counted, reported = totals.get(rule, NONE_YET), self._reported.get(rule, NONE_YET)
            scope = self._control.scope(rule)
            scope.requests += max(0, counted.requests - reported.requests)
            scope.denied += max(0, counted.denied - reported.denied)
            self._reported[rule] = counted

    def _follow_rules(self) -> None:
        current = None if self._rules is None else self._rules.current
        version = "" if current is None else str(current.version)
        if version == self._version:
            return
        self._version = version
        rules = () if current is None else current.rules
        self.adaptive = frozenset(rule.rule_id for rule in rules if is_adaptive(rule))
        self._reported = {
            rule: reported for rule, reported in self._reported.items() if rule in self.adaptive
        }
        self._control.keep_only(self.adaptive)


def is_adaptive(rule: Rule) -> bool:
    """Whether any limit of a rule is adaptive, including those for single values."""
    every = (rule.limits, *rule.overrides.values())
    return any(isinstance(limit, Adaptive) for limits in every for limit in limits)
