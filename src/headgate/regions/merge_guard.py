"""The guards of merged limits: one records admissions, one lowers the limit while a region is cut off.

Recorded admissions are sent to the other regions. A rule may say that a region which is cut off from another continues
with its share only (`when_cut_off: share`); otherwise it continues with the whole limit, by its own count and the last
counts it received.
"""

from __future__ import annotations

import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

from ..charge import ReadyCharge
from ..charge_kind import ChargeKind
from ..guards.base import Guard, HitGuard, Variants, cost_as_ticket
from .counters import CounterName, slice_bounds_us
from .shares import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..algorithms import Limit
    from ..charge import Charge, ChargeSet
    from ..decision import Decision
    from .model import Regions


class _Admitted:
    """Units of one limit admitted since the last `take`, by slice and key. It runs on every hit.

    So a hit only compares the monotonic clock with the end of the slice, which is computed by the store's clock after
    each `take`.
    """

    __slots__ = ("_now_us", "_slice_us", "by_key", "ends_ns", "limit", "over", "rule")

    def __init__(self, limit: Limit, rule: str | None, now_us: Callable[[], int]) -> None:
        self.limit = limit
        self.rule = rule
        self._now_us = now_us
        self.by_key: dict[str, int] = {}
        """Units in the current slice."""
        self.over: list[tuple[int, dict[str, int]]] = []
        """Units in earlier slices."""
        self._slice_us = 0
        self.ends_ns = 0
        """When the slice ends, by the monotonic clock; 0 if not computed yet."""

    def after(self) -> Callable[[Decision, int], Decision]:
        """The hook that counts an admitted cost."""

        def after(decision: Decision, cost: int) -> Decision:
            if decision.answer[0] and cost:
                if monotonic_ns() >= self.ends_ns:
                    self.begin()
                by_key, key = self.by_key, decision.key
                by_key[key] = by_key.get(key, 0) + cost
            return decision

        return after

    def add(self, key: str, units: int) -> None:
        if monotonic_ns() >= self.ends_ns:
            self.begin()
        by_key = self.by_key
        by_key[key] = by_key.get(key, 0) + units

    def take(self) -> Iterator[tuple[CounterName, int]]:
        self._turn()
        self.ends_ns = 0
        over, self.over = self.over, []
        for slice_us, by_key in over:
            for key, units in by_key.items():
                yield CounterName(self.rule, key, self.limit, slice_us), units

    def begin(self) -> None:
        """Move to the current slice, by the store's clock."""
        now_us = self._now_us()
        slice_us, ends_us = slice_bounds_us(self.limit, now_us)
        if slice_us != self._slice_us:
            self._turn()
            self._slice_us = slice_us
        self.ends_ns = monotonic_ns() + 1_000 * (ends_us - now_us)

    def _turn(self) -> None:
        if self.by_key:
            self.over.append((self._slice_us, self.by_key))
            self.by_key = {}


class _SharedAdmitted(_Admitted):
    """The same, safe under threads."""

    __slots__ = ("_lock", "_noted")

    def __init__(
        self,
        limit: Limit,
        rule: str | None,
        now_us: Callable[[], int],
        noted: Callable[[], None],
    ) -> None:
        super().__init__(limit, rule, now_us)
        self._lock = threading.Lock()
        self._noted = noted

    def after(self) -> Callable[[Decision, int], Decision]:
        add = self.add

        def after(decision: Decision, cost: int) -> Decision:
            if decision.answer[0] and cost:
                add(decision.key, cost)
            return decision

        return after

    def add(self, key: str, units: int) -> None:
        with self._lock:
            super().add(key, units)
        self._noted()

    def take(self) -> Iterator[tuple[CounterName, int]]:
        with self._lock:
            return iter(list(super().take()))

    def forget(self) -> None:
        """Start afresh in a child process, where nobody holds the lock."""
        self._lock = threading.Lock()
        self.by_key, self.over, self.ends_ns = {}, [], 0


