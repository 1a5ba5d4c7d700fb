"""Changing: how everything that a person does is done. In the audit log first, then on the board, then acknowledged."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..audit import Change
from .guard import caller_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from ..desk import Desk


@asynccontextmanager
async def changing(
    desk: Desk,
    request: Request,
    action: str,
    target: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> AsyncIterator[None]:
    """Note who changes what, and let it be changed inside the block."""
    change = Change(action=action, target=target, before=before, after=after, reason=reason)
    async with desk.audit.change(caller_of(request), change):
        yield
