"""`/api/overrides`: temporary limits of single keys, for checks or for one rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request

from ...errors import UsageError
from ..http.problems import NOT_FOUND, ProblemError
from .access import caller_of, guarded, needs
from .audited_change import changing
from .key_states import rule_named
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .limits import Why, key_limit
from .models import KeyLimitResponse, OverrideBody, Removed, ResponseModel, RuleName

if TYPE_CHECKING:
    from ..node import Node

OfRule = Annotated[RuleName | None, Query()]


class OverridesResponse(ResponseModel):
    """All overrides in force."""

    overrides: dict[str, KeyLimitResponse]
    """By key, for checks."""
    rule_overrides: dict[str, dict[str, KeyLimitResponse]]
    """By rule and key."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["overrides"], route_class=guarded(node))

    @made.get("/overrides", summary="List overrides", **needs("viewer"))
    async def overrides() -> OverridesResponse:
        """Limits of single keys that expire."""
        view = node.board.view_now()
        return OverridesResponse(
            overrides={
                key: KeyLimitResponse.of_entry(one) for key, one in sorted(view.overrides.items())
            },
            rule_overrides={
                rule: {key: KeyLimitResponse.of_entry(one) for key, one in sorted(by_key.items())}
                for rule, by_key in sorted(view.rule_overrides.items())
            },
        )

    @made.put("/overrides/{key:key}", summary="Override a limit temporarily", **needs("operator"))
    async def put(request: Request, key: Key, body: OverrideBody) -> KeyLimitResponse:
        """For `ttl` seconds this limit applies to the key, before its own limit and before what a check names.

        With `rule`, it replaces all limits of that rule instead; window and algorithm are the rule's if not given.
        """
        if body.rule is not None:
            body = _as_in_rule(node, body, body.rule)
        until_us = node.board.now_us() + max(1, round(body.ttl * 1_000_000))
        by = caller_of(request).name
        entry = key_limit(node, key, body, by=by, until_us=until_us, rule=body.rule)
        shown = KeyLimitResponse.of_entry(entry)
        async with changing(
            node,
            request,
            "override.put",
            key,
            after={"rate": entry.rate, "until": shown.until, **_named(body.rule)},
            reason=body.reason,
        ):
            await node.board.keep("o", entry)
        node.recorder.unblock(key)
        return shown

    @made.delete("/overrides/{key:key}", summary="End an override now", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "", rule: OfRule = None) -> Removed:
        """Remove an override: the previous limits apply again."""
        view = node.board.view_now()
        kept = view.overrides if rule is None else view.rule_overrides.get(rule, {})
        before = kept.get(key)
        if before is None:
            what = "the limit of this key" if rule is None else "what this rule gives the key"
            raise ProblemError(NOT_FOUND, f"nothing overrides {what}")
        async with changing(
            node,
            request,
            "override.delete",
            key,
            before={"rate": before.rate, **_named(rule)} if rule else before.rate,
            reason=reason,
        ):
            await node.board.remove("o", key, rule)
        return Removed()

    return made


def _as_in_rule(node: Node, body: OverrideBody, rule_id: str) -> OverrideBody:
    """The body with the window and the algorithm of the rule, so that previous usage still counts."""
    limits = rule_named(node, rule_id).limits
    windows = [limit.window_us / 1_000_000 for limit in limits]
    window = windows[0] if body.window is None else body.window
    like = limits[windows.index(window) if window in windows else 0]
    if body.window is None and getattr(like, "calendar", None) is not None:
        raise UsageError("this rule counts by the calendar; give the override a window", "window")
    algorithm = like.name if body.burst is None else None
    return body.model_copy(update={"window": window, "algorithm": body.algorithm or algorithm})


def _named(rule: str | None) -> dict[str, str]:
    return {} if rule is None else {"rule": rule}
