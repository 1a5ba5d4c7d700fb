"""`/health`, `/health/live`, `/health/ready`: for load balancers and people.

No token is needed, and nothing secret is shown.

A node is **live** as long as it answers. It is **ready** until it is told to end; an outage of the store does not
change that, because the node still answers according to its rules. `status` shows how well it works. Load balancers
often use HEAD: the same answer, without a body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Response

from ... import __version__
from .models import ResponseModel

if TYPE_CHECKING:
    from ..node import Node


class StoreResponse(ResponseModel):
    """What stores the counts, and whether it answers."""

    kind: str
    """`memory` for this process, `redis`, `etcd`, or `headgate` for other nodes."""
    state: Literal["up", "down"]


class HealthResponse(ResponseModel):
    """The state of a node."""

    status: Literal["ok", "degraded", "draining"]
    store: StoreResponse
    redis: Literal["connected", "unreachable", "memory"]
    """The state of the store, of any kind; kept for clients from before `store` existed."""
    board: Literal["ok", "stale"]
    rules: Literal["ok", "alarm", "stale", "none"]
    """`alarm` if they are the newest, but the last change looks like a mistake."""
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
        """`degraded` if the store does not answer or rules are out of date; the status code is always 200."""
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
        """503 from the moment that the process is told to end."""
        if node.draining:
            response.status_code = 503
            return ReadyResponse(status="draining")
        return ReadyResponse(status="ready")

    return made


def health_of(node: Node) -> HealthResponse:
    """The current state of a node."""
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
