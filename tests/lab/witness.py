"""Receipts of the memory engine: limits that note, inside its lock, which decision they make and at what time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headgate.decision import Receipt

if TYPE_CHECKING:
    from headgate import Limit


class Witness:
    """Counts the decisions of one key, in the order in which they are made."""

    def __init__(self) -> None:
        self._count = 0
        self._mine = threading.local()

    def note(self, now_us: int) -> None:
        """Called by the limit, so by one thread at a time."""
        self._count += 1
        self._mine.receipt = Receipt(self._count, now_us)

    def receipt(self) -> Receipt:
        """That of the decision that this thread asked for last."""
        receipt: Receipt = self._mine.receipt
        return receipt


def witnessed(limit: Limit, witness: Witness) -> Limit:
    """The same limit, under the eyes of a witness."""
    kind: Any = type(limit)

    class Witnessed(kind):  # type: ignore[misc]
        __slots__ = ()

        def take(self, state: Any, now_us: int, cost: int) -> Any:
            witness.note(now_us)
            return super().take(state, now_us, cost)

    made: Limit = Witnessed(*limit.made_of)
    return made
