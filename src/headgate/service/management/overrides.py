"""`/api/overrides`: limits for single keys that end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from ..problems import NOT_FOUND, ProblemError
from .changing import changing
from .guard import caller_of, guarded, needs
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .limits import Why, key_limit
from .models import KeyLimitShown, OverrideBody, Removed, Shown

if TYPE_CHECKING:
    from ..desk import Desk


class OverridesShown(Shown):
    """Every override that holds now."""

    overrides: dict[str, KeyLimitShown]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["overrides"], route_class=guarded(desk))

    @made.get("/overrides", summary="What holds for a while", **needs("viewer"))
    async def overrides() -> OverridesShown:
        """Limits for single keys that end by themselves."""
        kept = desk.board.view_now().overrides
        return OverridesShown(
            overrides={key: KeyLimitShown.of_entry(one) for key, one in sorted(kept.items())}
        )

    @made.put("/overrides/{key:key}", summary="Override a limit for a while", **needs("operator"))
    async def put(request: Request, key: Key, body: OverrideBody) -> KeyLimitShown:
        """For `ttl` seconds this limit holds for the key, before its own and before what a check names."""
        until_us = desk.board.now_us() + max(1, round(body.ttl * 1_000_000))
        entry = key_limit(desk, key, body, caller_of(request).name, until_us)
        shown = KeyLimitShown.of_entry(entry)
        async with changing(
            desk,
            request,
            "override.put",
            key,
            after={"rate": entry.rate, "until": shown.until},
            reason=body.reason,
        ):
            await desk.board.keep("o", entry)
        desk.recorder.unblock(key)
        return shown

    @made.delete("/overrides/{key:key}", summary="End an override now", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> Removed:
        """What held before holds again."""
        before = desk.board.view_now().overrides.get(key)
        if before is None:
            raise ProblemError(NOT_FOUND, "nothing overrides the limit of this key")
        async with changing(
            desk, request, "override.delete", key, before=before.rate, reason=reason
        ):
            await desk.board.remove("o", key)
        return Removed()

    return made
