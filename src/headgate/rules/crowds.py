"""Crowds: more rules for one request than an engine decides in one go.

Where it is certain that some requests meet such a crowd, the rules are refused when they are read. Certain is what is plain
to see: rules that ask for nothing but the same path and methods, or for less, and that are enforced for whatever they match.
A crowd that nobody saw coming denies its requests (`counting.fitting`): a rule that is not asked must not let anybody pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from ..charge import MAX_STEPS
from .advice import is_always_enforced
from .pacing import spaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .model import Rule

MAX_LOOKS: Final = 100
TOO_MANY: Final = f"one request asks at most {MAX_STEPS} limits"

Place: TypeAlias = tuple[str | None, frozenset[str]]
"""A path pattern and methods; nothing stands for all of them."""


def first_crowd(rules: Sequence[Rule], pause: Callable[[], None]) -> list[Rule]:
    """Rules that certainly apply together and are too many, the one that finds no place last; none if there are none."""
    if not _may_be_crowded(rules, pause):
        return []
    sizes: Counter[Place] = Counter()
    for rule in spaced(rules, pause):
        if _is_certain(rule):
            sizes[_place(rule)] += _size(rule)
    around = (
        {place, (place[0], frozenset()), (None, place[1]), (None, frozenset())} for place in sizes
    )
    crowded = (places for places in around if sum(sizes[one] for one in places) > MAX_STEPS)
    for places in islice(crowded, MAX_LOOKS):
        crowd = _crowd(rules, places)
        pause()
        if crowd:
            return crowd
    return []


def _may_be_crowded(rules: Sequence[Rule], pause: Callable[[], None]) -> bool:
    """A quick look at paths alone, which is enough for most sets."""
    sizes: dict[str | None, int] = defaultdict(int)
    for rule in spaced(rules, pause):
        sizes[rule.match.path_pattern] += len(rule.limits)
    anywhere = sizes.pop(None, 0)
    return anywhere + max(sizes.values(), default=0) > MAX_STEPS


def _crowd(rules: Sequence[Rule], places: set[Place]) -> list[Rule]:
    crowd: list[Rule] = []
    steps = 0
    for rule in rules:
        if _is_certain(rule) and _place(rule) in places:
            crowd.append(rule)
            steps += _size(rule)
            if steps > MAX_STEPS:
                return crowd
        if rule.stop and rule.enabled and not rule.shadow:
            break  # Those behind it may never be asked.
    return []


def _is_certain(rule: Rule) -> bool:
    """Whether the rule is enforced for all requests of its place."""
    match = rule.match
    asks_more = (
        match.hosts
        or match.headers
        or match.ip_ranges
        or match.requires_authentication
        or match.descriptors
    )
    return not asks_more and rule.enabled and is_always_enforced(rule)


def _place(rule: Rule) -> Place:
    return rule.match.path_pattern, rule.match.methods


def _size(rule: Rule) -> int:
    return min(map(len, (rule.limits, *rule.overrides.values())))
