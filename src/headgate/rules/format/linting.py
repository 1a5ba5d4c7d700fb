"""Warnings about a valid rule set: rules that never apply, and requests that no rule matches.

Only certain findings are reported. One pattern covers another only if that is obvious, so there are no false alarms;
and the search ends after `MAX_LOOKS` comparisons, so that ten thousand rules stay fast.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from ipaddress import collapse_addresses, ip_network
from typing import TYPE_CHECKING, Any, Final

from ..matching.path_patterns import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..matching.path_patterns import Piece
    from ..model import Match, Network, Rule

MAX_LOOKS: Final = 200_000
EVERY_ADDRESS: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
ANY: Final = ""
"""The index key of patterns whose first segment may be anything. No fixed segment is empty."""


@dataclass(frozen=True, slots=True)
class LintWarning:
    """A warning about one rule or, without one, about the whole set."""

    rule: Rule | None
    field: str
    message: str
    remedy: str


def lint(rules: Sequence[Rule], pause: Callable[[], None]) -> Iterator[LintWarning]:
    """Check rules in the order in which they are evaluated."""
    live = [rule for rule in rules if rule.enabled]
    if not live:
        yield LintWarning(None, "", "no rule is enabled", "no request is limited")
        return
    yield from _repeated(live, pause)
    yield from _unreachable(live, pause)
    if not any(_is_catch_all(rule) and _limits_for_certain(rule) for rule in live):
        yield from _uncovered(live, pause)
        remedy = "add a rule without `match`, so that every request has a limit"
        yield LintWarning(None, "", "no rule matches every request", remedy)


def _is_catch_all(rule: Rule) -> bool:
    match = rule.match
    anywhere = match.path_pattern is None or pieces_of(match.path_pattern) == (("any", ""),)
    return anywhere and not _has_conditions(replace(match, path_pattern=None))


def _has_conditions(match: Match) -> bool:
    return bool(
        match.path_pattern
        or match.methods
        or match.hosts
        or match.headers
        or match.ip_ranges
        or match.requires_authentication
        or match.descriptors
    )


def _repeated(rules: Iterable[Rule], pause: Callable[[], None]) -> Iterator[LintWarning]:
    first: dict[object, Rule] = {}
    for rule in rules:
        pause()
        before = first.setdefault((rule.match, rule.identifier), rule)
        if before is not rule:
            message = f"matches the same requests and has the same identifier as {before.rule_id!r}"
            yield LintWarning(
                rule, "match", message, "combine them into one rule with several `limits`"
            )


def _unreachable(rules: Iterable[Rule], pause: Callable[[], None]) -> Iterator[LintWarning]:
    stops = _Covers()
    for rule in rules:
        pause()
        before = stops.covering(rule)
        if before is not None:
            message = f"never applies: {before.rule_id!r} comes first and stops"
            yield LintWarning(rule, "priority", message, "give it a lower priority, or remove it")
        elif rule.stop and is_always_enforced(rule):
            stops.add(rule)


def _limits_for_certain(rule: Rule) -> bool:
    """Whether the rule limits everything it matches, except for deliberate exemptions; a shadow rule limits nothing."""
    return not rule.shadow and rule.enforce_percent == 100 and rule.on_missing != "skip"


def is_always_enforced(rule: Rule) -> bool:
    """Whether the rule is enforced for everything it matches; otherwise later rules may apply too."""
    return _limits_for_certain(rule) and not rule.exempt.values and not rule.exempt.matches


def exempts_everybody(rule: Rule) -> bool:
    """Whether the rule obviously exempts everything it matches."""
    exempt = rule.exempt
    if exempt.values and [part.kind for part in rule.identifier.parts] == ["global"]:
        return True
    ranges: list[Network] = []
    for match in exempt.matches:
        anywhere = replace(match, ip_ranges=())
        if _covers_path(anywhere, rule.match) and _covers_rest(anywhere, rule.match):
            if not match.ip_ranges:
                return True
            ranges += match.ip_ranges
    return bool(ranges) and _covers_ranges(ranges, rule.match.ip_ranges or EVERY_ADDRESS)


def _covers_ranges(wide: Sequence[Network], narrow: Sequence[Network]) -> bool:
    whole: list[Any] = []
    for version in (4, 6):
        same: list[Any] = [one for one in wide if one.version == version]
        whole += collapse_addresses(same)
    return all(
        any(one.version == other.version and one.subnet_of(other) for other in whole)
        for one in narrow
    )


def _uncovered(rules: Sequence[Rule], pause: Callable[[], None]) -> Iterator[LintWarning]:
    """Rules for authenticated requests that have no counterpart for the others."""
    others = _Covers()
    for rule in rules:
        if not rule.match.requires_authentication and _limits_for_certain(rule):
            others.add(rule)
    for rule in rules:
        pause()
        if rule.match.requires_authentication and others.covering(rule, path_only=True) is None:
            message = (
                "requires authentication, and no other rule covers its path for anonymous requests"
            )
            remedy = "add a rule for requests without a user id"
            yield LintWarning(rule, "match.requires_authentication", message, remedy)


class _Covers:
    """Rules that may cover others, indexed by the first segment of their path, so that few have to be compared."""

    def __init__(self) -> None:
        self._by_segment: dict[str, list[Rule]] = defaultdict(list)
        self._looks = 0

    def add(self, rule: Rule) -> None:
        self._by_segment[_first_segment(rule)].append(rule)

    def covering(self, rule: Rule, *, path_only: bool = False) -> Rule | None:
        """One of them that matches every request that `rule` matches."""
        for segment in {_first_segment(rule), ANY}:
            for other in self._by_segment.get(segment, ()):
                self._looks += 1
                if self._looks > MAX_LOOKS:
                    return None
                if _covers_path(other.match, rule.match) and (
                    path_only or _covers_rest(other.match, rule.match)
                ):
                    return other
        return None


def _first_segment(rule: Rule) -> str:
    pattern = rule.match.path_pattern
    pieces = pieces_of(pattern) if pattern is not None else ()
    return pieces[0].text if pieces and pieces[0].kind == "fixed" else ANY


def _covers_path(wide: Match, narrow: Match) -> bool:
    if wide.path_pattern is None:
        return True
    if narrow.path_pattern is None:
        return False
    return _covers_pieces(pieces_of(wide.path_pattern), pieces_of(narrow.path_pattern))


def _covers_pieces(wide: Sequence[Piece], narrow: Sequence[Piece]) -> bool:
    """Whether every path that matches `narrow` matches `wide`; true only if that is obvious."""
    for i, piece in enumerate(wide):
        if piece.kind == "any":
            return i == len(wide) - 1
        if i >= len(narrow):
            return False
        if piece.kind == "some":
            return any(one.kind != "any" for one in narrow[i:])
        if narrow[i].kind not in {"fixed", "one"}:
            return False
        if piece.kind == "fixed" and narrow[i] != piece:
            return False
    return len(wide) == len(narrow)


def _covers_rest(wide: Match, narrow: Match) -> bool:
    return (
        (not wide.methods or (bool(narrow.methods) and narrow.methods <= wide.methods))
        and (not wide.hosts or (bool(narrow.hosts) and set(narrow.hosts) <= set(wide.hosts)))
        and set(wide.headers) <= set(narrow.headers)
        and (
            not wide.ip_ranges
            or (bool(narrow.ip_ranges) and set(narrow.ip_ranges) <= set(wide.ip_ranges))
        )
        and (narrow.requires_authentication or not wide.requires_authentication)
        and set(wide.descriptors) <= set(narrow.descriptors)
    )
