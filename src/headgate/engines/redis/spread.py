"""Spread: a request whose charges live in different slots of a Cluster, still all or nothing.

No script can touch two slots, so it goes in steps: look everywhere, then take slot by slot, and when one says no give back
what the others gave. Nobody is ever over a limit. While the steps are under way another request may be denied that
would have passed, and a crash in between leaves the cost of this one request charged.

Where a look says no, that slot is asked in earnest, for a denial may have to be noted there: backoff counts it, and a
clock that stepped back is noticed by it.

A generator without I/O: it yields looks and requests, each within one slot, and is sent their decisions; `Undo` gives
back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ...charge import Charge, Kind, Request
from ...errors import EngineError
from ..base import combined

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...decision import Decision

UNDO_US: Final = 10_000_000
"""How long the steps may take; after that a charge that was not undone stays."""


class Look(NamedTuple):
    """Ask what a request would be answered, and change nothing."""

    request: Request


class Undo(NamedTuple):
    """Give back what this reservation took."""

    token: str


Steps: TypeAlias = Generator[Look | Request | Undo, Any, Any]


def groups_of(request: Request, tag: Callable[[str], bytes]) -> list[Request]:
    """The request cut into pieces that lie in one slot each, in the order of its charges."""
    groups: dict[bytes, list[Charge]] = {}
    for charge in request.charges:
        groups.setdefault(tag(charge.key), []).append(charge)
    return [request._replace(charges=tuple(charges), token=None) for charges in groups.values()]


def decide_spread(request: Request, groups: list[Request]) -> Steps:
    """Look everywhere, take slot by slot, and undo on a denial; returns the decision."""
    looks: list[Decision] = []
    for group in groups:
        look = yield Look(Request(group.charges))
        looks.append(look)
    if all(charge.kind is Kind.PEEK for charge in request.charges):
        return _joined(request, groups, looks)
    refusing = [place for place, look in enumerate(looks) if not _passes(groups[place], look)]
    answers = list(looks)
    taken: dict[int, Decision] = {}
    try:
        for place in refusing or range(len(groups)):
            group = groups[place]
            answers[place] = yield group._replace(reserve_us=group.reserve_us or UNDO_US)
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


def _undone(taken: dict[int, Decision]) -> Steps:
    for one in taken.values():
        if one.token is not None:
            yield Undo(one.token)


def _passes(group: Request, decision: Decision) -> bool:
    """Whether nothing stands in the way: force never asks, and a shadow never denies."""
    return all(
        one.allowed
        for charge, answers in zip(group.charges, _per_charge(group, decision), strict=True)
        if charge.kind in (Kind.TAKE, Kind.PEEK)
        for one in answers
    )


def _joined(
    request: Request, groups: list[Request], decisions: list[Decision], token: str | None = None
) -> Decision:
    """One decision, with the answers in the order of the charges."""
    answers = {
        id(charge): parts
        for group, decision in zip(groups, decisions, strict=True)
        for charge, parts in zip(group.charges, _per_charge(group, decision), strict=True)
    }
    ordered = [one for charge in request.charges for one in answers[id(charge)]]
    return combined(ordered) if token is None else combined(ordered, token=token)


def _per_charge(group: Request, decision: Decision) -> list[list[Decision]]:
    rules = list(decision.rules)
    result = []
    for charge in group.charges:
        count = len(charge.limits)
        result.append(rules[:count])
        rules = rules[count:]
    return result
