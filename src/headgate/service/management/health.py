"""`/health`, `/health/live`, `/health/ready`: for load balancers and people.

No token is needed, and nothing secret is said.

A node is **live** as long as it answers. It is **ready** until it has been told to end; a store that is away does not
change that, because the node still answers, as its rules say. `status` tells how well it can do its work. Load
balancers often ask by HEAD: the same answer, without a body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Response

from ... import __version__
from .models import ResponseModel

if TYPE_CHECKING:
    from ..node import Node


class StoreResponse(ResponseModel):
    """What the counts are in, and whether it answers."""

    kind: str
    """`memory` when it is this process, `redis`, `etcd`, or `headgate` for other nodes."""
    state: Literal["up", "down"]


class HealthResponse(ResponseModel):
    """How a node is."""

    status: Literal["ok", "degraded", "draining"]
    store: StoreResponse
    redis: Literal["connected", "unreachable", "memory"]
    """The state of the store, whatever kind it is, as it was told before `store` was there."""
    board: Literal["ok", "stale"]
    rules: Literal["ok", "alarm", "stale", "none"]
    """`alarm` while they are the newest, and the change that made them looks like a mistake."""
    nodes: int
    version: str


class AliveResponse(ResponseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyResponse(ResponseModel):
    """Whether new requests should be sent here."""

    status: Literal["ready", "draining"]


def health_router(node: Node) -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["health"])

    @made.head("/health", include_in_schema=False)
    @made.get("/health", summary="The state of the service")
    async def health() -> HealthResponse:
        """`degraded` when the store does not answer or rules are out of date; the status code is 200 in any case."""
        return health_of(node)

    @made.head("/health/live", include_in_schema=False)
    @made.get("/health/live", summary="Liveness")
    async def live() -> AliveResponse:
        """200 as long as the process answers."""
        return AliveResponse()

    @made.head("/health/ready", include_in_schema=False)
    @made.get(
        "/health/ready",
        summary="Readiness",
        responses={503: {"description": "It is shutting down", "model": ReadyResponse}},
    )
    async def ready(response: Response) -> ReadyResponse:
        """503 from the moment that the process was told to end."""
        if node.draining:
            response.status_code = 503
            return ReadyResponse(status="draining")
        return ReadyResponse(status="ready")

    return made


def health_of(node: Node) -> HealthResponse:
    """How a node is now."""
    is_up = not node.settings.shared_engine or node.store_problem is None
    redis: Literal["connected", "unreachable", "memory"] = "memory"
    if node.settings.shared_engine:
        redis = "connected" if is_up else "unreachable"
    rules: Literal["ok", "alarm", "stale", "none"] = "none"
    if node.rules is not None:
        is_stale = node.rules.problem or node.rules.stale_seconds
        rules = "stale" if is_stale else "alarm" if node.rules.alarm else "ok"
    board: Literal["ok", "stale"] = "stale" if node.board.problem else "ok"
    well = is_up and rules != "stale" and board == "ok"
    return HealthResponse(
        status="draining" if node.draining else "ok" if well else "degraded",
        store=StoreResponse(kind=node.settings.store, state="up" if is_up else "down"),
        redis=redis,
        board=board,
        rules=rules,
        nodes=sum(seen.state == "Up" for seen in node.board.view.nodes),
        version=__version__,
    )
