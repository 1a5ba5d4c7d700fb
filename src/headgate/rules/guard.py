"""The guard: changes so large that they are more likely a mistake than a wish. Pure.

It is asked twice: where somebody pushes rules, who can then insist, and on every node that is about to use them, for rules
can also be changed by other ways. A rule that is switched off counts as gone, and so does one that becomes a shadow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ..errors import ConfigError
from .pacing import unhurried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .model import Rule, RuleSet

RAISED: Final = 100
"""A limit that is raised by this factor at once is suspicious."""
SHOWN: Final = 3


class GuardRefused(ConfigError):  # noqa: N818 - it says who did what
    """Rules that work, but change too much at once. `objections` says what; nothing was changed."""

    def __init__(self, objections: Sequence[str]) -> None:
        super().__init__(
            f"{'; '.join(objections)}: if that is what you want, push them again with --force"
        )
        self.objections = tuple(objections)

    def __reduce__(self) -> tuple[object, ...]:
        return GuardRefused, (self.objections,)


def objections(
    old: RuleSet | None, new: RuleSet, *, pause: Callable[[], None] = unhurried
) -> list[str]:
    """What speaks against putting `new` in the place of `old`; nothing if there is nothing."""
    now = _enabled(new)
    if not now:
        return ["there is no rule left that is switched on, so nobody would be limited"]
    if old is None:
        return []
    before = _enabled(old)
    found = []
    gone = {
        rule_id
        for rule_id, rule in before.items()
        if rule_id not in now or (_denies(rule) and not _denies(now[rule_id]))
    }
    if 2 * len(gone) > len(before):
        found.append(f"{len(gone)} of {len(before)} rules would be gone ({_some(sorted(gone))})")
    raised = []
    for rule_id, rule in now.items():
        pause()
        was = before.get(rule_id)
        if was is not None and was.limits != rule.limits:
            factor = _factor(was, rule)
            if factor >= RAISED:
                raised.append(f"{rule_id} {float(factor):.0f}-fold")
    if raised:
        found.append(f"limits would be raised {RAISED}-fold or more ({_some(sorted(raised))})")
    return found


@dataclass(frozen=True, slots=True)
class Difference:
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
    old: Mapping[str, object], new: Mapping[str, object], *, pause: Callable[[], None] = unhurried
) -> Difference:
    """What is different between two sets of documents, by rule id."""
    changed = []
    for rule_id, document in new.items():
        pause()
        if rule_id in old and old[rule_id] != document:
            changed.append(rule_id)
    return Difference(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(changed)),
    )


def documents_of(rules: RuleSet | None) -> dict[str, object]:
    """The rules as they were written, by id."""
    return {} if rules is None else {rule.rule_id: rule.document for rule in rules.rules}


def _enabled(rules: RuleSet) -> dict[str, Rule]:
    return {rule.rule_id: rule for rule in rules.rules if rule.enabled}


def _denies(rule: Rule) -> bool:
    return not rule.shadow and rule.enforce_percent > 0


def _factor(old: Rule, new: Rule) -> Fraction:
    """By how much more the new limits let through: for each window, or for the strictest of all."""
    before = {limit.window_us: limit.limit for limit in old.limits}
    now = {limit.window_us: limit.limit for limit in new.limits}
    if before.keys() == now.keys():
        return max(
            (_ratio(Fraction(now[window]), Fraction(before[window])) for window in now),
            default=Fraction(0),
        )
    return _ratio(_strictest(now), _strictest(before))


def _strictest(limits: Mapping[int, int]) -> Fraction:
    per_us: Callable[[int], Fraction] = lambda window: Fraction(limits[window], max(1, window))  # noqa: E731
    return min(map(per_us, limits), default=Fraction(0))


def _ratio(now: Fraction, before: Fraction) -> Fraction:
    return now / before if before else Fraction(0)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
