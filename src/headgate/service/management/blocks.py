"""`/api/blocks` and `/api/bans`: who is denied right now, by a limit or by a person."""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Request

from ...board import Ban
from ..problems import NOT_FOUND, ProblemError
from .changing import changing
from .guard import caller_of, guarded, needs
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .limits import Why  # noqa: TC001 - as above
from .models import BanBody, Removed, Shown, moment

if TYPE_CHECKING:
    from ...board import Block
    from ..desk import Desk


class BlockShown(Shown):
    """A key that is denied right now."""

    key: str
    blocked_until: str | None
    """`null` when it does not end by itself."""
    reason: str
    kind: Literal["limit", "ban"]


class BlocksShown(Shown):
    """Every key that is denied right now."""

    blocked: list[BlockShown]


class BanShown(Shown):
    """A key that a person has locked out."""

    key: str
    until: str | None
    reason: str
    by: str
    set_at: str

    @classmethod
    def of(cls, ban: Ban) -> BanShown:
        """A ban of the board."""
        return cls(
            key=ban.key,
            until=None if ban.until_us is None else moment(ban.until_us),
            reason=ban.reason,
            by=ban.by,
            set_at=moment(ban.set_at_us),
        )


class BansShown(Shown):
    """Every ban that holds now."""

    bans: list[BanShown]


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["blocks"], route_class=guarded(desk))

    @made.get("/blocks", summary="Who is denied right now", **needs("viewer"))
    async def blocks(limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000) -> BlocksShown:
        """Keys that a limit denies, as of this moment on this node and a second or two ago on the others, and bans; at most `limit` of each."""
        banned, limited = _banned(desk), await _limited(desk, limit)
        return BlocksShown(blocked=[*banned[:limit], *limited])

    @made.get("/bans", summary="Who is locked out", **needs("viewer"))
    async def bans() -> BansShown:
        """Keys that people have locked out."""
        kept = desk.board.view_now().bans
        return BansShown(bans=[BanShown.of(ban) for _, ban in sorted(kept.items())])

    @made.put("/bans/{key:key}", summary="Lock a key out", **needs("operator"))
    async def put(request: Request, key: Key, body: BanBody) -> BanShown:
        """Every check of this key is denied, here at once and on all nodes within a second, for `ttl` seconds or until it is removed."""
        now_us = desk.board.now_us()
        until_us = None if body.ttl is None else now_us + max(1, round(body.ttl * 1_000_000))
        name = caller_of(request).name
        ban = Ban(key=key, until_us=until_us, by=name, reason=body.reason, set_at_us=now_us)
        shown = BanShown.of(ban)
        before = desk.board.view_now().bans.get(key)
        async with changing(
            desk,
            request,
            "ban.put",
            key,
            before=None if before is None else BanShown.of(before).model_dump(),
            after={"until": shown.until},
            reason=body.reason,
        ):
            await desk.board.keep("b", ban)
        return shown

    @made.delete("/bans/{key:key}", summary="Let a key in again", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> Removed:
        """Its limit is all that holds for it again."""
        before = desk.board.view_now().bans.get(key)
        if before is None:
            raise ProblemError(NOT_FOUND, "this key is not banned")
        async with changing(
            desk,
            request,
            "ban.delete",
            key,
            before=BanShown.of(before).model_dump(),
            reason=reason,
        ):
            await desk.board.remove("b", key)
        desk.recorder.unblock(key)
        return Removed()

    return made


def _banned(desk: Desk) -> list[BlockShown]:
    return [
        BlockShown(
            key=key,
            blocked_until=None if ban.until_us is None else moment(ban.until_us),
            reason=ban.reason or "banned",
            kind="ban",
        )
        for key, ban in sorted(desk.board.view_now().bans.items())
    ]


async def _limited(desk: Desk, many: int) -> list[BlockShown]:
    """Those of this node and of the others that last longest; of two that speak of one key, the one that ends later."""
    own = desk.recorder.blocks(desk.board.offset_us)
    found: dict[str, Block] = {}
    for block in [*await desk.board.blocks(), *own]:
        known = found.get(block.key)
        if known is None or block.until_us >= known.until_us:
            found[block.key] = block
    bans = desk.board.view_now().bans
    limited = [one for key, one in found.items() if key not in bans]
    longest = nlargest(many, limited, key=attrgetter("until_us"))
    return [
        BlockShown(
            key=block.key,
            blocked_until=moment(block.until_us),
            reason=block.reason,
            kind="limit",
        )
        for block in sorted(longest)
    ]
