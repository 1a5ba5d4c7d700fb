"""An engine whose store can be taken away: counts in memory, and fails when it is told to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate import MemoryEngine
from headgate.errors import EngineError, EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.algorithms import Limit
    from headgate.charge import ChargeSet
    from headgate.decision import Decision
    from headgate.engines.base import EngineDescription, Hit, Usage

DOWN = EngineTimeout("it is down", transient=True, indefinite=True)


class FailingEngine(MemoryEngine):
    """Answers from memory, unless it is down."""

    error: EngineError | None = None
    asked = 0

    def describe(self) -> EngineDescription:
        return replace(super().describe(), round_trips=True, deadline=0.025)

    def scoped(self, namespace: str) -> FailingEngine:
        twin: Any = super().scoped(namespace)
        return twin  # type: ignore[no-any-return]

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        hit = super().bind(limit, rule)

        def call(key: str, cost: int) -> Decision:
            self._reach()
            return hit(key, cost)

        return call

    def bind_run(self, limit: Limit, rule: str | None = None) -> Any:
        return None

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        self._reach()
        return super().decide(requests)

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        self._reach()
        return super().settle(token, actual)

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        self._reach()
        return super().renew(key, limit, token, rule)

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        self._reach()
        super().release(key, limit, token, rule)

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        self._reach()
        return super().usage(key, limit, rule)

    def _reach(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
