"""`/health`, `/health/live`, `/health/ready`: for load balancers and people. No token is needed, and nothing secret is said.

A node is **live** as long as it answers. It is **ready** until it has been told to end; a store that is away does not change that, because the
node still answers, as its rules say. `status` tells how well it can do its work. Load balancers often ask by HEAD: the same answer, without a body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Response

from .. import __version__
from .management.models import Shown

if TYPE_CHECKING:
    from .desk import Desk


class HealthShown(Shown):
    """How a node is."""

    status: Literal["ok", "degraded", "draining"]
    redis: Literal["connected", "unreachable", "memory"]
    """Whether the store of the counts answers; `memory` when there is none but this process."""
    board: Literal["ok", "stale"]
    rules: Literal["ok", "stale", "none"]
    nodes: int
    version: str


class AliveShown(Shown):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyShown(Shown):
    """Whether new requests should be sent here."""

    status: Literal["ready", "draining"]


def health_router(desk: Desk) -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["health"])

    @made.head("/health", include_in_schema=False)
    @made.get("/health", summary="How it is")
    async def health() -> HealthShown:
        """`degraded` when the store does not answer or rules are out of date; the status code is 200 in any case."""
        return health_of(desk)

    @made.head("/health/live", include_in_schema=False)
    @made.get("/health/live", summary="Whether it runs")
    async def live() -> AliveShown:
        """200 as long as the process answers."""
        return AliveShown()

    @made.head("/health/ready", include_in_schema=False)
    @made.get(
        "/health/ready",
        summary="Whether to send requests here",
        responses={503: {"description": "It is about to end", "model": ReadyShown}},
    )
    async def ready(response: Response) -> ReadyShown:
        """503 from the moment that the process was told to end."""
        if desk.node.draining:
            response.status_code = 503
            return ReadyShown(status="draining")
        return ReadyShown(status="ready")

    return made


def health_of(desk: Desk) -> HealthShown:
    """How a node is now."""
    node = desk.node
    redis: Literal["connected", "unreachable", "memory"] = "memory"
    if desk.settings.shared_engine:
        redis = "connected" if desk.store_problem is None else "unreachable"
    rules: Literal["ok", "stale", "none"] = "none"
    if desk.rules is not None:
        rules = "stale" if desk.rules.problem or desk.rules.stale_seconds else "ok"
    board: Literal["ok", "stale"] = "stale" if desk.board.problem else "ok"
    well = redis != "unreachable" and rules != "stale" and board == "ok"
    return HealthShown(
        status="draining" if node.draining else "ok" if well else "degraded",
        redis=redis,
        board=board,
        rules=rules,
        nodes=sum(seen.state == "Up" for seen in desk.board.view.nodes),
        version=__version__,
    )
