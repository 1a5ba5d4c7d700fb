"""EscrowGuard: has the engine count against the rights of this region, for limits that are kept by escrow.

It asks for the rights in the place of the limit, and believes an answer only as far as the rights are there: in the
window that the store has counted in, and in the epoch of the store that has answered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from ..algorithms.base import MAX_EXACT, NEVER
from ..charge import Charge, ChargeSet, ReadyCharge
from ..charge_kind import ChargeKind
from ..decision import Decision
from ..guards.base import AskInstead, Guard, HitGuard
from .escrow import Counted, KeyWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import FixedWindow, Limit
    from .escrow import EscrowDesk, StoreEpoch

ESCROW: Final = "escrow"
OnLow: TypeAlias = "Callable[[FixedWindow, KeyWindow, int], None]"
"""`(limit, window, left)`: called after each decision; whether that is low is for the desk to say."""


class StoreView(Protocol):
    """What is known of the store without asking it; `RightsStore` is one."""

    @property
    def epoch(self) -> StoreEpoch:
        """The epoch of whoever answers now."""

    def now_us(self) -> int:
        """Its clock."""

    def start_of(self, limit: FixedWindow, reset_after_us: int) -> int:
        """When the window began that it has counted in, if it says that this ends in so long."""


@lru_cache(maxsize=8_192)
def with_number(limit: FixedWindow, number: int) -> FixedWindow:
    """The same window with another number of units, counted where the limit is."""
    kind: type[Any] = type(limit)
    made: FixedWindow = kind(number, *limit.made_of[1:]).across_regions(ESCROW)
    return made


def window_of(limit: FixedWindow, rule: str | None, key: str, now_us: int) -> KeyWindow:
    """The window of a key that is under way."""
    start_us, end_us = limit.bounds_us(now_us)
    return KeyWindow(rule, key, limit.identity, limit.limit, start_us, end_us)


class EscrowGuard(Guard):
    """Asks for this region's rights in the place of a limit that is kept by escrow."""

    has_chores: ClassVar[bool] = True  # Those of `AskInstead`: there are none.

    def __init__(self, desk: EscrowDesk, store: StoreView, on_low: OnLow) -> None:
        self._desk = desk
        self._store = store
        self._on_low = on_low
        self._whole: dict[tuple[str | None, str], FixedWindow] = {}
        """The limits that rights are held of, by rule and identity."""

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | None:
        """See `Guard.for_limit`."""
        if limit.consistency != ESCROW:
            return None
        whole: Any = limit

        def before(key: str, cost: int) -> AskInstead:
            charge = Charge(key, self._rights_of(whole, rule, key), cost, rule=rule)

            def answered(decision: Decision) -> Decision:
                return self._told(whole, rule, cost, decision)

            return AskInstead(ChargeSet((charge,)), answered, _nothing)

        return HitGuard(before, _as_it_is)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        if not any(limit.consistency == ESCROW for one in request.charges for limit in one.limits):
            return request
        return request._replace(charges=tuple(map(self._with_rights, request.charges)))

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """See `Guard.after`."""
        steps = [(charge, limit) for charge in request.charges for limit in charge.limits]
        if not any(limit.consistency == ESCROW for _, limit in steps):
            return decision
        parts = [
            self._part(charge, limit, part)
            for (charge, limit), part in zip(steps, decision.rules, strict=True)
        ]
        if not decision.several:
            (told,) = parts
            return told
        refused = [part for part in parts if not part and part.source != "shadow"]
        shown = decision
        if (
            decision and refused
        ):  # It is charged, and not admitted: units are lost, and none is doubled.
            shown = refused[0]
        else:
            place = decision.rules.index(decision) if decision in decision.rules else 0
            shown = parts[place] if decision.key == parts[place].key else decision
        return Decision(shown.key, shown.limited_by, shown.answer, shown.context, tuple(parts))

    def _part(self, charge: Charge, limit: Limit, part: Decision) -> Decision:
        if limit.consistency != ESCROW:
            return part
        whole = self._whole[charge.rule, limit.identity]
        if charge.kind is not ChargeKind.TAKE:
            return Decision(part.key, whole, part.answer, part.context)
        return self._told(whole, charge.rule, charge.cost, part)

    def _with_rights(self, charge: Charge) -> Charge:
        limits: list[Limit] = []
        for limit in charge.limits:
            whole: Any = limit
            is_escrow = limit.consistency == ESCROW
            limits.append(self._rights_of(whole, charge.rule, charge.key) if is_escrow else limit)
        return ReadyCharge(charge.key, tuple(limits), charge.cost, charge.kind, charge.rule)

    def _rights_of(self, whole: FixedWindow, rule: str | None, key: str) -> FixedWindow:
        """The limit to ask with."""
        self._whole[rule, whole.identity] = whole
        self._desk.meet(self._store.epoch)
        window = window_of(whole, rule, key, self._store.now_us())
        return with_number(whole, min(self._desk.rights(window), MAX_EXACT))

    def _told(
        self, whole: FixedWindow, rule: str | None, cost: int, decision: Decision
    ) -> Decision:
        """What the caller is told, given what the engine has answered with the rights as the limit."""
        allowed, left, retry_after_us, reset_after_us, level = decision.answer
        key, store = decision.key, self._store
        window = window_of(whole, rule, key, store.now_us())
        if decision.source == "engine":
            start_us = store.start_of(whole, reset_after_us)
            counted = Counted(allowed, left, start_us, store.epoch)
            allowed = self._desk.admits(window, decision.limit, counted)
        if not allowed:
            left = 0 if decision.answer[0] else left
            retry_after_us = (
                max(1, window.end_us - store.now_us()) if cost <= whole.limit else NEVER
            )
        if decision.source in ("engine", "cache"):
            self._on_low(whole, window, left if allowed or cost > left else 0)
        answer = (allowed, left, retry_after_us, reset_after_us, level)
        return Decision(key, whole, answer, decision.context)


def _as_it_is(decision: Decision, _ticket: object) -> Decision:
    """The answer to the hit itself, which is never asked."""
    return decision


def _nothing() -> None:
    """There is nothing to give up."""
