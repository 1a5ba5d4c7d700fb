"""What each engine and mode promises, as data: how many units beyond its limit a key may get, and when.

A **bound** is a number of units over the limit, with the wording of the documentation. A promise has one bound that
always holds (`standing`), and one per kind of fault, which is added while that fault has an effect. A fault that a
promise does not name adds nothing: a history with such a fault must keep to the limit.

L is what the limit allows at once (its number, or a bucket's burst), N the nodes, K the nodes that a fault cut off, R
the regions, q the size of a chunk, λΔ what was admitted in the replication lag before the fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from .history import HistoryError
from .limits import most_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..algorithms import Limit


class PromiseCase(NamedTuple):
    """What a bound depends on: one key's limit, the run, and one fault."""

    limit: Limit
    nodes: int = 1
    nodes_unknown: bool = False
    regions: int = 1
    chunk: int = 0
    unconfirmed: int = 0
    in_flight: int = 0
    cut_off: int = 1
    """K."""
    before: int | None = None
    """λΔ: what was admitted shortly before the fault and may be lost; unknown if the lag is not given."""
    step_us: int = 0
    lasts_us: int = 0
    """How long nodes may be without the store, including the time in which they return to it."""
    returns_us: int = 0
    """How long they may take to return, one by one."""
    one_by_one: bool = False
    """Whether nodes may lose the store one by one, so that some still have it while others do not."""
    largest: int = 1
    """The largest cost of any request."""
    standing: int = 0
    """What the mode itself adds, without the fault."""

    @property
    def whole(self) -> int:
        """L."""
        return most_at_once(self.limit)


class ExcessBound(NamedTuple):
    """A number of units beyond the limit."""

    words: str
    units: Callable[[PromiseCase], int]


