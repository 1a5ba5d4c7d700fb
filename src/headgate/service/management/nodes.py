"""`GET /api/nodes`: the nodes of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter

from ..telemetry.recent_figures import percentile_us
from .access import guarded, needs
from .models import ResponseModel, moment

if TYPE_CHECKING:
    from ..node import Node
    from ..telemetry.recent_figures import NodeFigures


class ShardsResponse(ResponseModel):
    """The shards that a node decides, if keys are divided among nodes, and its commits. Some seconds old."""

    owned: int
    commit_p50_us: int | None
    """`null` without a commit in the last ten seconds."""
    commit_p99_us: int | None
    commit_age_us: int
    """How long the current commit has been in flight."""
    unconfirmed: int
    """Decisions that are in no confirmed commit yet."""

    @classmethod
    def of_figures(cls, figures: NodeFigures | None) -> ShardsResponse | None:
        """What a node has reported; `None` if it has no shards."""
        if figures is None or "etcd_shards" not in figures.engine:
            return None
        engine = figures.engine
        return cls(
            owned=int(engine["etcd_shards"]),
            commit_p50_us=percentile_us(figures.store, 0.5),
            commit_p99_us=percentile_us(figures.store, 0.99),
            commit_age_us=round(engine["etcd_commit_age_seconds"] * 1e6),
            unconfirmed=int(engine["etcd_unconfirmed"]),
        )


class NodeResponse(ResponseModel):
    """A node as other nodes see it."""

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
    shards: ShardsResponse | None
    """`null` if keys are not divided among nodes, or nothing is known about them."""


class NodesResponse(ResponseModel):
    """All nodes, and how old that information is."""

    nodes: list[NodeResponse]
    free_shards: int | None
    """Shards without an owner; `null` if keys are not divided."""
    stale_seconds: float
    problem: str | None


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["nodes"], route_class=guarded(node))

    @made.get("/nodes", summary="List the nodes", **needs("viewer"))
    async def nodes() -> NodesResponse:
        """Every known process of the service.

        A node that is silent for its TTL is Down, and removed after four.
        """
        board, figures = node.board, await node.figures_by_node()
        free = figures[node.id].engine.get("etcd_free_shards")
        return NodesResponse(
            nodes=[
                NodeResponse(
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
                    shards=ShardsResponse.of_figures(figures.get(seen.identity.id)),
                )
                for seen in board.view.nodes
            ],
            free_shards=None if free is None else int(free),
            stale_seconds=round(board.stale_seconds, 3) if board.problem else 0.0,
            problem=_short(board.problem),
        )

    return made


def _short(problem: str | None) -> str | None:
    return None if problem is None else problem[:300]
