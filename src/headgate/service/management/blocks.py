"""`/api/blocks` and `/api/bans`: which keys are denied right now, by a limit or by a ban."""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Request

from ...board import Ban
from ..http.problems import NOT_FOUND, ProblemError
from .access import caller_of, guarded, needs
from .audited_change import changing
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .limits import Why  # noqa: TC001 - as above
from .models import BanBody, Removed, ResponseModel, moment

if TYPE_CHECKING:
    from ...board import Block
    from ..node import Node


class BlockResponse(ResponseModel):
    """A key that is denied right now."""

    key: str
    blocked_until: str | None
    """`null` for a permanent ban."""
    reason: str
    kind: Literal["limit", "ban"]


class BlocksResponse(ResponseModel):
    """Every key that is denied right now."""

    blocked: list[BlockResponse]


class BanResponse(ResponseModel):
    """A banned key."""

    key: str
    until: str | None
    reason: str
    by: str
    set_at: str

    @classmethod
    def of(cls, ban: Ban) -> BanResponse:
        """From a ban of the board."""
        return cls(
            key=ban.key,
            until=None if ban.until_us is None else moment(ban.until_us),
            reason=ban.reason,
            by=ban.by,
            set_at=moment(ban.set_at_us),
        )


class BansResponse(ResponseModel):
    """All bans in force."""

    bans: list[BanResponse]


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["blocks"], route_class=guarded(node))

    @made.get("/blocks", summary="List the keys that are denied right now", **needs("viewer"))
    async def blocks(limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000) -> BlocksResponse:
        """Keys that a limit denies, as of now on this node and a second or two ago on the others, and bans.

        At most `limit` of each.
        """
        banned, limited = _banned(node), await _limited(node, limit)
        return BlocksResponse(blocked=[*banned[:limit], *limited])

    @made.get("/bans", summary="List banned keys", **needs("viewer"))
    async def bans() -> BansResponse:
        """Keys that operators have banned."""
        kept = node.board.view_now().bans
        return BansResponse(bans=[BanResponse.of(ban) for _, ban in sorted(kept.items())])

    @made.put("/bans/{key:key}", summary="Ban a key", **needs("operator"))
    async def put(request: Request, key: Key, body: BanBody) -> BanResponse:
        """Deny every check of this key, here at once and elsewhere within a second, for `ttl` seconds or for ever."""
        now_us = node.board.now_us()
        until_us = None if body.ttl is None else now_us + max(1, round(body.ttl * 1_000_000))
        name = caller_of(request).name
        ban = Ban(key=key, until_us=until_us, by=name, reason=body.reason, set_at_us=now_us)
        shown = BanResponse.of(ban)
        before = node.board.view_now().bans.get(key)
        async with changing(
            node,
            request,
            "ban.put",
            key,
            before=None if before is None else BanResponse.of(before).model_dump(),
            after={"until": shown.until},
            reason=body.reason,
        ):
            await node.board.keep("b", ban)
        return shown

    @made.delete("/bans/{key:key}", summary="Lift a ban", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> Removed:
        """Remove a ban: only limits apply to the key again."""
        before = node.board.view_now().bans.get(key)
        if before is None:
            raise ProblemError(NOT_FOUND, "this key is not banned")
        async with changing(
            node,
            request,
            "ban.delete",
            key,
            before=BanResponse.of(before).model_dump(),
            reason=reason,
        ):
            await node.board.remove("b", key)
        node.recorder.unblock(key)
        return Removed()

    return made


def _banned(node: Node) -> list[BlockResponse]:
    return [
        BlockResponse(
            key=key,
            blocked_until=None if ban.until_us is None else moment(ban.until_us),
            reason=ban.reason or "banned",
            kind="ban",
        )
        for key, ban in sorted(node.board.view_now().bans.items())
    ]


async def limited_keys(node: Node) -> list[Block]:
    """The keys that a limit denies, here or elsewhere; of two blocks of one key, the one that ends later."""
    own = node.recorder.blocks(node.board.offset_us)
    found: dict[str, Block] = {}
    for block in [*await node.board.blocks(), *own]:
        known = found.get(block.key)
        if known is None or block.until_us >= known.until_us:
            found[block.key] = block
    bans = node.board.view_now().bans
    return [one for key, one in found.items() if key not in bans]


async def _limited(node: Node, many: int) -> list[BlockResponse]:
    """Those that last longest."""
    longest = nlargest(many, await limited_keys(node), key=attrgetter("until_us"))
    return [
        BlockResponse(
            key=block.key,
            blocked_until=moment(block.until_us),
            reason=block.reason,
            kind="limit",
        )
        for block in sorted(longest, key=itemgetter(0))
    ]
