"""Steps: what each charge of a request makes of its state, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..algorithms import NEVER, Concurrency, TokenBucket
from ..algorithms.base import MAX_MEMBERS
from ..charge import PastCharge
from ..charge_kind import ChargeKind

if TYPE_CHECKING:
    from ..algorithms import Answer, Limit, State
    from ..charge import Charge, ChargeSet
    from ._state_table import Place, StateTable


class Step(NamedTuple):
    """One limit of one charge, evaluated but not yet written."""

    charge: Charge
    number: int
    """The place of the charge in its request."""
    limit: Limit
    table: StateTable
    place: Place
    """Where the state was when the step was evaluated: under the key, or shared with strangers."""
    before: State
    after: State
    answer: Answer
    first: bool
    """Whether no earlier charge of the request touched the same state."""
    low: int
    """The low-water mark before the charge, of a state that is watched from then on."""


def is_watched(limit: Limit, charge: Charge, answer: Answer) -> bool:
    """Whether a refund of this charge depends on how low the state falls from now on."""
    return limit.watched and charge.cost > 0 and answer[0] and charge.kind is not ChargeKind.PEEK


def marked_never(step: Step, unused: Step) -> Step:
    """The step, never to be retried if it is denied also on unused keys: charges of one key may add up to too much."""
    if step.answer[0] or unused.answer[0]:
        return step
    allowed, remaining, _, reset_after_us, level = step.answer
    return step._replace(answer=(allowed, remaining, NEVER, reset_after_us, level))


def stepped(
    request: ChargeSet, charge: Charge, limit: Limit, state: State, now_us: int
) -> tuple[State, Answer]:
    """What one charge makes of one state, and the answer to it."""
    cost = charge.cost
    if charge.kind is ChargeKind.PEEK:
        return state, limit.peek(state, now_us, cost)
    if charge.kind is ChargeKind.FORCE:
        if isinstance(charge, PastCharge):
            return limit.force_past(state, now_us, cost, charge.came_us)
        return limit.force(state, now_us, cost)
    if request.token is not None and not request.reserve_us and isinstance(limit, Concurrency):
        return limit.hold(state, now_us, cost, request.token)
    if request.wait_us and isinstance(limit, TokenBucket):
        return limit.line_up(state, now_us, cost, request.wait_us)
    return limit.take(state, now_us, cost)


def on_top(request: ChargeSet, step: Step, state: State, now_us: int) -> Step:
    """A granted step of a new key that shares a state since its request was evaluated, because memory became full.

    Another key of the request may have come to share the same state. Both fit, so both are charged.
    """
    if step.after is step.before or state is step.before or state == step.before:
        return step
    limit, charge = step.limit, step.charge
    if isinstance(limit, Concurrency):  # As many as it takes, under the token of the request.
        limit = Concurrency(MAX_MEMBERS, limit.ttl_us)
    after, answer = stepped(request, charge, limit, state, now_us)
    if step.answer[0] and not answer[0]:
        after, answer = limit.force(state, now_us, charge.cost)
    low = 0
    if request.reserve_us and is_watched(limit, charge, answer):
        after, low = limit.watch(after)
    return step._replace(before=state, after=after, answer=answer, low=low)
