"""Requests: all or nothing over several charges, plausible costs, and rule revisions that only increase."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Operation
    from ..scene import Scene


def findings(scene: Scene) -> Iterator[Finding]:
    """All problems that a single request shows."""
    yield from _costs(scene)
    yield from _together(scene)
    yield from _revisions(scene)


def _costs(scene: Scene) -> Iterator[Finding]:
    changed = {one.rule for one in scene.operations if one.f == "put_rule"}
    for one in scene.operations:
        if one.cost < 0 and one.type in ("allow", "deny"):
            yield _at(one, "cost", f"a cost of {one.cost} was accepted instead of refused")
        taken = one.type == "allow" and one.f in ("check", "reserve", "acquire") and one.cost > 0
        by_engine = one.source == "engine" and one.rule not in changed
        if taken and by_engine and not scene.header.limits[one.rule].limit:
            yield _at(one, "cost", "a limit of 0 let something pass")


def _together(scene: Scene) -> Iterator[Finding]:
    """The charges of one request pass or fail together, and a denied one was denied by some charge."""
    requests: dict[str | int, list[Operation]] = defaultdict(list)
    for one in scene.operations:
        if one.id is not None and one.f in ("check", "reserve"):
            requests[one.id].append(one)
    for charges in requests.values():
        if len(charges) == 1:
            continue
        first = charges[0]
        if any(one.type != first.type for one in charges):
            yield _at(
                first, "all or nothing", "some charges of one request were taken, but not others"
            )
        elif first.type == "deny" and all(one.own is True for one in charges):
            yield _at(first, "all or nothing", "a request was denied, but none of its charges was")


def _revisions(scene: Scene) -> Iterator[Finding]:
    """A node that has seen a revision of a rule uses no older one."""
    known: dict[tuple[str, str | None], list[Operation]] = defaultdict(list)
    for one in scene.operations:
        if one.rule_rev is not None and one.type in ("allow", "deny"):
            known[one.rule, one.node].append(one)
    everywhere: dict[str, list[Operation]] = defaultdict(list)
    for (rule, node), operations in known.items():
        if node is None:
            everywhere[rule] = [one for one in operations if one.f == "put_rule"]
    for (rule, _), operations in known.items():
        yield from _back(operations, everywhere[rule])


def _back(operations: list[Operation], everywhere: list[Operation]) -> Iterator[Finding]:
    """Process decisions in order of their start, with all that had ended by then."""
    ended = sorted(
        {id(one): one for one in (*operations, *everywhere)}.values(), key=lambda one: one.t1
    )
    newest, at = 0, 0
    for one in sorted(operations, key=lambda one: one.t0):
        while at < len(ended) and ended[at].t1 < one.t0:
            newest = max(newest, ended[at].rule_rev or 0)
            at += 1
        if (one.rule_rev or 0) < newest and one.f != "put_rule":
            yield _at(
                one, "old rule", f"decided by revision {one.rule_rev}, but {newest} was known"
            )


def _at(one: Operation, check: str, message: str) -> Finding:
    return Finding(check, message, one.rule, one.key, one.line, one.t0)
