"""`GET /api/audit`: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query

from .access import guarded, needs
from .models import ResponseModel

if TYPE_CHECKING:
    from ..node import Node


class AuditResponse(ResponseModel):
    """The newest entries of this process, newest first."""

    node: str
    durable: bool
    """Whether they are stored in a file."""
    head: str
    """The hash of the newest entry; keep it elsewhere to detect whether the end of the file was cut off."""
    entries: list[dict[str, Any]]


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["audit"], route_class=guarded(node))

    @made.get("/audit", summary="Who changed what", **needs("operator"))
    async def audit(
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    ) -> AuditResponse:
        """Changes made through this process. Every process has its own log.

        `headgate audit` reads the files.
        """
        log = node.audit
        return AuditResponse(
            node=node.board.identity.id,
            durable=log.path is not None,
            head=log.head,
            entries=log.recent(limit, before=before),
        )

    return made
