"""Receipts: each decision of a key has a number and a time. No number may be missing or repeated, no time impossible.

An **era** is a period in which versions count up: a store that forgets, because it was restarted or replaced, begins a
new one. Decisions that the old era had acknowledged under versions that the new one uses again are lost: their number
measures a failover.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..scene import OF_POLICY
from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Operation
    from ..scene import Scene, Trail

NUMBERED: Final = frozenset(("check", "peek", "force", "reserve", "acquire", "lease"))
"""Operations that get a version when they are carried out."""


@dataclass(slots=True)
class Era:
    """Decisions of one key in the order of their versions."""

    first: int
    """The version it should begin with; what is missing before counts as a gap."""
    operations: list[Operation] = field(default_factory=list)
    lost: list[Operation] = field(default_factory=list)
    """Decisions acknowledged by the previous era that this one does not have."""

    def missing(self) -> int:
        """The number of versions that nobody has seen."""
        versions = {one.ver for one in self.operations}
        last = max((one.ver or 0 for one in self.operations), default=self.first - 1)
        return last - self.first + 1 - len(versions)


def eras(scene: Scene, trail: Trail) -> list[Era]:
    """The eras of a key, oldest first."""
    losing = [
        (fault.t0, scene.heal(fault) + scene.recovery_us)
        for fault in scene.faults
        if fault.fault in scene.promise.loses
    ]
    by_epoch: dict[str, list[Operation]] = defaultdict(list)
    for one in trail.operations:
        if one.ver is not None:
            by_epoch[one.epoch].append(one)
    runs: list[list[Operation]] = []
    for epoch, operations in by_epoch.items():
        runs += _split(operations, [] if epoch else losing)
    # A new store answers only after the previous one has ended; its clock may be anywhere.
    runs.sort(key=lambda run: min(one.t1 for one in run))
    found: list[Era] = []
    for run in runs:
        lowest = min(one.ver or 0 for one in run)
        if not found:
            found.append(Era(1 if scene.header.fresh else lowest, run))
            continue
        before = found[-1]
        last = max((one.ver or 0 for one in before.operations), default=0)
        lost = [one for one in before.operations if (one.ver or 0) >= lowest]
        found.append(Era(last + 1 if lowest > last else lowest, run, lost))
    return found


def _split(operations: list[Operation], losing: list[tuple[int, int]]) -> list[list[Operation]]:
    """Split where versions fall back during a fault that may lose some; a named epoch is never split."""
    if not losing:
        return [sorted(operations, key=lambda one: one.ver or 0)]
    runs: list[list[Operation]] = [[]]
    highest = 0
    for one in sorted(operations, key=lambda one: (one.now_us or 0, one.ver or 0)):
        run = runs[-1]
        version = one.ver or 0
        if run and version <= highest:
            before = run[-1]
            if any(begin <= one.t1 and before.t0 <= end for begin, end in losing):
                runs.append([])
                highest = 0
        runs[-1].append(one)
        highest = max(highest, version)
    return [sorted(run, key=lambda one: one.ver or 0) for run in runs]


def findings(scene: Scene, trail: Trail, found: list[Era]) -> Iterator[Finding]:
    """What is wrong with the versions and times of a key."""
    if not found:
        return
    yield from _gaps(scene, trail, found)
    for era in found:
        yield from _twice(era)
        yield from _times(scene, era)
    allowed_to_lose = any(fault.fault in scene.promise.loses for fault in scene.faults)
    for era in found:
        if era.lost and not allowed_to_lose:
            yield _at(
                era.lost[0],
                "lost",
                f"{len(era.lost)} decisions were acknowledged, and then made again under the same version",
                len(era.lost),
            )


def _gaps(scene: Scene, trail: Trail, found: list[Era]) -> Iterator[Finding]:
    """Only operations of unknown outcome may have used up a version without a trace."""
    missing = sum(era.missing() for era in found)
    excused = sum(
        1
        for one in trail.operations
        if one.f in NUMBERED
        and (
            one.type == "info"
            # The store may have been called before the node gave up and answered without it.
            or (one.source in OF_POLICY and scene.policy != "raise")
            or (
                one.ver is None
                and one.type in ("allow", "deny")
                and one.source in ("engine", "shadow")
            )
        )
    )
    if missing > excused:
        yield Finding(
            "missing version",
            f"{missing} decisions of the store reached no caller, and only {excused} answers are unknown: "
            "something was carried out twice, or without a client's request",
            trail.rule,
            trail.key,
            found[0].operations[0].line,
            found[0].operations[0].t0,
            missing - excused,
        )


def _twice(era: Era) -> Iterator[Finding]:
    before: Operation | None = None
    for one in era.operations:
        if before is not None and one.ver == before.ver:
            yield _at(
                one,
                "duplicate version",
                f"version {one.ver} was used twice, also in line {before.line}",
            )
        before = one


def _times(scene: Scene, era: Era) -> Iterator[Finding]:
    header = scene.header
    steps = [scene.influence(one) for one in scene.faults if one.fault == "clock_step"]
    stepping = bool(steps)
    before: Operation | None = None
    for one in era.operations:
        assert one.now_us is not None
        at = one.now_us - header.epoch_us
        wide = header.epsilon_us
        if not stepping and not one.t0 - wide <= at <= one.t1 + wide:
            away_us = max(one.t0 - at, at - one.t1)
            yield _at(
                one, "impossible time", f"the engine's clock was {away_us} us outside the call"
            )
        if before is not None and not stepping:
            assert before.now_us is not None
            if one.now_us < before.now_us:
                yield _at(
                    one,
                    "time ran back",
                    f"version {one.ver} was decided {before.now_us - one.now_us} us before version {before.ver}",
                )
        before = one


def _at(one: Operation, check: str, message: str, units: int = 1) -> Finding:
    return Finding(check, message, one.rule, one.key, one.line, one.t0, units)
