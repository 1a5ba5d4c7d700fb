"""Leases: a chunk is spent only by its holder, once, and not after its deadline.

The deadline is the holder's, on the clock of the history, counted from before it asked for the chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..history import Operation
    from ..scene import Scene, Trail


def findings(scene: Scene) -> Iterator[Finding]:
    """All findings about chunks."""
    for trail in scene.trails:
        grants = {
            one.lease_id: one
            for one in trail.operations
            if one.f == "lease" and one.type in ("allow", "info")
        }
        spent = [one for one in trail.operations if one.source == "lease" and one.type == "allow"]
        yield from _overspent(trail, grants, [one for one in spent if one.lease_id is not None])
        yield from _more_than_given(trail, [one for one in spent if one.lease_id is None])
        yield from _late(grants, spent)
        yield from _after_all(scene, trail, [one for one in spent if one.lease_id is None])
        yield from _too_long(scene, grants)


def _overspent(
    trail: Trail, grants: dict[str | None, Operation], spent: list[Operation]
) -> Iterator[Finding]:
    sums: dict[str | None, int] = defaultdict(int)
    for one in trail.operations:
        if one.f == "unlease" and one.type == "allow":
            sums[one.lease_id] += one.cost
    for one in spent:
        grant = grants.get(one.lease_id)
        if grant is None:
            if grants:
                yield _at(
                    one,
                    "lease",
                    f"spent from the chunk {one.lease_id!r:.40}, which was never granted",
                )
            continue
        sums[one.lease_id] += one.cost
        if grant.cost < sums[one.lease_id] <= grant.cost + one.cost:
            yield _at(
                one, "lease", f"more was spent or returned than the {grant.cost} units of its chunk"
            )
        if one.node != grant.node:
            yield _at(one, "lease", f"spent by {one.node}, but granted to {grant.node}")


def _more_than_given(trail: Trail, spent: list[Operation]) -> Iterator[Finding]:
    """If chunks are not named: no node has spent more than all of its chunks held."""
    given: dict[str | None, int] = defaultdict(int)
    for one in trail.operations:
        if one.f == "lease" and one.type in ("allow", "info"):
            given[one.node] += one.cost
    sums: dict[str | None, int] = defaultdict(int)
    for one in spent if given else ():
        sums[one.node] += one.cost
        if given[one.node] < sums[one.node] <= given[one.node] + one.cost:
            yield _at(
                one,
                "lease",
                f"{one.node} spent more than the {given[one.node]} units of its chunks",
            )


def _late(grants: dict[str | None, Operation], spent: list[Operation]) -> Iterator[Finding]:
    for one in spent:
        grant = grants.get(one.lease_id)
        if grant is not None and grant.deadline_us is not None and one.t0 > grant.deadline_us:
            late_us = one.t0 - grant.deadline_us
            yield _at(one, "lease", f"spent {late_us} us after the chunk had expired")


def _after_all(scene: Scene, trail: Trail, spent: list[Operation]) -> Iterator[Finding]:
    """If spending does not name a chunk: one of the node's must still have been valid at the time of the request."""
    lease_us = scene.parameters.get("lease_us", 0)
    begun: dict[str | None, list[int]] = defaultdict(list)
    for grant in trail.operations if lease_us else ():
        if grant.f == "lease" and grant.type in ("allow", "info"):
            begun[grant.node].append(grant.t0)
    for one in spent:
        times = begun[one.node]
        place = bisect_right(times, one.t1)
        if place and one.t0 > times[place - 1] + lease_us:
            late_us = one.t0 - times[place - 1] - lease_us
            words = f"spent {late_us} us after the last chunk of {one.node} had expired"
            yield _at(one, "lease", words)


def _too_long(scene: Scene, grants: dict[str | None, Operation]) -> Iterator[Finding]:
    """The store counts from when it granted the chunk; a holder that counts from the answer is later."""
    lease_us = scene.parameters.get("lease_us", 0)
    for grant in grants.values():
        if lease_us and grant.deadline_us is not None and grant.deadline_us > grant.t0 + lease_us:
            beyond_us = grant.deadline_us - grant.t0 - lease_us
            yield _at(
                grant,
                "lease",
                f"its holder's deadline is {beyond_us} us later than the store's may be",
            )


def _at(one: Operation, check: str, message: str) -> Finding:
    return Finding(check, message, one.rule, one.key, one.line, one.t0)
