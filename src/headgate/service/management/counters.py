"""`GET /api/counters`, `POST /api/reset`: the usage of keys, and how to reset it."""

from __future__ import annotations

import asyncio
import binascii
import time
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
from ..front import limit_of
from ..http.problems import BAD_VALUE, ProblemError
from .access import guarded, needs
from .audited_change import changing
from .key_states import known_states, limits_for, limits_of_rule
from .models import ResetBody, ResponseModel, moment, whole_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ...engines.base import KeyEntry, KeyPage
    from ..node import Node
    from .key_states import States

LOOK_FOR = 0.5
"""How long a reset searches for a key's other states before it returns a cursor, in seconds."""


class CounterResponse(ResponseModel):
    """What one key has used of one limit."""

    key: str
    rule: str | None
    algorithm: str
    count: int
    limit: int | None
    """`null`, like `remaining`, if it is not known what the key was last counted by."""
    remaining: int | None
    window_ms: int
    idle_at: str
    """When the key will count as unused."""


class CountersResponse(ResponseModel):
    """Some counters, and the cursor of the next page; empty at the end."""

    counters: list[CounterResponse]
    cursor: str


class ForgottenResponse(ResponseModel):
    """A state that was reset."""

    rule: str | None
    algorithm: str
    window_ms: int


class ResetResponse(ResponseModel):
    """What was reset, and the cursor to continue with; empty at the end."""

    reset: list[ForgottenResponse]
    cursor: str


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["counters"], route_class=guarded(node))

    @made.get("/counters", summary="List the usage of keys", **needs("viewer"))
    async def counters(
        cursor: Annotated[str, Query(max_length=65_536)] = "",
        prefix: Annotated[str, Query(max_length=8_192)] = "",
        rule: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> CountersResponse:
        """Keys in use, page by page.

        A page may be short or even empty without being the last: only an empty cursor marks the end.
        """
        page = await _listed(node, prefix, _inside(cursor), limit)
        found = [one for one in page.entries if rule is None or one.rule == rule]
        shown = [_shown(one if one.limit_known else await _recounted(node, one)) for one in found]
        return CountersResponse(counters=shown, cursor=_outside(page.cursor))

    @made.post("/reset", summary="Reset a key's usage", **needs("operator"))
    async def reset(request: Request, body: ResetBody) -> ResetResponse:
        """Forget what a key has used: of a `rule`, of a `window` and `algorithm`, or everything; returns what it was.

        Counts under the default, under the key's own limit and under rules are reset at once. Limits that other checks
        have named must be searched for among all keys, half a second at a time: repeat the request with `cursor` until
        it is empty.
        """
        require_key(body.key)
        engine = node.limiter.engine
        found, cursor = await _states(node, body)
        meant = {(rule, one.identity): one for rule, one in found}
        states = [
            (rule, limit)
            for (rule, _), limit in meant.items()
            if (await engine.usage(body.key, limit, rule)).in_use
        ]
        async with changing(
            node,
            request,
            "key.reset",
            body.key,
            before=[{"rule": rule, "limit": repr(limit)} for rule, limit in states],
            reason=body.reason,
        ):
            for (rule, _), limit in meant.items():  # Including what came into use just now.
                await engine.reset(body.key, limit, rule)
        node.recorder.unblock(body.key)
        return ResetResponse(
            reset=[
                ForgottenResponse(rule=rule, algorithm=one.name, window_ms=whole_ms(one.window_us))
                for rule, one in states
            ],
            cursor=_outside(cursor),
        )

    return made


async def _listed(node: Node, prefix: str, cursor: str, limit: int) -> KeyPage:
    """A page of keys. The memory engine sorts them, so that runs in a thread."""
    engine = node.limiter.engine.unguarded
    if isinstance(engine, MemoryEngine):
        return await asyncio.to_thread(engine.list_keys, prefix, cursor, limit)
    return await node.limiter.engine.list_keys(prefix, cursor, limit)


async def _states(node: Node, body: ResetBody) -> tuple[States, str]:
    """The states to reset, and where to search for more."""
    if body.rule is not None:
        if body.window is not None or body.algorithm is not None:
            raise ProblemError(
                BAD_VALUE,
                "a rule has its own window and algorithm; give either the rule, or the window and the algorithm",
                pointer="#/rule",
            )
        return [(body.rule, limit) for limit in limits_of_rule(node, body.rule)], ""
    if body.window is not None:
        algorithm = UNSET if body.algorithm is None else body.algorithm
        return [(None, limit_of(node.settings, (1, body.window, algorithm, UNSET)))], ""
    if body.algorithm is not None:
        raise ProblemError(
            BAD_VALUE,
            "an algorithm also needs a window",
            pointer="#/algorithm",
        )
    known = [] if body.cursor else known_states(node, body.key)
    engine = node.limiter.engine.unguarded
    if isinstance(engine, MemoryEngine):
        return known + engine.scoped(node.settings.namespace).states_of(body.key), ""
    found, cursor = await _found(node, body.key, _inside(body.cursor))
    return known + found, cursor


async def _recounted(node: Node, entry: KeyEntry) -> KeyEntry:
    """The entry by the limit currently in force for its key, if the engine did not know its limit."""
    for limit in _holding(node, entry):
        if (limit.name, limit.window_us) == (entry.algorithm, entry.window_us):
            used, _ = await node.limiter.engine.usage(entry.key, limit, entry.rule)
            return replace(entry, count=used, limit=limit.limit, limit_known=True)
    return entry


def _holding(node: Node, entry: KeyEntry) -> Sequence[Limit]:
    """The limits in force for a key: by its rule, by its own settings, or by default."""
    if entry.rule is None:
        own = node.board.view.limits.get(entry.key)
        return [node.default_limit] if own is None else [own, node.default_limit]
    for rule in () if node.rules is None else node.rules.rules:
        if rule.rule_id == entry.rule:
            return limits_for(node, rule, entry.key)
    return ()


async def _found(node: Node, key: str, cursor: str) -> tuple[States, str]:
    """All other states of a key found within a time limit, and the cursor to continue with."""
    found: States = []
    ends = time.monotonic() + LOOK_FOR
    while True:
        page = await _listed(node, key, cursor, 1_000)
        for entry in page.entries:
            if entry.key == key:
                found += [(entry.rule, limit) for limit in _limits_of(node, entry)]
        cursor = page.cursor
        if not cursor or time.monotonic() > ends:
            return found, cursor


def _limits_of(node: Node, entry: KeyEntry) -> list[Limit]:
    """Limits that lead to the state of an entry. Calendar limits are known only to their rule."""
    if entry.rule is not None:
        with suppress(ProblemError):
            return limits_of_rule(node, entry.rule)
    window = f":{entry.window_us}" if entry.window_us else ""
    return [limit_of_identity(entry.algorithm + window)]


def _shown(entry: KeyEntry) -> CounterResponse:
    return CounterResponse(
        key=entry.key,
        rule=entry.rule,
        algorithm=entry.algorithm,
        count=entry.count,
        limit=entry.limit if entry.limit_known else None,
        remaining=max(0, entry.limit - entry.count) if entry.limit_known else None,
        window_ms=whole_ms(entry.window_us),
        idle_at=moment(entry.idle_at_us),
    )


def _outside(cursor: str) -> str:
    """A cursor that is safe in an address."""
    return urlsafe_b64encode(cursor.encode()).decode()


def _inside(cursor: str) -> str:
    try:
        return urlsafe_b64decode(cursor.encode("ascii")).decode()
    except (ValueError, binascii.Error):
        raise UsageError("invalid cursor; start with an empty one") from None
