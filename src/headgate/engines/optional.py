"""Optional parts of the contract of an engine. Callers look with `isinstance`, and do without where one is missing.

An engine has a part if it has the method; it need not inherit anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self


@runtime_checkable
class SettlesTogether(Protocol):
    """Settles many reservations in few calls, blocking or awaited. Without it, each is settled by a call of its own."""

    def settle_each(self, settlements: Sequence[tuple[str, int]]) -> Any:
        """`settle` for several tokens and real costs; whether they existed is not told."""


@runtime_checkable
class HasDecisionDeadline(Protocol):
    """Asks a store, and can have a deadline for decisions alone. Without it, they have the deadline of other calls."""

    def deciding_within(self, seconds: float) -> Self:
        """The same engine with this deadline for decisions, unless its URL has one. For an engine not yet in use."""
