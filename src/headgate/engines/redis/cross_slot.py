"""A request whose charges are in different slots of a Cluster, still all or nothing.

No script can touch two slots, so it takes several steps: peek at all slots, then take slot by slot, and if one denies,
undo the others. No limit is ever exceeded. While the steps run, another request may be denied that would have passed,
and a crash in between leaves the cost of this one request charged.

If a peek is denied, that slot is asked again with a real take, because a denial may change its state: backoff counts
it, and a clock that stepped back is detected by it.

A generator without I/O: it yields peeks and takes, each within one slot, and is sent their decisions; `UndoStep` gives
back.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ...charge import ChargeSet
from ...charge_kind import ChargeKind
from ...errors import EngineError
from ..base import combined

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...decision import Decision
    from ..verbs import Verb

UNDO_US: Final = 10_000_000
"""How long the steps may take; after that, a charge that was not undone stays."""


class PeekStep(NamedTuple):
    """Get the answer that a request would get, without changing anything."""

    request: ChargeSet


class UndoStep(NamedTuple):
    """Give back the units of this reservation."""

    token: str


class Take(NamedTuple):
    """Decide a request for real, with this name for its reservation."""

    request: ChargeSet
    name: str


SlotStep: TypeAlias = PeekStep | Take | UndoStep
Steps: TypeAlias = Generator[SlotStep, Any, Any]


class Group(NamedTuple):
    """The charges of a request in one slot."""

    request: ChargeSet
    name: str
    """The name of its reservation; ends with the indexes of the charges, see `charges_of`."""


def groups_of(request: ChargeSet, tag: Callable[[str], bytes]) -> list[Group]:
    """Split a request into groups of one slot each, in the order of its charges."""
    places: dict[bytes, list[int]] = {}
    for place, charge in enumerate(request.charges):
        places.setdefault(tag(charge.key), []).append(place)
    name = secrets.token_hex(16)
    if request.token is not None:  # The same each time, so that it can be withdrawn.
        name = blake2b(request.token.encode(), digest_size=16).hexdigest()
    return [
        Group(
            request._replace(charges=tuple(request.charges[place] for place in those), token=None),
            f"{name}.{'-'.join(map(str, those))}",
        )
        for those in places.values()
    ]


def charges_of(name: str) -> tuple[int, ...]:
    """The indexes of the charges that a reservation in one slot covers; empty if its name has none."""
    _, _, places = name.rpartition(".")
    return tuple(map(int, places.split("-"))) if _PLACES.fullmatch(places) else ()


_PLACES: Final = re.compile(r"[0-9]{1,3}(-[0-9]{1,3})*")


def decide_across_slots(request: ChargeSet, pieces: list[Group]) -> Steps:
    """Peek everywhere, take slot by slot, and undo on a denial; returns the decision."""
    groups = [piece.request for piece in pieces]
    looks: list[Decision] = []
    for group in groups:
        look = yield PeekStep(ChargeSet(group.charges))
        looks.append(look)
    if all(charge.kind is ChargeKind.PEEK for charge in request.charges):
        return _joined(request, groups, looks)
    refusing = [place for place, look in enumerate(looks) if not _passes(groups[place], look)]
    answers = list(looks)
    taken: dict[int, Decision] = {}
    try:
        for place in refusing or range(len(groups)):
            group, name = pieces[place]
            answers[place] = yield Take(
                group._replace(reserve_us=group.reserve_us or UNDO_US), name
            )
            if _passes(group, answers[place]):
                taken[place] = answers[place]
            elif not refusing:
                break
    except EngineError:
        yield from _undone(taken)
        raise
    if len(taken) == len(groups):
        token = ",".join(one.token for one in taken.values() if one.token is not None)
        return _joined(request, groups, answers, token if request.reserve_us else None)
    yield from _undone(taken)
    for place in taken:
        answers[place] = looks[place]
    return _joined(request, groups, answers)


def perform(
    steps: Steps,
    do: Callable[[SlotStep], Any],
    taken: list[str],
    abandoned: Callable[[], bool] = lambda: False,
) -> Verb[Decision | None]:
    """Run the steps, recording in `taken` what can be given back. Returns the decision; `None` once abandoned."""
    outcome: Any = None
    failure: EngineError | None = None
    try:
        while not abandoned():
            step = steps.throw(failure) if failure else steps.send(outcome)
            outcome = failure = None
            try:
                outcome = yield do(step)
            except EngineError as error:
                failure = error
            if isinstance(step, Take) and outcome and outcome.token is not None:
                taken.append(outcome.token)
    except StopIteration as done:
        decision: Decision = done.value
        return decision
    return None


def _undone(taken: dict[int, Decision]) -> Steps:
    for one in taken.values():
        if one.token is not None:
            yield UndoStep(one.token)


def _passes(group: ChargeSet, decision: Decision) -> bool:
    """Whether the group passes: force always does, and a shadow never denies."""
    return all(
        one.allowed
        for charge, answers in zip(group.charges, _per_charge(group, decision), strict=True)
        if charge.kind in (ChargeKind.TAKE, ChargeKind.PEEK)
        for one in answers
    )


def _joined(
    request: ChargeSet, groups: list[ChargeSet], decisions: list[Decision], token: str | None = None
) -> Decision:
    """One decision, with the answers in the order of the charges."""
    answers = {
        id(charge): parts
        for group, decision in zip(groups, decisions, strict=True)
        for charge, parts in zip(group.charges, _per_charge(group, decision), strict=True)
    }
    ordered = [one for charge in request.charges for one in answers[id(charge)]]
    return combined(ordered) if token is None else combined(ordered, token=token)


def _per_charge(group: ChargeSet, decision: Decision) -> list[list[Decision]]:
    rules = list(decision.rules)
    result = []
    for charge in group.charges:
        count = len(charge.limits)
        result.append(rules[:count])
        rules = rules[count:]
    return result
