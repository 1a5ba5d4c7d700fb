"""Helpers of the shells about requests and hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..charge_kind import ChargeKind
from ..engines.base import Hooks
from ..errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..decision import Decision
    from .base import HitGuard

H = TypeVar("H")

MAX_LIMITS: Final = 4_096
"""How many limits a shell remembers how to hit; callers of a service may name any."""


def is_about(requests: Sequence[ChargeSet], kind: type[Limit]) -> bool:
    """Whether any of these asks for a limit of this kind."""
    for request in requests:
        for charge in request.charges:
            for limit in charge.limits:
                if isinstance(limit, kind):
                    return True
    return False


def plain_charge(request: ChargeSet) -> tuple[str, Limit, int, str | None] | None:
    """`(key, limit, cost, rule)` of a request that is no more than a hit."""
    if request.wait_us or request.reserve_us or request.token or len(request.charges) != 1:
        return None
    (charge,) = request.charges
    if charge.kind is not ChargeKind.TAKE or len(charge.limits) != 1:
        return None
    return charge.key, charge.limits[0], charge.cost, charge.rule


def hooks_of(part: HitGuard) -> Hooks:
    """The hooks of a guard, as an engine takes them."""
    return Hooks(part.after or _as_it_is, part.failed)


def both_hooks(part: HitGuard, outer: Hooks) -> Hooks:
    """The hooks of a guard, and then those of the layer around it; a ticket has a part for each."""
    inner_after, inner_failed = hooks_of(part)
    outer_after, outer_failed = outer

    def after(decision: Decision, tickets: tuple[Any, Any]) -> Decision:
        mine, theirs = tickets
        return outer_after(inner_after(decision, mine), theirs)

    def failed(error: Exception, tickets: tuple[Any, Any]) -> Decision:
        mine, theirs = tickets
        told: Exception = error
        if inner_failed is not None:
            try:
                decision = inner_failed(error, mine)
            except EngineError as raised:
                told = raised
            else:
                return outer_after(decision, theirs)
        if outer_failed is None:
            raise told
        return outer_failed(told, theirs)

    return Hooks(after, failed)


def remembered(
    known: dict[tuple[Limit, str | None], H],
    limit: Limit,
    rule: str | None,
    bind: Callable[[Limit, str | None], H],
) -> H:
    """How a limit is hit, found out once."""
    bound = known.get((limit, rule))
    if bound is None:
        if len(known) >= MAX_LIMITS:
            known.clear()
        bound = known[limit, rule] = bind(limit, rule)
    return bound


def _as_it_is(decision: Decision, _ticket: object) -> Decision:
    return decision
