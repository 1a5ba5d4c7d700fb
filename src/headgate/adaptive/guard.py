"""The guards that make adaptive limits adapt: one counts decisions, the other asks for the chosen variant.

Every limiter has both around its engine. Limits of other algorithms pay nothing for them. The choice comes from a
`Choices`: `LocalAdaptive` uses the limiter's own traffic, `AdaptiveControl` that of all nodes, through a board.
"""

from __future__ import annotations

from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, ClassVar, Protocol

from ..algorithms.adaptive import CANDIDATES, Adaptive
from ..charge import ChargeSet, ReadyCharge
from ..charge_kind import ChargeKind
from ..guards.base import Guard, HitGuard, Variants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..algorithms import Limit
    from ..charge import Charge
    from ..decision import Decision
    from ..guards.base import Chosen
    from .monitor import TrafficCount


class Choices(Protocol):
    """Chooses the algorithm of adaptive limits; the two guards ask it."""

    def guards(self) -> Sequence[Guard]:
        """The guards to put around an engine, the outer one first."""

    def chosen(self, limit: Adaptive, rule: str | None) -> Chosen:
        """The choice for this limit; it is updated in place."""


class CountedChoices(Choices, Protocol):
    """Choices based on what their own guard counts."""

    def counter(self, limit: Adaptive, rule: str | None) -> TrafficCount:
        """Where decisions under this limit are counted."""

    def on_ask(self, limit: Adaptive, rule: str | None) -> Callable[[str, int], None]:
        """What to call before each question, with its key and cost."""


class CountingGuard(Guard):
    """Counts decisions under adaptive limits."""

    limit_type: ClassVar[type[Limit] | None] = Adaptive

    def __init__(self, choices: CountedChoices) -> None:
        self._choices = choices

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | None:
        """See `Guard.for_limit`."""
        if not isinstance(limit, Adaptive):
            return None
        count = self._choices.counter(limit, rule)

        def after(decision: Decision, _ticket: Any) -> Decision:
            count.requests += 1
            if not decision.answer[0]:
                count.denied += 1
            return decision

        return HitGuard(self._choices.on_ask(limit, rule), after)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        on_ask = self._choices.on_ask
        for charge in request.charges:
            for limit in charge.limits:
                if isinstance(limit, Adaptive):
                    on_ask(limit, charge.rule)(charge.key, charge.cost)
        return request

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """See `Guard.after`."""
        allowed, counter = decision.allowed, self._choices.counter
        for charge in request.charges:
            if charge.kind is ChargeKind.TAKE:
                for limit in charge.limits:
                    if isinstance(limit, Adaptive):
                        counter(limit, charge.rule).add(allowed=allowed)
        return decision


class ChoosingGuard(Guard):
    """Asks for the variant that decides now."""

    limit_type: ClassVar[type[Limit] | None] = Adaptive

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def for_limit(self, limit: Limit, rule: str | None) -> Variants | None:
        """See `Guard.for_limit`."""
        if not isinstance(limit, Adaptive):
            return None
        return Variants(variants_of(limit), self._choices.chosen(limit, rule))

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        charges: list[Charge] = []
        for one in request.charges:
            rule = one.rule
            limits = tuple([self.current_limit(limit, rule) for limit in one.limits])
            if all(map(is_, limits, one.limits)):
                charges.append(one)
            else:
                charges.append(ReadyCharge(one.key, limits, one.cost, one.kind, rule))
        _, wait_us, reserve_us, token = request
        return ChargeSet(tuple(charges), wait_us, reserve_us, token)

    def current_limit(self, limit: Limit, rule: str | None) -> Limit:
        """See `Guard.current_limit`."""
        if not isinstance(limit, Adaptive):
            return limit
        return variants_of(limit)[self._choices.chosen(limit, rule).index]


@lru_cache(maxsize=4_096)
def variants_of(limit: Adaptive) -> tuple[Adaptive, ...]:
    """The same limit, decided by each candidate in turn; they share their state."""
    return tuple(
        limit if name == limit.chosen else Adaptive(limit.limit, limit.window_us, limit.burst, name)
        for name in CANDIDATES
    )
