"""The last answers of a store: how much each key had left, so that a fallback can start from there.

Memory is bounded: all limits together remember at most `MAX_KEYS` keys, half of them young and half of them old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..algorithms import Answer, Limit
    from ..clock import Clock

MAX_KEYS: Final = 65_536
LONGEST_KEY: Final = 256
"""Longer keys are decided too, but their remaining units are not remembered."""
MAX_LIMITS: Final = 4_096


class KeyBudget:
    """How many keys are remembered for each of the limits that share `MAX_KEYS`."""

    __slots__ = ("per_limit",)

    def __init__(self) -> None:
        self.per_limit = MAX_KEYS
        """How many keys of a limit fit into the younger half."""


class LimitAnswers:
    """The units that each key of a limit had left in the store's last answer. When full, the older half is dropped."""

    __slots__ = ("_budget", "_old", "_ticks", "_young")

    def __init__(self, clock: Clock, budget: KeyBudget) -> None:
        self._ticks = clock.ticks
        self._budget = budget
        self._young: dict[str, tuple[int, Answer]] = {}
        self._old: dict[str, tuple[int, Answer]] = {}

    def note(self, key: str, answer: Answer) -> None:
        """Record an answer of the store."""
        if len(key) > LONGEST_KEY:
            return
        if len(self._young) >= self._budget.per_limit:
            self._old, self._young = self._young, {}
        self._young[key] = (self._ticks(), answer)

    def remaining(self, key: str) -> int | None:
        """The units left; `None` if unknown or out of date."""
        found = self._young.get(key) or self._old.get(key)
        if found is None:
            return None
        at_ns, (_, remaining, _, reset_after_us, _) = found
        passed_us = (self._ticks() - at_ns) // 1000
        return remaining if passed_us < reset_after_us else None


class LastAnswers:
    """The last answers of every limit. When there are too many limits, all others are dropped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_limit: dict[tuple[Limit, str | None], LimitAnswers] = {}
        self._budget = KeyBudget()

    def of(self, limit: Limit, rule: str | None) -> LimitAnswers:
        """The last answers for one limit. All limits together share the budget of keys."""
        found = self._by_limit.get((limit, rule))
        if found is None:
            if len(self._by_limit) >= MAX_LIMITS:
                self._by_limit.clear()
                self._budget = (
                    KeyBudget()
                )  # Dropped answers may still be in use; they keep the old one.
            found = self._by_limit[limit, rule] = LimitAnswers(self._clock, self._budget)
            self._budget.per_limit = max(1, MAX_KEYS // 2 // len(self._by_limit))
        return found
