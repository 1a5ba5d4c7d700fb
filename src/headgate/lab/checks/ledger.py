"""The ledger without receipts: the store's count, compared with what clients certainly or possibly got.

For algorithms that count whole units in a window; the others need receipts (`replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...algorithms import FixedWindow
from ..scene import TAKES, counted_of
from ..spans import Sums
from .replay import busy, ledger_finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Operation
    from ..scene import Scene, Trail
    from .finding import Finding


def findings(scene: Scene) -> Iterator[Finding]:
    """All impossible counts of the store."""
    for trail in counted_of(scene):
        for one in trail.operations:
            if one.f == "ledger" and one.type == "allow" and not busy(trail, one):
                yield from _compare(scene, trail, one)


def _compare(scene: Scene, trail: Trail, ledger: Operation) -> Iterator[Finding]:
    limit, header = trail.limit_of(ledger), scene.header
    settled = any(one.f in ("settle", "reset", "unlease") for one in trail.operations)
    # A store whose clock stepped counts units taken ahead of time for longer than a window.
    losses = any(
        fault.fault in scene.promise.loses or fault.fault == "clock_step" for fault in scene.faults
    )
    if (
        settled
        or losses
        or not header.fresh
        or ledger.used is None
        or limit.name not in ("fixed_window", "sliding_log")
    ):
        return
    wide = header.epsilon_us
    begin, end = ledger.t0 - wide, ledger.t1 + wide
    since, surely = begin - limit.window_us, end - limit.window_us + 1
    if isinstance(limit, FixedWindow):
        if not header.aligned:
            return
        since = limit.bounds_us(begin + header.epoch_us)[0] - header.epoch_us
        surely = limit.bounds_us(end + header.epoch_us)[0] - header.epoch_us
    inside = [
        one
        for one in trail.operations
        if one.type == "allow" and one.t0 - wide >= surely and one.t1 <= ledger.t0
    ]
    least = sum(
        one.cost
        for one in inside
        if one.f in ("check", "reserve", "lease") and one.source == "engine"
    )
    # What was admitted without the store is charged by force when it is back, unless the node has died before.
    forced = sum(one.cost for one in inside if one.f == "force" and one.source == "engine")
    given = sum(
        one.cost
        for one in inside
        if (one.f in TAKES or one.f == "force")
        and one.source == "fallback"
        and not _may_be_forgotten(scene, one)
    )
    least += max(forced, given) if scene.policy == "fallback" else forced
    most = Sums(scene.possible(trail)).meeting(since, end)
    if not least <= ledger.used <= most:
        yield ledger_finding(ledger, least, most)


def _may_be_forgotten(scene: Scene, one: Operation) -> bool:
    """Whether the node that admitted it was killed later, perhaps before it could charge the store."""
    return any(
        fault.fault == "node_kill" and fault.node in (None, one.node) and fault.t1 >= one.t0
        for fault in scene.faults
    )
