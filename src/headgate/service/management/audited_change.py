"""How every change is made: recorded in the audit log, then on the board, then acknowledged."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..security.audit import AuditedChange
from .access import caller_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from ..node import Node


@asynccontextmanager
async def changing(
    node: Node,
    request: Request,
    action: str,
    target: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> AsyncIterator[None]:
    """Record the change in the audit log; it is made inside the block."""
    change = AuditedChange(action=action, target=target, before=before, after=after, reason=reason)
    async with node.audit.change(caller_of(request), change):
        yield
