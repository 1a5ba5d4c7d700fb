"""`/api/limits`: the default limit of checks, and per-key limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from msgspec import UNSET

from ...board import KeyOverride
from ..front import limit_of
from ..http.problems import NOT_FOUND, ProblemError
from .access import caller_of, guarded, needs
from .audited_change import changing
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .models import KeyLimitResponse, LimitBody, Reason, Removed, ResponseModel, whole_ms

if TYPE_CHECKING:
    from ...algorithms import Limit
    from ..node import Node

Why = Annotated[Reason, Query()]


class LimitsResponse(ResponseModel):
    """The default limit, and the per-key limits."""

    default_limit: int
    default_window_ms: int
    default_algorithm: str
    per_key_limits: dict[str, int]
    """Units per window, by key."""
    key_limits: dict[str, KeyLimitResponse]
    """The same, with all details."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["limits"], route_class=guarded(node))

    @made.get("/limits", summary="What holds", **needs("viewer"))
    async def limits() -> LimitsResponse:
        """The default limit, and every key with its own limit."""
        settings = node.settings
        kept = node.board.view.key_limits
        return LimitsResponse(
            default_limit=settings.default_limit,
            default_window_ms=whole_ms(node.default_limit.window_us),
            default_algorithm=settings.default_algorithm,
            per_key_limits={key: one.limit.limit for key, one in sorted(kept.items())},
            key_limits={key: KeyLimitResponse.of_entry(one) for key, one in sorted(kept.items())},
        )

    @made.put("/limits/{key:key}", summary="Give a key its own limit", **needs("operator"))
    async def put(request: Request, key: Key, body: LimitBody) -> KeyLimitResponse:
        """It applies at once here and within a second on all nodes, whatever limit a check names, until removed."""
        entry = key_limit(node, key, body, by=caller_of(request).name)
        shown = KeyLimitResponse.of_entry(entry)
        before = node.board.view.key_limits.get(key)
        async with changing(
            node,
            request,
            "limit.put",
            key,
            before=None if before is None else before.rate,
            after=entry.rate,
            reason=body.reason,
        ):
            await node.board.keep("l", entry)
        node.recorder.unblock(key)
        return shown

    @made.delete("/limits/{key:key}", summary="Remove a key's own limit", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> Removed:
        """The default applies to this key again, or the limit that a check names."""
        before = node.board.view.key_limits.get(key)
        if before is None:
            raise ProblemError(NOT_FOUND, "this key does not have its own limit")
        async with changing(node, request, "limit.delete", key, before=before.rate, reason=reason):
            await node.board.remove("l", key)
        return Removed()

    return made


def named_limit(
    node: Node,
    *,
    limit: int | None,
    window: float | None,
    algorithm: str | None,
    burst: int | None,
) -> Limit:
    """The limit with these parameters; missing ones are as for a check without them."""
    spec = (
        UNSET if limit is None else limit,
        UNSET if window is None else window,
        UNSET if algorithm is None else algorithm,
        UNSET if burst is None else burst,
    )
    return limit_of(node.settings, spec)


def key_limit(
    node: Node,
    key: str,
    body: LimitBody,
    *,
    by: str,
    until_us: int | None = None,
    rule: str | None = None,
) -> KeyOverride:
    """The board's entry for a per-key limit."""
    named = {name: getattr(body, name) for name in ("limit", "window", "algorithm", "burst")}
    return KeyOverride(
        key=key,
        rate=body.rate(node.settings.default_window),
        algorithm=named_limit(node, **named).name,
        until_us=until_us,
        by=by,
        reason=body.reason,
        set_at_us=node.board.now_us(),
        rule=rule,
    )