class MergeGuard(Guard):
    """Records admissions. For one event loop, as in a node of the service."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        """The current time on the store's clock, as estimated here."""
        self._admitted: dict[tuple[Limit, str | None], _Admitted] = {}

    def take(self) -> Iterator[tuple[CounterName, int]]:
        """Return and clear what was admitted since the last call."""
        for one in list(self._admitted.values()):
            yield from one.take()

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | None:
        """See `Guard.for_limit`."""
        if limit.consistency != "merge":
            return None
        return HitGuard(cost_as_ticket, self._of(limit, rule).after())

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """See `Guard.after`. Shadows are charged like everything else, so they are recorded, too."""
        if decision.answer[0]:
            for charge in request.charges:
                if charge.cost and charge.kind is not ChargeKind.PEEK:
                    self._note(charge)
        return decision

    def _note(self, charge: Charge) -> None:
        for limit in charge.limits:
            if limit.consistency == "merge":
                self._of(limit, charge.rule).add(charge.key, charge.cost)

    def _of(self, limit: Limit, rule: str | None) -> _Admitted:
        found = self._admitted.get((limit, rule))
        if found is None:
            found = self._admitted.setdefault((limit, rule), self._new(limit, rule))
        return found

    def _new(self, limit: Limit, rule: str | None) -> _Admitted:
        return _Admitted(limit, rule, self.now_us)


class SharedMergeGuard(MergeGuard):
    """The same for programs with several threads. `check` may refuse a limit; `noted` is called after each hit."""

    def __init__(
        self, now_us: Callable[[], int], check: Callable[[], None], noted: Callable[[], None]
    ) -> None:
        super().__init__(now_us)
        self._check = check
        self._noted = noted

    def forget(self) -> None:
        """Drop the records in a child process: the parent sends them."""
        for one in self._admitted.values():
            if isinstance(one, _SharedAdmitted):
                one.forget()

    def _new(self, limit: Limit, rule: str | None) -> _Admitted:
        self._check()
        return _SharedAdmitted(limit, rule, self.now_us, self._noted)


class _Choice:
    """Selects the limit or this region's share of it."""

    __slots__ = ("index", "rule")

    def __init__(self, rule: str | None) -> None:
        self.rule = rule
        self.index = 0


class CutOffGuard(Guard):
    """Asks for this region's share, for rules that say so, while some region is cut off."""

    def __init__(self, regions: Regions, keeps_share: Callable[[str | None], bool]) -> None:
        self._regions = regions
        self._keeps_share = keeps_share
        """Whether a rule continues with its share."""
        self.cut = False
        """Whether some region is cut off."""
        self._choices: dict[tuple[Limit, str | None], _Choice] = {}

    def set_reachable(self, *, all_regions: bool) -> None:
        """Record whether all regions are connected; also applies changes of rules."""
        self.cut = not all_regions
        for choice in list(self._choices.values()):  # Other threads may add some.
            choice.index = self._index(choice.rule)

    def for_limit(self, limit: Limit, rule: str | None) -> Variants | None:
        """See `Guard.for_limit`."""
        if limit.consistency != "merge":
            return None
        choice = self._choices.setdefault((limit, rule), _Choice(rule))
        choice.index = self._index(rule)
        return Variants((limit, share_of(limit, self._regions)), choice)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        if not self.cut:
            return request
        return request._replace(charges=tuple(map(self._asked, request.charges)))

    def current_limit(self, limit: Limit, rule: str | None) -> Limit:
        """See `Guard.current_limit`."""
        less = limit.consistency == "merge" and self._index(rule)
        return share_of(limit, self._regions) if less else limit

    def _index(self, rule: str | None) -> int:
        return int(self.cut and self._keeps_share(rule))

    def _asked(self, charge: Charge) -> Charge:
        limits = tuple(self.current_limit(limit, charge.rule) for limit in charge.limits)
        return ReadyCharge(charge.key, limits, charge.cost, charge.kind, charge.rule)
