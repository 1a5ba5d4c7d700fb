"""Too many rules for one request: more than an engine can decide in one call.

If some requests certainly match that many rules, the rule set is refused when it is read. That is certain for rules
without conditions besides path and methods that are always enforced. If it was not foreseen, such a request is denied
(`charging.fitting`): a rule that cannot be checked must not let a request pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ...charge import MAX_STEPS
from ..pacing import with_pauses
from .linting import is_always_enforced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..model import Rule

MAX_LOOKS: Final = 100


class RulePlace(NamedTuple):
    """Where a rule applies; an empty field means everywhere."""

    path_pattern: str | None
    methods: frozenset[str]


ALL_METHODS: Final[frozenset[str]] = frozenset()


def first_overlap(rules: Sequence[Rule], pause: Callable[[], None]) -> list[Rule]:
    """Rules that certainly apply together and are too many, ending with the first that does not fit.

    Empty if there are none.
    """
    for places in _dense_places(rules, pause):
        overlapping, overflow = _split_by_room(rules, places)
        pause()
        if overflow:
            return [*overlapping, overflow[0]]
    return []


def overflowing(rules: Sequence[Rule], pause: Callable[[], None]) -> list[Rule]:
    """All rules of the first such group that do not fit."""
    for places in _dense_places(rules, pause):
        _, overflow = _split_by_room(rules, places)
        pause()
        if overflow:
            return overflow
    return []


def _dense_places(rules: Sequence[Rule], pause: Callable[[], None]) -> Iterator[set[RulePlace]]:
    """Places that one request may match, where many rules apply."""
    if not _may_overlap(rules, pause):
        return
    sizes: Counter[RulePlace] = Counter()
    for rule in with_pauses(rules, pause):
        if _is_certain(rule):
            sizes[_place(rule)] += _size(rule)
    around = (
        {
            place,
            RulePlace(place.path_pattern, ALL_METHODS),
            RulePlace(None, place.methods),
            RulePlace(None, ALL_METHODS),
        }
        for place in sizes
    )
    crowded = (places for places in around if sum(sizes[one] for one in places) > MAX_STEPS)
    yield from islice(crowded, MAX_LOOKS)


def _may_overlap(rules: Sequence[Rule], pause: Callable[[], None]) -> bool:
    """A quick check by path alone, which is enough for most sets."""
    sizes: dict[str | None, int] = defaultdict(int)
    for rule in with_pauses(rules, pause):
        sizes[rule.match.path_pattern] += len(rule.limits)
    anywhere = sizes.pop(None, 0)
    return anywhere + max(sizes.values(), default=0) > MAX_STEPS


def _split_by_room(rules: Sequence[Rule], places: set[RulePlace]) -> tuple[list[Rule], list[Rule]]:
    """The rules that fit, and those that do not."""
    overlapping: list[Rule] = []
    overflow: list[Rule] = []
    steps = 0
    for rule in rules:
        if _is_certain(rule) and _place(rule) in places:
            if steps + _size(rule) > MAX_STEPS:
                overflow.append(rule)
            else:
                overlapping.append(rule)
                steps += _size(rule)
        if rule.stop and rule.enabled and not rule.shadow:
            break  # Later rules may never be reached.
    return overlapping, overflow


def _is_certain(rule: Rule) -> bool:
    """Whether the rule is enforced for all requests at its place."""
    match = rule.match
    asks_more = (
        match.hosts
        or match.headers
        or match.ip_ranges
        or match.requires_authentication
        or match.descriptors
    )
    return not asks_more and rule.enabled and is_always_enforced(rule)


def _place(rule: Rule) -> RulePlace:
    return RulePlace(rule.match.path_pattern, rule.match.methods)


def _size(rule: Rule) -> int:
    return min(map(len, (rule.limits, *rule.overrides.values())))
