"""Policy: answers without the store occur only while it is down, and a fallback stays within its share.

`recovery_us` after all faults are healed, every answer must be the store's again. A header may allow a few answers that
are not (`stray_per_mille`), and fewer from then on (`settled_per_mille`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ...guards.shares import divided
from ..limits import most_at_once
from ..scene import ASKED, TAKES, counted_of
from .finding import Finding
from .safety import worst_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Fault, Operation
    from ..scene import Scene, Trail


def findings(scene: Scene) -> Iterator[Finding]:
    """Exceeded shares, and answers that should have been the store's."""
    for trail in counted_of(scene):
        yield from _shares(scene, trail)
    yield from _without_reason(scene)


def _without_reason(scene: Scene) -> Iterator[Finding]:
    """Answers that should have been the store's, if there are more of them than the header allows."""
    allowed = scene.parameters.get("stray_per_mille", 0)
    settled = scene.parameters.get("settled_per_mille", allowed)
    asked = [one for one in scene.operations if one.f in ASKED]
    for per_mille, answers in (
        (allowed, [one for one in asked if one.t0 <= scene.settled]),
        (settled, [one for one in asked if one.t0 > scene.settled]),
    ):
        strays = [one for one in answers if scene.is_stray(one)]
        if len(strays) > -(-len(answers) * per_mille // 1_000):
            yield from _late_recoveries(scene, strays)


def _late_recoveries(scene: Scene, strays: list[Operation]) -> Iterator[Finding]:
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


def _lives(given: list[Operation], kills: list[Fault]) -> Iterator[list[Operation]]:
    """What a node admitted without the store, split where it may have been killed: then it forgets what it admitted."""
    life: list[Operation] = []
    for one in given:
        if life and any(kill.t0 <= one.t1 and life[-1].t0 <= kill.t1 for kill in kills):
            yield life
            life = []
        life.append(one)
    if life:
        yield life


def _shares(scene: Scene, trail: Trail) -> Iterator[Finding]:
    """Each node within its share, however often it lost the store; a small limit has only as many shares as units."""
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
    kills = [fault for fault in scene.faults if fault.fault == "node_kill"]
    certain = {span.line: span for span in scene.certain(trail)}
    lives = [
        (node, life)
        for node, operations in groups.items()
        for life in _lives(operations, [kill for kill in kills if kill.node in (None, node)])
    ]
    for node, life in lives:
        spans = [certain[one.line] for one in life if one.line in certain]
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
