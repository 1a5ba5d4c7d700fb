"""SplitGuard: makes each region count against its own share of a split limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..charge import ReadyCharge
from ..guards.base import Guard, Variants
from .shares import share_of

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..charge import Charge, ChargeSet
    from ..decision import Decision
    from .model import Regions


class _OnlyOne:
    """A single variant."""

    index: int = 0


class SplitGuard(Guard):
    """Asks for this region's share instead of a limit that is split."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def for_limit(self, limit: Limit, rule: str | None) -> Variants | None:
        """See `Guard.for_limit`."""
        if limit.consistency != "split":
            return None
        return Variants((share_of(limit, self._regions),), _OnlyOne())

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        if not any(limit.consistency == "split" for one in request.charges for limit in one.limits):
            return request
        return request._replace(charges=tuple(map(self._shared, request.charges)))

    def current_limit(self, limit: Limit, rule: str | None) -> Limit:
        """See `Guard.current_limit`."""
        return share_of(limit, self._regions) if limit.consistency == "split" else limit

    def _shared(self, charge: Charge) -> Charge:
        limits = tuple(self.current_limit(limit, charge.rule) for limit in charge.limits)
        return ReadyCharge(charge.key, limits, charge.cost, charge.kind, charge.rule)
