"""An async engine in the shape of a blocking one, so that one suite can test both."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..decision import Decision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..engines.base import AsyncEngine, EngineDescription, Hit, KeyPage, Usage

T = TypeVar("T")


class Blocking:
    """Runs every call of an async engine to its end, in an event loop of its own. Threads take turns."""

    blocking = True

    def __init__(self, engine: AsyncEngine, other: Blocking | None = None) -> None:
        self._engine = engine
        self._runner: asyncio.Runner = asyncio.Runner() if other is None else other._runner
        self._turn: threading.Lock = threading.Lock() if other is None else other._turn
        self.clock = engine.clock

    def scoped(self, namespace: str) -> Blocking:
        """See `Engine.scoped`."""
        return Blocking(self._engine.scoped(namespace), self)

    @property
    def unguarded(self) -> Any:
        """See `Engine.unguarded`."""
        return self._engine.unguarded

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return self._engine.describe()

    def bind_run(self, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.bind_run`."""

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """See `Engine.bind`."""
        bound = self._engine.bind(limit, rule)

        def hit(key: str, cost: int) -> Decision:
            async def call() -> Decision:
                answer = bound(key, cost)
                return answer if isinstance(answer, Decision) else await answer

            return self._run(call())

        return hit

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""
        return self._run(self._engine.decide(requests))

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """See `Engine.settle`."""
        return self._run(self._engine.settle(token, actual))

    def withdraw(self, request: ChargeSet) -> None:
        """See `Engine.withdraw`."""
        self._run(self._engine.withdraw(request))

    def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""
        self._run(self._engine.leave_line(decision))

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return self._run(self._engine.renew(key, limit, token, rule))

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        self._run(self._engine.release(key, limit, token, rule))

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""
        return self._run(self._engine.usage(key, limit, rule))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""
        self._run(self._engine.reset(key, limit, rule))

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """See `Engine.list_keys`."""
        return self._run(self._engine.list_keys(prefix, cursor, limit))

    def close(self) -> None:
        """Close the engine and its event loop."""
        self._run(self._engine.aclose())
        self._runner.close()

    def _run(self, call: Awaitable[T]) -> T:
        async def finish() -> T:
            return await call

        coroutine: Coroutine[Any, Any, T] = finish()
        with self._turn:
            return self._runner.run(coroutine)
