"""RightsSteps: the common part of the rights stores.

Units are taken off through the engine like a hit, so they are counted where hits are, in one step. Each store decides
where to keep grants, its epoch, and the regions whose rights were taken back.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from ..charge import Charge, ChargeSet
from .escrow import Counted, Look, RecordGrant, StoreEpoch, TakeOff
from .escrow_guard import with_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..algorithms import FixedWindow
    from .escrow import KeyWindow, RightsGrant, StoreStep
    from .taken_back import TakenBack

UNKNOWN: Final = StoreEpoch("", 1 << 62)
"""Until the store has answered, there are no rights."""
KEPT_US: Final = 60_000_000
"""How long the grants of a window are kept after its end."""


class RightsSteps(ABC):
    """A region's counts, grants and epoch."""

    def __init__(self) -> None:
        self._engine: Any = None
        self.epoch = UNKNOWN

    @abstractmethod
    def open(self, engine: Any) -> None:
        """Start using an engine, before it has connections."""

    @abstractmethod
    def now_us(self) -> int:
        """The current time on the store's clock, as estimated here."""

    @abstractmethod
    async def look(self) -> None:
        """Read the store's clock and epoch."""

    @abstractmethod
    async def taken_back(self) -> dict[str, TakenBack]:
        """The regions whose rights were taken back."""

    @abstractmethod
    async def take_back(self, region: str, taken: TakenBack) -> None:
        """Record that a region's rights belong to the others."""

    @abstractmethod
    async def granted(self, window: KeyWindow) -> tuple[str, int]:
        """The epoch of the store, and the units granted to this region in that window."""

    @abstractmethod
    async def note_given(self, window: KeyWindow, region: str, units: int) -> None:
        """Record what another region was given, for display; the units are already off the count."""

    @abstractmethod
    async def moved(
        self, window: KeyWindow, regions: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The units that these regions have given in a window, and those they were given."""

    @abstractmethod
    async def _record(self, grant: RightsGrant) -> int | None:
        """See `RecordGrant`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close everything it has opened besides the engine."""

    async def do(self, step: StoreStep, limit: FixedWindow) -> Any:
        """Run a step of the account, for a window of this limit."""
        match step:
            case Look(window, rights):
                asked = with_number(limit, rights)
                usage = await self._engine.usage(window.key, asked, window.rule)
                start_us = self.start_of(limit, usage.answer[3])
                left = max(0, rights - usage.used)
                return Counted(left > 0, left, start_us, self.epoch)
            case TakeOff(window, rights, units):
                charge = Charge(window.key, with_number(limit, rights), units, rule=window.rule)
                (decision,) = await self._engine.decide([ChargeSet((charge,))])
                start_us = self.start_of(limit, decision.answer[3])
                return Counted(bool(decision), decision.remaining, start_us, self.epoch)
            case RecordGrant(grant):
                return await self._record(grant)

    def start_of(self, limit: FixedWindow, reset_after_us: int) -> int:
        """See `StoreView.start_of`."""
        now_us = self.now_us()
        if not reset_after_us:
            return limit.bounds_us(now_us)[0]
        # The store's clock is only estimated, so use the middle of the window.
        return limit.bounds_us(now_us + reset_after_us - limit.window_us // 2)[0]


def field_of(window: KeyWindow) -> str:
    """The name of a key in the records of a window."""
    return json.dumps([window.rule, window.key, window.identity], separators=(",", ":"))
