"""The node as an engine for packed calls: every decision passes the node's guards and is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from ...engines.remote.calls import UsageQuestion
from ...engines.remote.serving import Served, tried
from ...guards.questions import plain_charge
from ...guards.stack import fallback_of
from ..front import BoundCheck, Pending

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ...algorithms import Limit
    from ...charge import ChargeSet
    from ...decision import Decision
    from ...engines.base import AsyncEngine
    from ...engines.remote.serving import Outcomes
    from ..front import Front

MAX_BOUND: Final = 4_096


class NodeEngine(Served):
    """Handles the packed calls to this node."""

    def __init__(
        self, front: Front, engine: AsyncEngine | None = None, counts: Counter[str] | None = None
    ) -> None:
        super().__init__(front.engine if engine is None else engine)
        self._front = front
        self._bound: dict[tuple[Limit, str | None], BoundCheck] = {}
        self._counts: Counter[str] = Counter() if counts is None else counts
        """What this one and its scopes have done, together."""
        self._fallback = fallback_of(self.engine)

    def scoped(self, namespace: str) -> NodeEngine:
        """See `ServedEngine.scoped`."""
        return NodeEngine(self._front, self.engine.scoped(namespace), self._counts)

    @property
    def bound(self) -> int:
        """See `ServedEngine.bound`."""
        return len(self._bound)

    @property
    def ever_bound(self) -> int:
        """See `ServedEngine.ever_bound`."""
        return self._counts["bound"]

    @property
    def forgettable(self) -> bool:
        """See `ServedEngine.forgettable`: while the store is away, nobody else knows what was admitted."""
        return self._fallback is None or self._fallback.forgettable

    def take(
        self, limit: Limit, rule: str | None, keys: list[str]
    ) -> Outcomes | Awaitable[Outcomes]:
        """See `ServedEngine.take`."""
        began_ns = perf_counter_ns()
        return self._collected(self.hits(limit, rule, keys, 1), began_ns)

    def hits(self, limit: Limit, rule: str | None, keys: list[str], cost: int) -> list[Any]:
        """The outcomes of hits of several keys, not recorded yet: in one call, if the engine supports it."""
        bound = self._bound.get((limit, rule)) or self._bind(limit, rule)
        run = None if bound.hit_run is None else bound.hit_run(keys, cost)
        if run is None:
            return [tried(bound.hit, key, cost) for key in keys]
        return [*run.decisions()] if run.degraded else [run]

    def hit(self, limit: Limit, key: str, cost: int) -> Any:
        """The outcome of one hit, not recorded yet."""
        bound = self._bound.get((limit, None)) or self._bind(limit, None)
        return tried(bound.hit, key, cost)

    def decide(self, requests: list[ChargeSet | UsageQuestion]) -> Outcomes | Awaitable[Outcomes]:
        """See `ServedEngine.decide`."""
        if isinstance(requests[0], UsageQuestion):
            return super().decide(requests)
        began_ns = perf_counter_ns()
        return self._collected([self.outcome(request) for request in requests], began_ns)

    def outcome(self, request: Any) -> Any:
        """The outcome of one request, not recorded yet: a decision, a future of one, or an error."""
        plain = plain_charge(request)
        if plain is not None:
            key, limit, cost, rule = plain
            bound = self._bound.get((limit, rule)) or self._bind(limit, rule)
            return tried(bound.hit, key, cost)
        nowait = self.engine.nowait
        if nowait is None:
            return tried(self._decide_one, request)
        outcome = tried(nowait.decide, [request])
        return outcome[0] if isinstance(outcome, list) else outcome

    async def _decide_one(self, request: ChargeSet) -> Decision:
        (decision,) = await self.engine.decide([request])
        return decision

    def _collected(self, outcomes: list[Any], began_ns: int) -> Outcomes | Awaitable[Outcomes]:
        results = self._front.collect(outcomes, began_ns)
        return later(results) if isinstance(results, Pending) else results

    def _bind(self, limit: Limit, rule: str | None) -> BoundCheck:
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        nowait = self.engine.nowait
        hit_run = None if nowait is None else nowait.bind_run(limit, rule)
        bound = BoundCheck(self.engine.bind(limit, rule), limit, hit_run)
        self._bound[limit, rule] = bound
        self._counts["bound"] += 1
        return bound


async def later(pending: Pending[Any]) -> Any:
    """Await a pending answer."""
    await asyncio.wait([pending.future])
    return pending.result()
