"""Monitor: how many requests come in and how many are denied, overall and per rule.

A decision costs two integer additions (`TrafficCount`). Once a second the counts become one-second buckets
(`Monitor.note`), which go to the board with the node's heartbeat. The buckets of all nodes become rates (`rates_of`):
requests a second, burst ratio and deny rate over the last ten seconds.

Memory depends on the number of scopes, never on the traffic. A **scope** is a rule's name, or `OVERALL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..board.model import Totals
from ..board.traffic import KEPT_SECONDS, SecondBuckets, figures_of, last_seconds, settled_second

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ..board.traffic import SecondCounts, TrafficRates

OVERALL: Final = ""
"""The scope of all traffic: no rule has an empty name."""
MAX_SCOPES: Final = 256
"""How many scopes are watched, `OVERALL` included. Rules beyond that follow the overall choice."""


class TrafficCount:
    """Two counts that only grow. Threads may lose an addition now and then, which does not matter for rates."""

    __slots__ = ("denied", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.denied = 0

    def add(self, *, allowed: bool) -> None:
        """Count one decision. A hot path adds to the two integers itself."""
        self.requests += 1
        if not allowed:
            self.denied += 1


class Monitor:
    """What this node counts, by scope."""

    def __init__(self, max_scopes: int = MAX_SCOPES) -> None:
        self._max_scopes = max_scopes
        self._counts: dict[str, TrafficCount] = {}
        self._buckets: dict[str, SecondBuckets] = {}
        self._noted = -1
        self._unwatched = TrafficCount()
        self.overall = self.counter(OVERALL)

    @property
    def scopes(self) -> Collection[str]:
        """What is watched."""
        return self._counts.keys()

    def counter(self, scope: str) -> TrafficCount:
        """The counter of a scope. Get it once and keep it. Beyond `max_scopes`, a scope is not watched."""
        known = self._counts.get(scope)
        if known is not None:
            return known
        if len(self._counts) >= self._max_scopes:
            return self._unwatched
        made = self._counts[scope] = TrafficCount()
        buckets = self._buckets[scope] = SecondBuckets()
        if self._noted >= 0:
            buckets.begin(Totals(), self._noted)
        return made

    def keep_only(self, scopes: Collection[str]) -> None:
        """Forget all scopes but these and the overall one: the rules have changed."""
        for scope in self._counts.keys() - {OVERALL, *scopes}:
            del self._counts[scope], self._buckets[scope]

    def note(self, second: int) -> None:
        """Turn what was counted since the last call into buckets; `second` is the last complete one."""
        for scope, count in self._counts.items():
            buckets, totals = self._buckets[scope], Totals(count.requests, count.denied)
            if buckets.counted_to < 0 or buckets.counted_to > second + KEPT_SECONDS:
                # The first call, or the clock has stepped back further than the buckets reach.
                buckets.begin(totals, second)
            else:
                buckets.note(totals, second)
        self._noted = second

    def totals(self) -> Totals:
        """The counts of all scopes together."""
        counts = [*self._counts.values(), self._unwatched]
        return Totals(sum(one.requests for one in counts), sum(one.denied for one in counts))

    def strips(self) -> dict[str, SecondCounts]:
        """The last seconds of every scope with any traffic."""
        found = {scope: buckets.strip() for scope, buckets in self._buckets.items()}
        return {scope: strip for scope, strip in found.items() if any(strip.counts)}


def rates_of(nodes: Iterable[Mapping[str, SecondCounts]], last: int) -> dict[str, TrafficRates]:
    """The rates of every scope over all nodes, in the ten seconds up to `last`, or a little before if a node is late.

    A scope that no node reports is left out: it had no traffic.
    """
    by_scope: dict[str, list[SecondCounts]] = {}
    for node in nodes:
        for scope, strip in node.items():
            by_scope.setdefault(scope, []).append(strip)
    found = {}
    for scope, strips in by_scope.items():
        settled = settled_second((strip.last for strip in strips), last)
        found[scope] = figures_of(last_seconds(strips, settled))
    return found
