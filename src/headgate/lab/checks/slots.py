"""Slots: never more are held than allowed, and none is refused while enough are free.

A slot is certainly held from when its holder knew it (`t1` of `acquire`) until the holder began to release it (`t0` of
`release`) or it may have expired. It is possibly held from when it was requested until the release was confirmed, or
until it has certainly expired.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ...algorithms import Concurrency
from ..scene import slots_of
from .finding import Finding
from .liveness import Tops
from .safety import Excess
from .sweep import NONE, Added, Worst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..history import Operation
    from ..scene import Scene, Trail


class HeldSlots(NamedTuple):
    """Slots held from one moment to just before another."""

    begin: int
    end: int
    cost: int
    line: int


def excesses(scene: Scene) -> list[Excess]:
    """The most slots that were certainly held at once, beyond the limit and beyond the bound."""
    return [_excess(scene, trail) for trail in slots_of(scene)]


def _excess(scene: Scene, trail: Trail) -> Excess:
    held = holdings(scene, trail)
    bare = _worst(held, trail.limit.limit, Added(()))
    extras, standing = scene.extras(trail), scene.standing(trail)
    allowed = standing + sum(one.units for one in extras)
    bound = _worst(held, trail.limit.limit + standing, Added(extras))
    return Excess(trail.rule, trail.key, max(0, bare.over), allowed, max(0, bound.over), bound)


def _worst(held: Sequence[HeldSlots], limit: int, added: Added) -> Worst:
    steps = [(one.begin, one.cost, one.line) for one in held]
    steps += [(one.end, -one.cost, one.line) for one in held]
    worst, now = NONE, 0
    for at, change, line in sorted(steps):  # At equal times, ends come before beginnings.
        now += change
        over = now - limit - added.to(at, at)
        if change > 0 and over > worst.over:
            worst = Worst(over, at, at, now, line, at)
    return worst


def denials(scene: Scene) -> Iterator[Finding]:
    """Slots that were refused while enough were certainly free."""
    for trail in slots_of(scene):
        asked = scene.denials(trail) if scene.header.fresh else []
        if not asked:
            continue
        held = _possible(scene, trail)
        moments = sorted({*(one.begin for one in held), *(scene.looks_from(one) for one in asked)})
        ends = sorted((one.end, one.cost) for one in held)
        begins = sorted((one.begin, one.cost) for one in held)
        levels, now, begun, ended = [], 0, 0, 0
        for moment in moments:
            while begun < len(begins) and begins[begun][0] <= moment:
                now += begins[begun][1]
                begun += 1
            while ended < len(ends) and ends[ended][0] < moment:
                now -= ends[ended][1]
                ended += 1
            levels.append(now)
        tops = Tops(levels)
        for one in asked:
            first = bisect_left(moments, scene.looks_from(one))
            last = bisect_right(moments, one.t1 + scene.header.epsilon_us)
            room = trail.limit.limit - tops.largest(first, last)
            if one.cost <= room:
                yield Finding(
                    "false denial",
                    f"{one.cost} of {trail.limit.limit} slots refused, but {room} were certainly free",
                    one.rule,
                    one.key,
                    one.line,
                    one.t0,
                )


def _lives(trail: Trail) -> Iterator[tuple[Operation, list[Operation]]]:
    """Each acquired slot, with the later operations of its holder."""
    later: dict[str, list[Operation]] = defaultdict(list)
    for one in trail.operations:
        if one.f in ("renew", "release") and one.token and one.type != "fail":
            later[one.token].append(one)
    for one in trail.operations:
        if one.f == "acquire" and one.type in ("allow", "info") and one.cost > 0:
            yield one, later.get(one.token or "", [])


def holdings(scene: Scene, trail: Trail) -> list[HeldSlots]:
    """The times during which slots were certainly held."""
    wide, ttl_us = scene.header.epsilon_us, _ttl_us(trail)
    held = []
    for one, later in _lives(trail):
        if one.type == "info" or one.source in ("shadow", "open"):
            continue
        expires = one.t0 - wide + ttl_us
        released = None
        for act in later:
            if act.f == "renew" and act.type == "allow":
                expires = max(expires, act.t0 - wide + ttl_us)
            elif act.f == "release" and released is None:
                released = act.t0
        end = min(expires, expires if released is None else released)
        if end > one.t1:
            held.append(HeldSlots(one.t1, end, one.cost, one.line))
    return held


def _possible(scene: Scene, trail: Trail) -> list[HeldSlots]:
    wide, ttl_us = scene.header.epsilon_us, _ttl_us(trail)
    held = []
    for one, later in _lives(trail):
        expires = scene.latest(one) + wide + ttl_us
        released = None
        for act in later:
            if act.f == "renew":
                expires = max(expires, scene.latest(act) + wide + ttl_us)
            elif _reaches(act, one) and released is None:
                released = scene.latest(act)
        if one.type == "allow" and released is not None:
            expires = min(expires, released)
        held.append(HeldSlots(one.t0 - wide, expires, one.cost, one.line))
    return held


def _reaches(release: Operation, acquired: Operation) -> bool:
    """Whether a release certainly frees the slot; one that a node gave without the store is known only there."""
    told = release.f == "release" and release.type == "allow"
    return told and (acquired.source != "fallback" or release.node == acquired.node)


def _ttl_us(trail: Trail) -> int:
    assert isinstance(trail.limit, Concurrency)
    return trail.limit.ttl_us
