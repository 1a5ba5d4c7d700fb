"""`GET /api/counters`, `POST /api/reset`: what keys have used, and how to forget it."""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from msgspec import UNSET

from ...algorithms import limit_of_identity
from ...charge import require_key
from ...engines.memory import MemoryEngine
from ...errors import UsageError
from ..checks import limit_of
from ..figures import engine_of
from ..problems import BAD_VALUE, NOT_FOUND, ProblemError
from .changing import changing
from .guard import guarded, needs
from .models import ResetBody, Shown, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ...engines.base import Entry, Page
    from ..desk import Desk

MAX_PAGES = 1_000
"""How far a reset looks for states of a key that nobody named."""


class CounterShown(Shown):
    """What one key has used of one limit."""

    key: str
    rule: str | None
    algorithm: str
    count: int
    limit: int
    remaining: int
    window_ms: float
    idle_at: str
    """When it is as if the key had never been used."""


class CountersShown(Shown):
    """Some counters, and how to get the next ones; an empty cursor is the end."""

    counters: list[CounterShown]
    cursor: str


class ForgottenShown(Shown):
    """A state that was forgotten."""

    rule: str | None
    algorithm: str
    window_ms: float


class ResetShown(Shown):
    """What was forgotten."""

    reset: list[ForgottenShown]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["counters"], route_class=guarded(desk))

    @made.get("/counters", summary="What keys have used", **needs("viewer"))
    async def counters(
        cursor: Annotated[str, Query(max_length=65_536)] = "",
        prefix: Annotated[str, Query(max_length=8_192)] = "",
        rule: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> CountersShown:
        """Keys in use, a page at a time. A page may be short, or empty, and not be the last: that is when the cursor is empty."""
        page = await _listed(desk, prefix, _inside(cursor), limit)
        found = [one for one in page.entries if rule is None or one.rule == rule]
        shown = [_shown(one if one.limit_known else await _recounted(desk, one)) for one in found]
        return CountersShown(counters=shown, cursor=_outside(page.cursor))

    @made.post("/reset", summary="Forget what a key has used", **needs("operator"))
    async def reset(request: Request, body: ResetBody) -> ResetShown:
        """Forget what a key has used of a rule (`rule`), of a limit (`window` and `algorithm`), or of everything that is found. Tells what there was."""
        require_key(body.key)
        engine = desk.limiter.engine
        meant = {(rule, one.identity): one for rule, one in await _states(desk, body)}
        states = [
            (rule, limit)
            for (rule, _), limit in meant.items()
            if (await engine.usage(body.key, limit, rule)).in_use
        ]
        async with changing(
            desk,
            request,
            "key.reset",
            body.key,
            before=[{"rule": rule, "limit": repr(limit)} for rule, limit in states],
            reason=body.reason,
        ):
            for (rule, _), limit in meant.items():  # Also what came into use just now.
                await engine.reset(body.key, limit, rule)
        desk.recorder.unblock(body.key)
        return ResetShown(
            reset=[
                ForgottenShown(rule=rule, algorithm=one.name, window_ms=one.window_us / 1000)
                for rule, one in states
            ]
        )

    return made


async def _listed(desk: Desk, prefix: str, cursor: str, limit: int) -> Page:
    """A page of keys. An engine in memory sorts them, so it does that beside the event loop."""
    engine = engine_of(desk)
    if isinstance(engine, MemoryEngine):
        return await asyncio.to_thread(engine.list_keys, prefix, cursor, limit)
    return await desk.limiter.engine.list_keys(prefix, cursor, limit)


async def _states(desk: Desk, body: ResetBody) -> list[tuple[str | None, Limit]]:
    """Which states are meant."""
    if body.rule is not None:
        if body.window is not None or body.algorithm is not None:
            raise ProblemError(
                BAD_VALUE,
                "a rule says itself how it counts; give the rule, or the window and the algorithm",
                pointer="#/rule",
            )
        return [(body.rule, limit) for limit in _limits_of_rule(desk, body.rule)]
    if body.window is not None:
        algorithm = UNSET if body.algorithm is None else body.algorithm
        return [(None, limit_of(desk.settings, (1, body.window, algorithm, UNSET)))]
    if body.algorithm is not None:
        raise ProblemError(
            BAD_VALUE,
            "an algorithm alone does not name a state; give the window, too",
            pointer="#/algorithm",
        )
    return await _found(desk, body.key)


async def _recounted(desk: Desk, entry: Entry) -> Entry:
    """The entry by the limit that holds for its key now, where the engine did not know which that is."""
    for limit in _holding(desk, entry):
        if (limit.name, limit.window_us) == (entry.algorithm, entry.window_us):
            used, _ = await desk.limiter.engine.usage(entry.key, limit, entry.rule)
            return replace(entry, count=used, limit=limit.limit)
    return entry


def _holding(desk: Desk, entry: Entry) -> Sequence[Limit]:
    """What holds for a key by its rule, or else by what people have set for it, or by default."""
    if entry.rule is None:
        own = desk.board.view.limits.get(entry.key)
        return [desk.node.default_limit] if own is None else [own, desk.node.default_limit]
    for rule in () if desk.rules is None else desk.rules.rules:
        if rule.rule_id == entry.rule:
            limits: Sequence[Limit] = rule.overrides.get(entry.key, rule.limits)
            return limits
    return ()


def _limits_of_rule(desk: Desk, rule_id: str) -> list[Limit]:
    rules = () if desk.rules is None else desk.rules.rules
    for rule in rules:
        if rule.rule_id == rule_id:
            return [*rule.limits, *(one for limits in rule.overrides.values() for one in limits)]
    raise ProblemError(NOT_FOUND, "there is no such rule")


async def _found(desk: Desk, key: str) -> list[tuple[str | None, Limit]]:
    """The states that hold for checks of this key, and all others that are found by looking."""
    own = desk.board.view.limits.get(key)
    known: dict[tuple[str | None, str], Limit] = {}
    for limit in (desk.node.default_limit, own):
        if limit is not None:
            known[None, limit.identity] = limit
    cursor = ""
    for _ in range(MAX_PAGES):
        page = await _listed(desk, key, cursor, 1_000)
        for entry in page.entries:
            if entry.key == key:
                known |= {(entry.rule, limit.identity): limit for limit in _limits_of(desk, entry)}
        cursor = page.cursor
        if not cursor:
            break
    return [(rule, limit) for (rule, _), limit in known.items()]


def _limits_of(desk: Desk, entry: Entry) -> list[Limit]:
    """Limits that find the state of an entry. What a rule counts by the calendar only the rule can say."""
    if entry.rule is not None:
        with suppress(ProblemError):
            return _limits_of_rule(desk, entry.rule)
    window = f":{entry.window_us}" if entry.window_us else ""
    return [limit_of_identity(entry.algorithm + window)]


def _shown(entry: Entry) -> CounterShown:
    return CounterShown(
        key=entry.key,
        rule=entry.rule,
        algorithm=entry.algorithm,
        count=entry.count,
        limit=entry.limit,
        remaining=max(0, entry.limit - entry.count),
        window_ms=entry.window_us / 1000,
        idle_at=moment(entry.idle_at_us),
    )


def _outside(cursor: str) -> str:
    """A cursor that survives in an address."""
    return urlsafe_b64encode(cursor.encode()).decode()


def _inside(cursor: str) -> str:
    try:
        return urlsafe_b64decode(cursor.encode("ascii")).decode()
    except (ValueError, binascii.Error):
        raise UsageError("that is no cursor; begin with an empty one") from None
