"""How to hit several limits of one key together, on blocking and async engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..charge import ChargeSet, ReadyCharge, require_cost, require_key
from ..charge_kind import ChargeKind

if TYPE_CHECKING:
    from ..algorithms import Limit
    from ..decision import Decision
    from .base import AsyncEngine, AsyncHit, Engine, Hit


def bind_limits(engine: Engine, limits: tuple[Limit, ...], rule: str | None = None) -> Hit:
    """Return the function that takes units from all of these limits, or from none."""
    if len(limits) == 1:
        return engine.bind(limits[0], rule)
    return lambda key, cost: engine.decide(_request(key, limits, cost, rule))[0]


def bind_limits_async(
    engine: AsyncEngine, limits: tuple[Limit, ...], rule: str | None = None
) -> AsyncHit:
    """`bind_limits` for an async engine; if it can answer at once, nothing is awaited."""
    if len(limits) == 1:
        return engine.bind(limits[0], rule)
    if engine.nowait is not None:
        return bind_limits(engine.nowait, limits, rule)

    async def hit(key: str, cost: int) -> Decision:
        return (await engine.decide(_request(key, limits, cost, rule)))[0]

    return hit


def _request(key: str, limits: tuple[Limit, ...], cost: int, rule: str | None) -> list[ChargeSet]:
    named = key if type(key) is str else require_key(key)
    charge = ReadyCharge(named, limits, require_cost(cost), ChargeKind.TAKE, rule)
    return [ChargeSet((charge,))]
