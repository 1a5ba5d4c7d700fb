"""`GET /api/audit`: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query

from .guard import guarded, needs
from .models import Shown

if TYPE_CHECKING:
    from ..desk import Desk


class AuditShown(Shown):
    """The newest entries of this process, the newest first."""

    node: str
    durable: bool
    """Whether they are in a file."""
    head: str
    """The hash of the newest one; who keeps it elsewhere can tell whether the end of the file was cut off."""
    entries: list[dict[str, Any]]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["audit"], route_class=guarded(desk))

    @made.get("/audit", summary="Who changed what", **needs("operator"))
    async def audit(
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    ) -> AuditShown:
        """The changes that were made through this process. Every process has a log of its own; `headgate audit` reads the files."""
        log = desk.audit
        return AuditShown(
            node=desk.board.identity.id,
            durable=log.path is not None,
            head=log.head,
            entries=log.recent(limit, before=before),
        )

    return made
