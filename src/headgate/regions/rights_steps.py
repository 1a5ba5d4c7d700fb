"""RightsSteps: what the stores of rights have in common.

What is taken off goes through the engine like a hit, so it is counted where hits are, in one step with them. Where a
store keeps grants, its epoch, and whose rights were taken back, is its own business.
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
"""Before the store has said anything there are no rights."""
KEPT_US: Final = 60_000_000
"""How long grants of a window stay on record after its end."""


class RightsSteps(ABC):
    """A region's counts, grants and epoch."""

    def __init__(self) -> None:
        self._engine: Any = None
        self.epoch = UNKNOWN

    @abstractmethod
    def open(self, engine: Any) -> None:
        """Begin to use an engine, before it has connections."""

    @abstractmethod
    def now_us(self) -> int:
        """The store's clock, as far as it is known."""

    @abstractmethod
    async def look(self) -> None:
        """Learn the store's clock and its epoch."""

    @abstractmethod
    async def taken_back(self) -> dict[str, TakenBack]:
        """Whose rights were taken back."""

    @abstractmethod
    async def take_back(self, region: str, taken: TakenBack) -> None:
        """Note that a region's rights are the others'."""

    @abstractmethod
    async def granted(self, window: KeyWindow) -> tuple[str, int]:
        """The epoch of the store, and what is on record there for the region in that window."""

    @abstractmethod
    async def note_given(self, window: KeyWindow, region: str, units: int) -> None:
        """Note for people what a region was given; the units are off the count already."""

    @abstractmethod
    async def moved(
        self, window: KeyWindow, regions: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """What these regions have given of a window, and what they were given."""

    @abstractmethod
    async def _record(self, grant: RightsGrant) -> int | None:
        """See `RecordGrant`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what it holds open besides the engine."""

    async def do(self, step: StoreStep, limit: FixedWindow) -> Any:
        """Carry out what a desk wants, for a window of this limit."""
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
        # Our idea of its clock is not exact, so ask for the middle of the window.
        return limit.bounds_us(now_us + reset_after_us - limit.window_us // 2)[0]


def field_of(window: KeyWindow) -> str:
    """What a key is called in the records of a window."""
    return json.dumps([window.rule, window.key, window.identity], separators=(",", ":"))
