"""Permanent denials: a request that does not fit into an unused limit is denied without calling the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..algorithms import NEVER, TokenBucket
from ..charge import require_cost, require_key
from ..charge_kind import ChargeKind
from ..decision import Context, Decision
from ..engines.base import combined

if TYPE_CHECKING:
    from ..algorithms import Answer, Limit
    from ..charge import ChargeSet

DENIED: Final[Answer] = (False, 0, NEVER, 0, 0)
NOT_ASKED: Final[Answer] = (True, 0, 0, 0, 0)
"""The answer of the other limits of such a request: they do not deny it, and their remaining units are unknown."""


def capacity(limit: Limit) -> int:
    """The most units that an unused key allows at once."""
    in_bucket = limit.decider == TokenBucket.name
    return getattr(limit, "burst", limit.limit) if in_bucket else limit.limit


def denied_for_ever(key: str, limit: Limit, cost: int, rule: str | None) -> Decision:
    """The answer to a cost that can never fit. Raises for a key or cost that every engine would refuse."""
    require_key(key)
    require_cost(cost)
    return Decision(key, limit, DENIED, Context("cache", rule=rule))


def certain_denial(request: ChargeSet) -> Decision | None:
    """The answer if some charge of the request can never fit; `None` if the engine has to decide.

    The engine also decides when a denial may change a state: with shadows, or algorithms that count denials.
    """
    never = False
    for charge in request.charges:
        if charge.kind is not ChargeKind.TAKE:
            return None
        for limit in charge.limits:
            if limit.counts_denials:
                return None
            never = never or charge.cost > capacity(limit)
    if not never:
        return None
    return combined(
        [
            Decision(
                charge.key, limit,
                DENIED if charge.cost > capacity(limit) else NOT_ASKED,
                Context("cache", rule=charge.rule),
            )
            for charge in request.charges
            for limit in charge.limits
        ]
    )  # fmt: skip
