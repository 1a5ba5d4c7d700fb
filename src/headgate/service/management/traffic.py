"""`GET /api/traffic`, `GET /api/top`: the traffic, and the busiest keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from ...board import figures_of
from ..telemetry.recorder import TOP_PERIOD_US
from .access import guarded, needs
from .models import ResponseModel

if TYPE_CHECKING:
    from ..node import Node


class SecondResponse(ResponseModel):
    """One second, over all nodes."""

    at: int
    requests: int
    denied: int


class TrafficResponse(ResponseModel):
    """Figures of the last ten seconds, over all nodes."""

    req_per_sec: float
    burst_ratio: float
    deny_rate: float
    active_algorithm: str
    """The algorithm of checks that name none."""
    reason: str | None
    """Why, if the traffic or an operator has chosen it."""
    total_requests: int
    total_denied: int
    nodes: int
    seconds: list[SecondResponse]


class TopKeyResponse(ResponseModel):
    """A busy key: at most `hits` hits, at least `hits - error`."""

    key: str
    hits: int
    error: int


class TopResponse(ResponseModel):
    """The busiest keys, over all nodes."""

    top: list[TopKeyResponse]
    period_seconds: list[float]
    """They were counted over at least the first, and at most the second."""


def traffic_of(node: Node) -> TrafficResponse:
    """The current traffic."""
    view = node.board.view
    figures = figures_of(view.seconds)
    return TrafficResponse(
        req_per_sec=round(figures.req_per_sec, 3),
        burst_ratio=round(figures.burst_ratio, 3),
        deny_rate=round(figures.deny_rate, 4),
        active_algorithm=node.active_algorithm,
        reason=node.control.deciding().reason if node.is_adaptive else None,
        total_requests=view.totals.requests,
        total_denied=view.totals.denied,
        nodes=sum(seen.state == "Up" for seen in view.nodes),
        seconds=[SecondResponse(**second._asdict()) for second in view.seconds],
    )


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["traffic"], route_class=guarded(node))

    @made.get("/traffic", summary="The traffic of the last ten seconds", **needs("viewer"))
    async def traffic() -> TrafficResponse:
        """The last ten seconds of all nodes. `/metrics` returns the same to clients that accept only JSON."""
        return traffic_of(node)

    @made.get("/top", summary="The busiest keys", **needs("viewer"))
    async def top(limit: Annotated[int, Query(ge=1, le=100)] = 20) -> TopResponse:
        """The busiest keys of the last one to two minutes, from a sketch of 1,000 counters per node."""
        found = await node.board.top(node.recorder.top(), limit)
        period = TOP_PERIOD_US / 1_000_000
        return TopResponse(
            top=[TopKeyResponse(**hot._asdict()) for hot in found],
            period_seconds=[period, 2 * period],
        )

    return made
