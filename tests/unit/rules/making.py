"""Rules for tests, in few words."""

from __future__ import annotations

from typing import Any

from headgate.algorithms import FixedWindow, Limit
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.model import Identifier, IdentifierPart, Match, Rule, RuleSet

MINUTE_US = 60_000_000


def per_minute(limit: int) -> tuple[Limit, ...]:
    return (FixedWindow(limit, MINUTE_US),)


def identifier(*kinds: str, joined: bool = False) -> Identifier:
    """`identifier("user_id", "header:x-team")`; a word after `=` is a fixed text."""
    parts = []
    for kind in kinds:
        before, _, name = kind.replace("/", ":").partition(":")
        written: Any = "text" if kind.startswith("=") else before
        parts.append(IdentifierPart(kind=written, name=kind[1:] if kind.startswith("=") else name))
    return Identifier(parts=tuple(parts), joined=joined)


def rule(
    rule_id: str = "rule",
    limit: int = 10,
    *,
    by: str | Identifier = "ip_address",
    path: str | None = None,
    match: Match | None = None,
    **more: Any,
) -> Rule:
    return Rule(
        rule_id=rule_id,
        identifier=identifier(by) if isinstance(by, str) else by,
        limits=more.pop("limits", per_minute(limit)),
        match=match or Match(path_pattern=path),
        **more,
    )


def rulebook(*rules: Rule) -> Rulebook:
    return Rulebook(rule_set(*rules))


def rule_set(*rules: Rule, version: str = "v1") -> RuleSet:
    return RuleSet(tuple(sorted(rules, key=lambda rule: rule.priority)), version)
