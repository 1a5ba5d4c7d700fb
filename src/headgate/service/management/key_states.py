"""The states that a key can have: for inspection and for reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..http.problems import NOT_FOUND, ProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ...rules.model import Rule
    from ..node import Node

States: TypeAlias = "list[tuple[str | None, Limit]]"
"""Pairs of rule (or `None`) and limit, which identify the states of a key."""


def rule_named(node: Node, rule_id: str) -> Rule:
    """The rule of this name."""
    rules: Sequence[Rule] = () if node.rules is None else node.rules.rules
    for rule in rules:
        if rule.rule_id == rule_id:
            return rule
    raise ProblemError(NOT_FOUND, "there is no such rule")


def limits_of_rule(node: Node, rule_id: str) -> list[Limit]:
    """All limits of a rule, including those of single values and keys."""
    rule = rule_named(node, rule_id)
    own = node.board.view.rule_limits.get(rule_id, {})
    of_values = (one for limits in rule.overrides.values() for one in limits)
    return [*rule.limits, *of_values, *own.values()]


def limits_for(node: Node, rule: Rule, key: str) -> Sequence[Limit]:
    """The limits by which a rule counts a key: an override, or the rule's own."""
    own = node.board.view.rule_limits.get(rule.rule_id, {}).get(key)
    return rule.overrides.get(key, rule.limits) if own is None else (own,)


def known_states(node: Node, key: str) -> States:
    """The states of a key that this node knows: by default, by its own limit, by rules."""
    own = node.board.view.limits.get(key)
    known: States = [(None, node.default_limit), *([] if own is None else [(None, own)])]
    for rule in () if node.rules is None else node.rules.rules:
        written = rule.overrides.get(key, rule.limits)
        limits = {limit.identity: limit for limit in (*written, *limits_for(node, rule, key))}
        known += [(rule.rule_id, limit) for limit in limits.values()]
    return known
