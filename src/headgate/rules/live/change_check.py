"""The change check: finds changes so large that they look like a mistake. Pure.

The check runs when rules are pushed, and can be overridden. A node that follows its source runs it too, but only to
raise an alarm: nodes that did not follow their source would disagree. A rule that is disabled, becomes a shadow or
exempts everything counts as removed. A limit is raised by its rate, by its burst, and for each value with an
override.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

from ...errors import ConfigError
from ..format.linting import exempts_everybody
from ..pacing import no_pause, with_pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...algorithms import Limit
    from ..model import Rule, RuleSet

    Limits: TypeAlias = tuple[Limit, ...]

RAISED: Final = 100
"""A limit that is raised by this factor at once is suspicious."""
SHOWN: Final = 3

Ratio: TypeAlias = tuple[int, int]
"""A fraction above and below its line: exact, and cheap enough for ten thousand limits that have all been changed."""
NOT_AT_ALL: Final[Ratio] = (0, 1)


class ChangeRefused(ConfigError):  # noqa: N818 - it says who did what
    """Rules that work, but change too much at once. `objections` says what; nothing was changed."""

    def __init__(
        self, objections: Sequence[str], remedy: str = "push them again with --force"
    ) -> None:
        super().__init__(f"{'; '.join(objections)}: if that is intended, {remedy}")
        self.objections = tuple(objections)
        self._remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return ChangeRefused, (self.objections, self._remedy)


def objections(
    old: RuleSet | None,
    new: RuleSet,
    *,
    made: bool = False,
    pause: Callable[[], None] = no_pause,
) -> list[str]:
    """What speaks against putting `new` in the place of `old`, or against having `made` that change.

    Nothing if there is nothing.
    """
    would_be = "are" if made else "would be"
    now = _enabled(new, pause)
    if not now:
        nobody = "nothing is limited" if made else "nothing would be limited"
        return [f"no enabled rule is left, so {nobody}"]
    if old is None:
        return []
    before = _enabled(old, pause)
    found = []
    gone = {
        rule_id
        for rule_id, rule in with_pauses(before.items(), pause)
        if rule_id not in now or (not _denies(now[rule_id]) and _denies(rule))
    }
    if 2 * len(gone) > len(before):
        found.append(f"{len(gone)} of {len(before)} rules {would_be} gone ({_some(sorted(gone))})")
    raised = []
    for rule_id, rule in with_pauses(now.items(), pause):
        was = before.get(rule_id)
        if was is not None and was is not rule:
            more, than = _raised(was, rule, pause)
            if more >= RAISED * than:
                raised.append(f"{rule_id} {more / than:.0f}-fold")
    if raised:
        found.append(f"limits {would_be} raised {RAISED}-fold or more ({_some(sorted(raised))})")
    return found


@dataclass(frozen=True, slots=True)
class RuleDiff:
    """Which rules come, go and change, by their ids."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        """`2 added, 1 changed`."""
        parts = [
            f"{len(ids)} {word}"
            for word, ids in (
                ("added", self.added),
                ("removed", self.removed),
                ("changed", self.changed),
            )
            if ids
        ]
        return ", ".join(parts) or "nothing changed"


def difference(
    old: Mapping[str, object], new: Mapping[str, object], *, pause: Callable[[], None] = no_pause
) -> RuleDiff:
    """What is different between two sets of documents, by rule id."""
    changed = []
    for rule_id, document in with_pauses(new.items(), pause):
        if rule_id in old and old[rule_id] != document:
            changed.append(rule_id)
    return RuleDiff(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(changed)),
    )


def documents_of(rules: RuleSet | None) -> dict[str, object]:
    """The rules as they were written, by id."""
    return {} if rules is None else {rule.rule_id: rule.document for rule in rules.rules}


def _enabled(rules: RuleSet, pause: Callable[[], None]) -> dict[str, Rule]:
    return {rule.rule_id: rule for rule in with_pauses(rules.rules, pause) if rule.enabled}


def _denies(rule: Rule) -> bool:
    return not rule.shadow and rule.enforce_percent > 0 and not exempts_everybody(rule)


def _raised(old: Rule, new: Rule, pause: Callable[[], None]) -> Ratio:
    """By how much more the new rule lets through, for whom it is the most."""
    most = _factor(old.limits, new.limits)
    if not old.overrides and not new.overrides:
        return most
    for value in with_pauses({*old.overrides, *new.overrides}, pause):
        before = old.overrides.get(value, old.limits)
        most = _larger(most, _factor(before, new.overrides.get(value, new.limits)))
    return most


def _factor(old: Limits, new: Limits) -> Ratio:
    """By how much more these limits let through, in the long run or at once."""
    paced = _pace_factor(old, new)
    for limit in new:
        if hasattr(limit, "burst"):
            return _larger(paced, _times(_at_once(new), _at_once(old)))
    return paced


def _at_once(limits: Limits) -> int:
    """How many units an idle key can give."""
    return min(getattr(limit, "burst", limit.limit) for limit in limits)


def _pace_factor(old: Limits, new: Limits) -> Ratio:
    """By how much more they let through by the time: for each window, or for the strictest of all."""
    if len(old) == len(new) == 1:  # The usual case.
        (was,), (limit,) = old, new
        return _times(limit.limit * (was.window_us or 1), was.limit * (limit.window_us or 1))
    before = {limit.window_us: limit.limit for limit in old}
    now = {limit.window_us: limit.limit for limit in new}
    if before.keys() == now.keys():
        ratios = [_times(now[window_us], before[window_us]) for window_us in now]
        return reduce(_larger, ratios or [NOT_AT_ALL])
    (units, us), (units_before, us_before) = _strictest(now), _strictest(before)
    return _times(units * us_before, units_before * us)


def _strictest(limits: Mapping[int, int]) -> Ratio:
    """The fewest units by the microsecond."""
    paces = [(units, window_us or 1) for window_us, units in limits.items()]
    return reduce(_smaller, paces or [NOT_AT_ALL])


def _times(now: int, before: int) -> Ratio:
    """From nothing, no number of times leads to anything."""
    return (now, before) if before else NOT_AT_ALL


def _larger(one: Ratio, other: Ratio) -> Ratio:
    return one if one[0] * other[1] >= other[0] * one[1] else other


def _smaller(one: Ratio, other: Ratio) -> Ratio:
    return one if one[0] * other[1] <= other[0] * one[1] else other


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
