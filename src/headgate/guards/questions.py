"""Helper functions of the shells, for requests and hooks."""

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
"""How many bound limits a shell remembers; callers of a service may name any number."""


def is_about(requests: Sequence[ChargeSet], kind: type[Limit]) -> bool:
    """Whether any of these requests has a limit of this kind."""
    for request in requests:
        for charge in request.charges:
            for limit in charge.limits:
                if isinstance(limit, kind):
                    return True
    return False


def plain_charge(request: ChargeSet) -> tuple[str, Limit, int, str | None] | None:
    """`(key, limit, cost, rule)` of a request that amounts to a hit, else `None`."""
    if request.wait_us or request.reserve_us or request.token or len(request.charges) != 1:
        return None
    (charge,) = request.charges
    if charge.kind is not ChargeKind.TAKE or len(charge.limits) != 1:
        return None
    return charge.key, charge.limits[0], charge.cost, charge.rule


def hooks_of(part: HitGuard) -> Hooks:
    """The hooks of a guard, in the engine's form."""
    return Hooks(part.after or _unchanged, part.failed)


def both_hooks(part: HitGuard, outer: Hooks) -> Hooks:
    """The hooks of a guard followed by those of the layer around it; a ticket is a pair, one part for each."""
    inner_after, inner_failed = hooks_of(part)
    outer_after, outer_failed = outer

    def after(decision: Decision, tickets: tuple[Any, Any]) -> Decision:
        mine, theirs = tickets
        return outer_after(inner_after(decision, mine), theirs)

    def failed(error: Exception, tickets: tuple[Any, Any]) -> Decision:
        mine, theirs = tickets
        final_error: Exception = error
        if inner_failed is not None:
            try:
                decision = inner_failed(error, mine)
            except EngineError as raised:
                final_error = raised
            else:
                return outer_after(decision, theirs)
        if outer_failed is None:
            raise final_error
        return outer_failed(final_error, theirs)

    return Hooks(after, failed)


def remembered(
    known: dict[tuple[Limit, str | None], H],
    limit: Limit,
    rule: str | None,
    bind: Callable[[Limit, str | None], H],
) -> H:
    """The bound hit of a limit, bound once and cached."""
    bound = known.get((limit, rule))
    if bound is None:
        if len(known) >= MAX_LIMITS:
            known.clear()
        bound = known[limit, rule] = bind(limit, rule)
    return bound


def _unchanged(decision: Decision, _ticket: object) -> Decision:
    return decision
