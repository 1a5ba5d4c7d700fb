"""Helper functions of the shells, for requests and hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..charge_kind import ChargeKind
from ..engines.base import Hooks
from ..errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..decision import Decision
    from .base import Found, HitGuard, Shortcut

H = TypeVar("H")

MAX_LIMITS: Final = 4_096
"""How many bound limits a shell remembers; callers of a service may name any number."""


def has_limit_of_type(requests: Sequence[ChargeSet], kind: type[Limit]) -> bool:
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
    return Hooks(part.after or _unchanged, part.failed, part.may_skip)


def both_hooks(part: HitGuard, outer: Hooks) -> Hooks:
    """The hooks of a guard followed by those of the layer around it; a ticket is a pair, one part for each."""
    inner_after, inner_failed, inner_skip = hooks_of(part)
    outer_after, outer_failed, outer_skip = outer

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

    if inner_skip is None or outer_skip is None:
        return Hooks(after, failed)
    return Hooks(after, failed, lambda: inner_skip() and outer_skip())


def before_only(before: Callable[[str, int], Found], instead: Callable[..., Any], ask: H) -> H:
    """A hit for a guard without the other hooks: nearly always just one extra call, even with two such layers."""
    asked: Any = ask
    inner = getattr(ask, "before_only", None)
    made: Any
    if inner is None:

        def hit(key: str, cost: int) -> Any:
            found: Any = before(key, cost)
            return asked(key, cost) if found is None else instead(found, key, cost)

        made = hit
        made.before_only = (before, instead, ask)
    else:
        next_before, next_instead, innermost = inner

        def hit_of_two(key: str, cost: int) -> Any:
            found: Any = before(key, cost)
            if found is not None:
                return instead(found, key, cost)
            found = next_before(key, cost)
            return innermost(key, cost) if found is None else next_instead(found, key, cost)

        made = hit_of_two
    return cast("H", made)


def in_front(shortcut: Shortcut | None, hit: H) -> H:
    """The hit with a shortcut in front, if there is one."""
    if shortcut is None:
        return hit
    whole: Any = hit
    return cast("H", shortcut(whole))


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
