"""`GET /api/nodes`: who is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter

from .guard import guarded, needs
from .models import Shown, moment

if TYPE_CHECKING:
    from ..desk import Desk


class NodeShown(Shown):
    """A node as the others see it."""

    id: str
    address: str
    state: Literal["Up", "Down"]
    draining: bool
    registered_at: str
    last_seen: str
    version: str
    engine: str
    rules: str
    requests: int
    denied: int


class NodesShown(Shown):
    """All nodes, and how old that knowledge is."""

    nodes: list[NodeShown]
    stale_seconds: float
    problem: str | None


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["nodes"], route_class=guarded(desk))

    @made.get("/nodes", summary="Who is there", **needs("viewer"))
    async def nodes() -> NodesShown:
        """Every process of the service that has been heard of. One that is silent for its TTL is Down, and gone after four."""
        board = desk.board
        return NodesShown(
            nodes=[
                NodeShown(
                    id=seen.identity.id,
                    address=seen.identity.address,
                    state=seen.state,
                    draining=seen.identity.draining,
                    registered_at=moment(seen.registered_at_us),
                    last_seen=moment(seen.last_seen_us),
                    version=seen.identity.version,
                    engine=seen.identity.engine,
                    rules=seen.identity.rules,
                    requests=seen.requests,
                    denied=seen.denied,
                )
                for seen in board.view.nodes
            ],
            stale_seconds=round(board.stale_seconds, 3) if board.problem else 0.0,
            problem=_short(board.problem),
        )

    return made


def _short(problem: str | None) -> str | None:
    return None if problem is None else problem[:300]
