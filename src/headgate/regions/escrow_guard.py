"""EscrowGuard: for limits with escrow, makes the engine count against the rights of this region.

It asks for the rights instead of the limit, and trusts an answer only as far as the region has rights in the window
that the store has counted in, and in the epoch of the store that has answered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from ..algorithms.base import MAX_EXACT, NEVER
from ..charge import Charge, ChargeSet, ReplacedCharge
from ..charge_kind import ChargeKind
from ..decision import Decision
from ..guards.base import AskInstead, Guard, HitGuard
from .escrow import Counted, KeyWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..algorithms import FixedWindow, Limit
    from .escrow import EscrowAccount, StoreEpoch

ESCROW: Final = "escrow"
OnLow: TypeAlias = "Callable[[FixedWindow, KeyWindow, int], None]"
"""`(limit, window, left)`: called after each decision; the account decides whether that is low."""


class StoreView(Protocol):
    """What is known about the store without calling it; `RightsStore` is one."""

    @property
    def epoch(self) -> StoreEpoch:
        """The epoch of the store that answers now."""

    def now_us(self) -> int:
        """The current time on its clock."""

    def start_of(self, limit: FixedWindow, reset_after_us: int) -> int:
        """The start of the window that it has counted in, given when that window ends."""


@lru_cache(maxsize=8_192)
def with_number(limit: FixedWindow, number: int) -> FixedWindow:
    """The same window with another number of units, counted in the same place as the limit."""
    kind: type[Any] = type(limit)
    made: FixedWindow = kind(number, *limit.made_of[1:]).across_regions(ESCROW)
    return made


def window_of(limit: FixedWindow, rule: str | None, key: str, now_us: int) -> KeyWindow:
    """The current window of a key."""
    start_us, end_us = limit.bounds_us(now_us)
    return KeyWindow(rule, key, limit.identity, limit.limit, start_us, end_us)


class EscrowGuard(Guard):
    """Asks for this region's rights instead of a limit with escrow."""

    has_chores: ClassVar[bool] = True  # Required for `AskInstead`; there are none.

    def __init__(self, account: EscrowAccount, store: StoreView, on_low: OnLow) -> None:
        self._account = account
        self._store = store
        self._on_low = on_low

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | None:
        """See `Guard.for_limit`."""
        if limit.consistency != ESCROW:
            return None
        whole: Any = limit

        def before(key: str, cost: int) -> AskInstead:
            charge = Charge(key, self._rights_of(whole, rule, key), cost, rule=rule)

            def answered(decision: Decision) -> Decision:
                return self._decision_for(whole, rule, cost, decision)

            return AskInstead(ChargeSet((charge,)), answered, _nothing_to_undo)

        return HitGuard(before, _unchanged)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        if not any(limit.consistency == ESCROW for one in request.charges for limit in one.limits):
            return request
        return request._replace(charges=tuple(map(self._with_rights, request.charges)))

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """See `Guard.after`."""
        steps = [
            (charge, limit)
            for charge in request.charges
            if isinstance(charge, ReplacedCharge)
            for limit in charge.asked
        ]
        if not steps:
            return decision
        parts = [
            self._part(charge, limit, part)
            for (charge, limit), part in zip(steps, decision.rules, strict=True)
        ]
        if not decision.several:
            (only,) = parts
            return only
        refused = [part for part in parts if not part and part.source != "shadow"]
        shown = decision
        # Charged but not admitted: the units are lost, but never counted twice.
        if decision and refused:
            shown = refused[0]
        else:
            place = decision.rules.index(decision) if decision in decision.rules else 0
            shown = parts[place] if decision.key == parts[place].key else decision
        return Decision(shown.key, shown.limited_by, shown.answer, shown.context, tuple(parts))

    def _part(self, charge: Charge, limit: Limit, part: Decision) -> Decision:
        """The answer of one limit, as it was asked for: other keys of the rule may have other limits."""
        if limit.consistency != ESCROW:
            return part
        whole: Any = limit
        if charge.kind is not ChargeKind.TAKE:
            return Decision(part.key, whole, part.answer, part.context)
        return self._decision_for(whole, charge.rule, charge.cost, part)

    def _with_rights(self, charge: Charge) -> Charge:
        limits: list[Limit] = []
        for limit in charge.limits:
            whole: Any = limit
            is_escrow = limit.consistency == ESCROW
            limits.append(self._rights_of(whole, charge.rule, charge.key) if is_escrow else limit)
        return ReplacedCharge(charge, tuple(limits))

    def _rights_of(self, whole: FixedWindow, rule: str | None, key: str) -> FixedWindow:
        """The limit to send to the engine."""
        self._account.set_epoch(self._store.epoch)
        window = window_of(whole, rule, key, self._store.now_us())
        return with_number(whole, min(self._account.rights(window), MAX_EXACT))

    def _decision_for(
        self, whole: FixedWindow, rule: str | None, cost: int, decision: Decision
    ) -> Decision:
        """The caller's decision, given the engine's answer with the rights as the limit."""
        allowed, left, retry_after_us, reset_after_us, level = decision.answer
        key, store = decision.key, self._store
        window = window_of(whole, rule, key, store.now_us())
        if decision.source == "engine":
            start_us = store.start_of(whole, reset_after_us)
            counted = Counted(allowed, left, start_us, store.epoch)
            allowed = self._account.admits(window, decision.limit, counted)
        if not allowed:
            left = 0 if decision.answer[0] else left
            retry_after_us = (
                max(1, window.end_us - store.now_us()) if cost <= whole.limit else NEVER
            )
        if decision.source in ("engine", "cache"):
            self._on_low(whole, window, left if allowed or cost > left else 0)
        answer = (allowed, left, retry_after_us, reset_after_us, level)
        return Decision(key, whole, answer, decision.context)


def _unchanged(decision: Decision, _ticket: object) -> Decision:
    """For the hit itself, which is never made."""
    return decision


def _nothing_to_undo() -> None:
    """Do nothing: there is nothing to undo."""
