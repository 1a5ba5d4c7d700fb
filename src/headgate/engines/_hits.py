"""The hot path of the memory engine: the usual hit in one go, with everything it needs at hand.

What is not usual (a key that was not seen lately, a charge that does not fit with the others) is left to those who do it
step by step. Nothing here checks what the caller passes before it has to: text is text if it is found among the keys, and
`1` is a cost. Arguments from outside are therefore `Any`, and are refused in our own words, not in those of a compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..charge import Charge, Kind, require_cost, require_key
from ..decision import Context, Decision

if TYPE_CHECKING:
    from ..algorithms import Limit, State
    from ._core import Core
    from ._table import Table
    from .base import Hit, Parts

ONE: Final = 1
TAKE: Final = Kind.TAKE
NEW = tuple.__new__
"""Makes a named tuple of all its values, in a third of the time that its own constructor takes."""


class Known(NamedTuple):
    """What is at hand for one rule, or for hits without one."""

    tables: dict[str, Table]
    """By the identity of a limit."""
    context: Context


def hit_of(core: Core, table: Table, limit: Limit, context: Context) -> Hit:
    """A function that takes units of `limit` for a key."""
    acquire, release, take_new = core.lock.take, core.lock.give, core.take_new
    ticks, epoch_us = core.ticks, core.epoch_us

    def hit(key: Any, cost: Any) -> Decision:
        if cost is not ONE:  # The usual cost needs no check; `True` is another object.
            require_cost(cost)
        now_us = ticks() // 1000 + epoch_us
        acquire()
        try:
            states = table.young
            state = states.get(key)
            if state is None:
                found, shared = take_new(table, key, limit, now_us, cost)
                own = context._replace(degraded=True) if shared else context
                return Decision((key, limit, found, own))
            after, answer = limit.take(state, now_us, cost)
            if after is not state:
                states[key] = after
        except TypeError:  # A key that cannot be looked up is no text either.
            require_key(key)
            raise
        finally:
            release(None)
        return Decision((key, limit, answer, context))

    return hit


def take_all(
    by_rule: dict[str | None, Known], charges: tuple[Charge, ...], now_us: int
) -> Decision | None:
    """The usual request in one go: every key is known, and all of it fits; `None` for any other.

    Each charge is written at once. As soon as one is not like that all are taken back, which nobody has seen:
    the caller holds the lock.
    """
    undo: list[tuple[dict[str, State], str, State]] = []
    answers: list[Parts] = []
    try:
        for charge in charges:
            known = by_rule.get(charge.rule)
            if charge.kind is not TAKE or known is None:
                return None
            key, cost = charge.key, charge.cost
            tables, context = known
            for limit in charge.limits:
                table = tables.get(limit.identity)
                state = None if table is None else table.young.get(key)
                if table is None or state is None:
                    return None
                after, answer = limit.take(state, now_us, cost)
                if not answer[0]:
                    return None
                table.limit = limit
                undo.append((table.young, key, state))
                table.young[key] = after
                answers.append((key, limit, answer, context))
        undo.clear()
    finally:
        for states, key, state in reversed(undo):
            states[key] = state
    return granted(answers)


def granted(answers: list[Parts]) -> Decision:
    """What `combined` makes of answers that all allow, without the ceremony: the least left speaks."""
    least = answers[0]
    if len(answers) == 1:
        return Decision(least)
    for one in answers:
        if one[2][1] < least[2][1]:
            least = one
    together = NEW(Context, ("engine", False, least[3].rule, None, tuple(answers), None, None))
    return Decision((least[0], least[1], least[2], together))
