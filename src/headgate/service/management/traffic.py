"""`GET /api/traffic`, `GET /api/top`: how much is going on, and who asks most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from ...board import figures_of
from ..recorder import TOP_PERIOD_US
from .guard import guarded, needs
from .models import Shown

if TYPE_CHECKING:
    from ..desk import Desk


class SecondShown(Shown):
    """One second, over all nodes."""

    at: int
    requests: int
    denied: int


class TrafficShown(Shown):
    """What the last ten seconds say, over all nodes."""

    req_per_sec: float
    burst_ratio: float
    deny_rate: float
    active_algorithm: str
    total_requests: int
    total_denied: int
    nodes: int
    seconds: list[SecondShown]


class HotShown(Shown):
    """A key that is asked for often: at most `hits` times, at least `hits - error`."""

    key: str
    hits: int
    error: int


class TopShown(Shown):
    """The keys that are asked for most, over all nodes."""

    top: list[HotShown]
    period_seconds: list[float]
    """They were counted over at least the first, and at most the second."""


def traffic_of(desk: Desk) -> TrafficShown:
    """What is known of the traffic now."""
    view = desk.board.view
    figures = figures_of(view.seconds)
    return TrafficShown(
        req_per_sec=round(figures.req_per_sec, 3),
        burst_ratio=round(figures.burst_ratio, 3),
        deny_rate=round(figures.deny_rate, 4),
        active_algorithm=desk.settings.default_algorithm,
        total_requests=view.totals.requests,
        total_denied=view.totals.denied,
        nodes=sum(seen.state == "Up" for seen in view.nodes),
        seconds=[SecondShown(**second._asdict()) for second in view.seconds],
    )


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["traffic"], route_class=guarded(desk))

    @made.get("/traffic", summary="How much is going on", **needs("viewer"))
    async def traffic() -> TrafficShown:
        """The last ten seconds of all nodes. The same is at `/metrics` for those who accept JSON."""
        return traffic_of(desk)

    @made.get("/top", summary="Who asks most", **needs("viewer"))
    async def top(limit: Annotated[int, Query(ge=1, le=100)] = 20) -> TopShown:
        """The keys that were asked for most in the last one to two minutes, from a sketch of 1,000 counters a node."""
        found = await desk.board.top(desk.recorder.top(), limit)
        period = TOP_PERIOD_US / 1_000_000
        return TopShown(
            top=[HotShown(**hot._asdict()) for hot in found], period_seconds=[period, 2 * period]
        )

    return made
