"""The hot path of the memory engine: the common hit in one function.

Uncommon cases (a key that was not used recently, a charge that does not fit with the others) fall back to the slow
path. Arguments are not checked before that is necessary: a string that is found among the keys is a valid key, and `1`
is a valid cost. Arguments are therefore typed `Any`, and wrong ones get our error message, not the compiler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..algorithms.base import MAX_EXACT
from ..charge import Charge, ChargeSet, require_cost, require_key
from ..charge_kind import ChargeKind
from ..decision import Context, Decision
from .base import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import Limit, State
    from ._state_store import StateStore
    from ._state_table import StateTable
    from .base import CertainRun, Hit

ONE: Final = 1
TAKE: Final = ChargeKind.TAKE


TakeAll: TypeAlias = "Callable[[ChargeSet], Decision | None]"


class Known(NamedTuple):
    """What is at hand for one rule, or for hits without one."""

    tables: dict[str, StateTable]
    """By the identity of a limit."""
    context: Context


def hit_of(core: StateStore, table: StateTable, limit: Limit, context: Context) -> Hit:
    """A function that takes units of `limit` for a key."""
    turns, give, take_new = core.lock.turns, core.lock.give, core.take_new
    ticks, epoch_us = core.ticks, core.epoch_us
    grows = not limit.window_us  # Slots, for which there may be no memory.

    def hit(key: Any, cost: Any) -> Decision:
        if cost is not ONE:  # The usual cost needs no check; `True` is another object.
            require_cost(cost)
        for _ in turns:  # The lock: see `FastLock`.
            try:
                # With the lock held, so that a later write has a later time.
                now_us = ticks() // 1000 + epoch_us
                states = table.young
                state = states.get(key)
                if state is None or grows:
                    found, shared = take_new(table, key, limit, now_us, cost)
                    own = context._replace(degraded=True) if shared else context
                    return Decision(key, limit, found, own)
                after, answer = limit.take(state, now_us, cost)
                if after is not state:
                    states[key] = after
                return Decision(key, limit, answer, context)
            except TypeError:  # An unhashable key is not a string either.
                require_key(key)
                raise
            finally:
                give(None)
        raise AssertionError  # Turns have no end.

    return hit


def run_of(core: StateStore, table: StateTable, limit: Limit, context: Context) -> CertainRun:
    """A function that takes units of `limit` for several keys, in order, under one lock and at one time."""
    turns, give, take_new = core.lock.turns, core.lock.give, core.take_new
    ticks, epoch_us = core.ticks, core.epoch_us
    grows = not limit.window_us  # Slots, for which there may be no memory.

    def hit_run(keys: Any, cost: Any) -> Run:
        require_cost(cost)
        answers: list[Any] = []
        degraded: list[int] = []
        for _ in turns:
            try:
                now_us = ticks() // 1000 + epoch_us
                states = table.young
                for key in keys:
                    state = states.get(key)
                    if state is None or grows:
                        found, shared = take_new(table, key, limit, now_us, cost)
                        answers.append(found)
                        if shared:
                            degraded.append(len(answers) - 1)
                        states = table.young  # A new key may begin a new generation.
                    else:
                        after, answer = limit.take(state, now_us, cost)
                        if after is not state:
                            states[key] = after
                        answers.append(answer)
                return Run(keys, limit, answers, context, degraded)
            finally:
                give(None)
        raise AssertionError

    return hit_run


def take_all_of(core: StateStore, by_rule: dict[str | None, Known]) -> TakeAll:
    """A function for the common request: every key is known, and every charge fits. It returns `None` for others."""
    turns, give = core.lock.turns, core.lock.give
    ticks, epoch_us = core.ticks, core.epoch_us

    def take_all(request: ChargeSet) -> Decision | None:
        charges, wait_us, reserve_us, token = request
        if wait_us or reserve_us or token:
            return None
        for _ in turns:
            try:
                return _take_all(by_rule, charges, ticks() // 1000 + epoch_us)
            finally:
                give(None)
        raise AssertionError

    return take_all


def _take_all(
    by_rule: dict[str | None, Known], charges: tuple[Charge, ...], now_us: int
) -> Decision | None:
    """Write each charge at once, and undo all of them, still under the lock, if one is uncommon."""
    undo: list[tuple[dict[str, State], str, State]] = []
    decisions: list[Decision] = []
    speaker: Decision | None = None
    least = MAX_EXACT + 1
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
                if limit is not table.limit and not table.several:
                    table.note(limit)
                undo.append((table.young, key, state))
                table.young[key] = after
                decision = Decision(key, limit, answer, context)
                decisions.append(decision)
                if answer[1] < least:  # As `combined` has it: the least left speaks for all.
                    speaker, least = decision, answer[1]
        undo.clear()
    finally:
        for states, key, state in reversed(undo):
            states[key] = state
    if speaker is None or len(decisions) == 1:
        return speaker
    several = tuple(decisions)
    return Decision(speaker.key, speaker.limited_by, speaker.answer, speaker.context, several)
