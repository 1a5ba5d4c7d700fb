"""`/api/limits`: what holds for checks that name no limit, and for single keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from msgspec import UNSET

from ...board import KeyLimit
from ..checks import limit_of
from ..problems import NOT_FOUND, ProblemError
from .changing import changing
from .guard import caller_of, guarded, needs
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .models import KeyLimitShown, LimitBody, Reason, Removed, Shown

if TYPE_CHECKING:
    from ...algorithms import Limit
    from ..desk import Desk

Why = Annotated[Reason, Query()]


class LimitsShown(Shown):
    """The default, and the keys that have a limit of their own."""

    default_limit: int
    default_window_ms: float
    default_algorithm: str
    per_key_limits: dict[str, KeyLimitShown]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["limits"], route_class=guarded(desk))

    @made.get("/limits", summary="What holds", **needs("viewer"))
    async def limits() -> LimitsShown:
        """The default limit, and every key that has one of its own."""
        settings = desk.settings
        kept = desk.board.view.key_limits
        return LimitsShown(
            default_limit=settings.default_limit,
            default_window_ms=settings.default_window * 1000,
            default_algorithm=settings.default_algorithm,
            per_key_limits={key: KeyLimitShown.of_entry(one) for key, one in sorted(kept.items())},
        )

    @made.put("/limits/{key:key}", summary="Give a key its own limit", **needs("operator"))
    async def put(request: Request, key: Key, body: LimitBody) -> KeyLimitShown:
        """It holds here at once and on all nodes within a second, whatever limit a check names, until it is removed."""
        entry = key_limit(desk, key, body, caller_of(request).name, None)
        shown = KeyLimitShown.of_entry(entry)
        before = desk.board.view.key_limits.get(key)
        async with changing(
            desk,
            request,
            "limit.put",
            key,
            before=None if before is None else before.rate,
            after=entry.rate,
            reason=body.reason,
        ):
            await desk.board.keep("l", entry)
        desk.recorder.unblock(key)
        return shown

    @made.delete("/limits/{key:key}", summary="Let the default hold again", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> Removed:
        """The default holds for this key again, or what a check names."""
        before = desk.board.view.key_limits.get(key)
        if before is None:
            raise ProblemError(NOT_FOUND, "this key has no limit of its own")
        async with changing(desk, request, "limit.delete", key, before=before.rate, reason=reason):
            await desk.board.remove("l", key)
        return Removed()

    return made


def named_limit(
    desk: Desk,
    *,
    limit: int | None,
    window: float | None,
    algorithm: str | None,
    burst: int | None,
) -> Limit:
    """The limit that these name; what is not said is as for a check that does not say it."""
    spec = (
        UNSET if limit is None else limit,
        UNSET if window is None else window,
        UNSET if algorithm is None else algorithm,
        UNSET if burst is None else burst,
    )
    return limit_of(desk.settings, spec)


def key_limit(desk: Desk, key: str, body: LimitBody, by: str, until_us: int | None) -> KeyLimit:
    """What is kept of a limit for one key."""
    named = {name: getattr(body, name) for name in ("limit", "window", "algorithm", "burst")}
    return KeyLimit(
        key=key,
        rate=body.rate(desk.settings.default_window),
        algorithm=named_limit(desk, **named).name,
        until_us=until_us,
        by=by,
        reason=body.reason,
        set_at_us=desk.board.now_us(),
    )