def _flowing(case: PromiseCase, lasts_us: int) -> int:
    """What a bucket refills in that time; for windows it is part of the limit."""
    if case.limit.name != "token_bucket" or not case.limit.window_us:
        return 0
    return -(-case.limit.limit * lasts_us // case.limit.window_us)


def _lost(case: PromiseCase) -> int:
    return case.whole if case.before is None else min(case.whole, case.before)


def _share(case: PromiseCase) -> int:
    whole, nodes, cut_off = case.whole, case.nodes, min(case.cut_off, case.nodes)
    if case.nodes_unknown:
        return case.nodes * case.whole
    small = whole < nodes
    shares = min(cut_off, whole) if small else cut_off * (whole // nodes)
    apart = case.one_by_one or cut_off < nodes
    # While some nodes have the store and others do not, its bucket refills as usual, and the others' shares beside it.
    beside = _flowing(case, case.lasts_us if apart else case.returns_us)
    beside *= shares if small else min(cut_off, nodes - 1)
    # While no node has it, it refills all the same, and the first to come back find a full bucket.
    unasked = 0 if apart else min(whole, _flowing(case, case.lasts_us - case.returns_us))
    return shares + beside // max(1, min(whole, nodes)) + unasked


def _stepped(case: PromiseCase) -> int:
    """What a clock that steps forward adds: as much as that time would have."""
    step_us = abs(case.step_us)
    if case.limit.name == "token_bucket":
        return min(case.whole, _flowing(case, step_us))
    window_us = case.limit.window_us
    return case.whole * (step_us // window_us + 1) if window_us else case.whole


NOTHING: Final = ExcessBound("0", lambda _: 0)
ONCE: Final = ExcessBound("L once", lambda case: case.whole)
LOST: Final = ExcessBound("min(L, λΔ)", _lost)
SHARE: Final = ExcessBound("K·⌊L/N⌋, or min(K, L) where L < N", _share)
STEPPED: Final = ExcessBound("what the step forward allows", _stepped)
CHUNKS: Final = ExcessBound("what is unspent in chunks: N·q", lambda case: case.nodes * case.chunk)
IN_FLIGHT: Final = ExcessBound("decisions in flight", lambda case: case.in_flight * case.largest)
UNCONFIRMED: Final = ExcessBound(
    "min(unconfirmed, L)", lambda case: min(case.unconfirmed * case.largest, case.whole)
)
REGIONS: Final = ExcessBound("(R - 1)·min(L, λ·lag)", lambda case: (case.regions - 1) * _lost(case))
CUT_REGIONS: Final = ExcessBound(
    "(R - 1)·L in all", lambda case: max(0, (case.regions - 1) * case.whole - case.standing)
)


@dataclass(frozen=True)
class ModePromise:
    """The promise of one engine in one mode."""

    engine: str
    mode: str
    words: str
    standing: ExcessBound = NOTHING
    under: Mapping[str, ExcessBound] = field(default_factory=dict)
    denies_freely: str = ""
    """Why a denial while there is room is allowed; empty if it is not."""
    loses: frozenset[str] = frozenset()
    """Faults after which acknowledged decisions may be lost."""

    def bound(self, fault: str, policy: str) -> ExcessBound:
        """What a fault adds; while the store is down, that depends on the policy."""
        if fault == "clock_step":
            return STEPPED
        if fault in AWAY and policy == "fallback":
            return SHARE
        return self.under.get(fault, NOTHING)


AWAY: Final = frozenset(
    (
        *("store_down", "store_slow", "partition", "failover", "store_restart", "store_kept"),
        *("node_stop", "node_kill"),
    )
)
"""Faults in which nodes may not reach the store, or not in time, so that they answer by their policy. A node that is
killed forgets what it admitted without the store."""
ONE_BY_ONE: Final = frozenset(("store_slow", "partition"))
"""Those of them that may affect nodes at different times: not every call to a slow store is late."""
LOSES: Final = frozenset(("store_restart", "failover"))
REDIS_FAULTS: Final = {"store_restart": ONCE, "failover": LOST}

PROMISES: Final[dict[tuple[str, str], ModePromise]] = {
    (one.engine, one.mode): one
    for one in (
        ModePromise(
            "memory",
            "exact",
            "nothing over; a process killed: L once, or what came after its file was saved",
            under={"node_kill": LOST, "store_restart": LOST},
            loses=frozenset(("node_kill", "store_restart")),
        ),
        ModePromise(
            "redis",
            "exact",
            "nothing over; a restart without AOF: L once; a failover: what was not replicated",
            under=REDIS_FAULTS,
            loses=LOSES,
        ),
        ModePromise(
            "redis",
            "leased",
            "what is unspent in chunks; paused past expiry: decisions in flight",
            standing=CHUNKS,
            under={**REDIS_FAULTS, "node_stop": IN_FLIGHT},
            denies_freely="units are unspent in the chunks of other nodes",
            loses=LOSES,
        ),
        ModePromise(
            "redis",
            "cluster",
            "nothing over; may deny while another request is in flight",
            under=REDIS_FAULTS,
            denies_freely="another request was in flight, and gave back what it had taken",
            loses=LOSES,
        ),
        ModePromise("etcd", "exact", "nothing over, also under faults"),
        ModePromise(
            "etcd",
            "leased",
            "nothing over; an owner killed or cut off: what was not confirmed, at most L",
            under=dict.fromkeys(("node_kill", "node_stop", "partition", "failover"), UNCONFIRMED),
            loses=frozenset(("node_kill", "node_stop", "partition", "failover")),
        ),
        ModePromise(
            "regions",
            "split",
            "as the region's engine, on its share",
            under=REDIS_FAULTS,
            denies_freely="another region's share had room",
            loses=LOSES,
        ),
        ModePromise(
            "regions",
            "merge",
            "what other regions admitted within the lag; cut off: L for each of them",
            standing=REGIONS,
            under={**REDIS_FAULTS, "partition": CUT_REGIONS},
            denies_freely="a region counts what others admitted a moment later",
            loses=LOSES,
        ),
        ModePromise(
            "regions",
            "escrow",
            "nothing over; a failover: what was not replicated",
            under={"failover": LOST},
            denies_freely="rights are unspent in other regions",
            loses=LOSES,
        ),
        ModePromise("other", "exact", "nothing over, and no denial while there is room"),
        ModePromise(
            "other",
            "safe",
            "nothing over; may deny too early",
            denies_freely="it does not claim to deny only what it must",
        ),
    )
}
"""By engine and mode."""


def promise_of(engine: str, mode: str) -> ModePromise:
    """The promise that a history names."""
    promise = PROMISES.get((engine, mode))
    if promise is None:
        known = ", ".join(sorted(" ".join(name) for name in PROMISES))
        raise HistoryError(
            f"there is no promise for {engine!r:.40} in mode {mode!r:.40}; the promises are {known}"
        )
    return promise
