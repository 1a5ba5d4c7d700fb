"""Policy: answers without the store occur only while it is down, and a fallback stays within its share.

`recovery_us` after all faults are healed, every answer must be the store's again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from ...guards.shares import divided
from ..limits import most_at_once
from ..scene import TAKES, Span, counted_of
from .finding import Finding
from .safety import worst_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Fault, Operation
    from ..scene import Scene, Trail


def findings(scene: Scene) -> Iterator[Finding]:
    """Exceeded shares, and answers that should have been the store's."""
    asked = _asked_by_node(scene)
    for trail in counted_of(scene):
        yield from _shares(scene, trail, asked)
    yield from _without_reason(scene)


def _without_reason(scene: Scene) -> Iterator[Finding]:
    """Answers that should have been the store's; the header may allow a few of them."""
    strays = [one for one in scene.operations if scene.is_stray(one)]
    if len(strays) * 1_000 <= len(scene.operations) * scene.parameters.get("stray_per_mille", 0):
        return
    ends = [scene.influence(fault)[1] for fault in scene.faults]
    for one in strays:
        ended = [end - scene.recovery_us for end in ends if end < one.t0]
        since = f", {(one.t0 - max(ended)) / 1e6:.3f} s after it was healed" if ended else ""
        yield Finding(
            "late recovery",
            f"answered by the policy ({one.source}) while the store was up{since}",
            one.rule,
            one.key,
            one.line,
            one.t0,
        )


def _asked_by_node(scene: Scene) -> dict[str | None, list[Operation]]:
    """The store's answers to each node, in the order of the requests."""
    found: dict[str | None, list[Operation]] = defaultdict(list)
    for one in sorted(scene.operations, key=lambda one: one.t0):
        if one.source == "engine" and one.type in ("allow", "deny"):
            found[one.node].append(one)
    return found


def _outages(
    given: list[Operation], asked: list[Operation], kills: list[Fault]
) -> Iterator[list[Operation]]:
    """What a node admitted without the store, split where it had the store in between, and where it was killed."""
    begins = [one.t0 for one in asked]
    outage: list[Operation] = []
    for one in given:
        if outage:
            # Any answer of the store after the last one began, and before this one ended, may lie in between.
            place = bisect_left(begins, outage[-1].t0)
            had_store = place < len(begins) and begins[place] <= one.t1
            if had_store or any(outage[-1].t0 <= kill.t1 <= one.t1 for kill in kills):
                yield outage
                outage = []
        outage.append(one)
    if outage:
        yield outage


def _shares(
    scene: Scene, trail: Trail, asked: dict[str | None, list[Operation]]
) -> Iterator[Finding]:
    """Each node within its share in each outage; with more nodes than units, only as many nodes as units have one."""
    nodes = scene.parameters.get("nodes")
    given = [
        one
        for one in trail.operations
        if one.f in TAKES
        and one.source == "fallback"
        and one.type == "allow"
        and one.cost > 0
        and not scene.is_stray(one)
    ]
    if not given or not nodes or scene.parameters.get("nodes_unknown", False):
        return
    groups: dict[str | None, list[Operation]] = defaultdict(list)
    for one in given:
        groups[one.node].append(one)
    units = most_at_once(trail.limit)
    small = units < nodes
    if small and len(groups) > units:
        yield Finding(
            "fallback share",
            f"{len(groups)} of {nodes} nodes gave of {units} units without the store",
            trail.rule,
            trail.key,
            given[-1].line,
            given[-1].t0,
            len(groups) - units,
        )
    share = divided(trail.limit, max(1, units) if small else nodes)
    wide = scene.header.epsilon_us
    kills = [fault for fault in scene.faults if fault.fault == "node_kill"]
    outages = [
        (node, outage)
        for node, operations in groups.items()
        for outage in _outages(operations, asked[node], kills)
    ]
    for node, operations in outages:
        spans = [Span(one.t0 - wide, one.t1 + wide, one.cost, one.line) for one in operations]
        worst = worst_of(share, spans, scene)
        if worst.over > 0:
            yield Finding(
                "fallback share",
                f"{node} gave {worst.admitted} units in {(worst.end - worst.begin) / 1e6:.3f} s without the store, "
                f"{worst.over} more than its share of {share.limit}",
                trail.rule,
                trail.key,
                worst.line,
                worst.at,
                worst.over,
            )
