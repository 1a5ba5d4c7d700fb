"""`GET /api/regions`: the regions, the links to them, and which promises hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Path, Request

from ...regions.promises import promise_of
from ...regions.taken_back import FOR_EVER
from ..http.problems import NOT_FOUND, ProblemError
from .access import guarded, needs
from .audited_change import changing
from .limits import Why  # noqa: TC001 - FastAPI reads it
from .models import ResponseModel, moment

if TYPE_CHECKING:
    from ...regions.exchange import RegionExchange
    from ..node import Node

Region = Annotated[str, Path(max_length=63)]


class RightsBetween(ResponseModel):
    """Rights of limits that are kept by escrow, since this node started."""

    asked: int
    """How often this node asked for some."""
    unanswered: int
    received: int
    """Units."""
    given: int
    """Units."""


class RightsResponse(ResponseModel):
    """The rights of this region, as this node knows them."""

    windows: int
    """Windows of keys, under way, that this node has asked or given rights of."""
    held: int
    """What this region may admit in these, and has admitted."""
    lost: int
    """Units that were taken off for another region and did not get there, since this node started."""
    from_window: str | None
    """The store has its share of windows that begin after this moment; `null` if that is not known yet."""


class RegionResponse(ResponseModel):
    """Another region, as this one sees it."""

    region: str
    weight: int
    link: Literal["up", "cut", "none"]
    """`none` where regions tell each other nothing, because all their limits are split."""
    lag_seconds: float | None
    """How old what it knows of this region is; `null` if it knows nothing."""
    heard_seconds: float | None
    """How long ago it was last heard of; `null` for never."""
    shipper: str
    """The node that reports to it what this region admits."""
    problem: str | None
    units_charged: int
    """Units that it admitted and that this node has charged here, of limits that regions merge."""
    rights: RightsBetween | None
    """What became of rights between it and this node; `null` where no limit can be kept by escrow."""


class RegionsResponse(ResponseModel):
    """All regions; without any, there is only one."""

    region: str | None
    """This one."""
    weight: int
    cut_off: bool
    """Whether some region cannot be heard."""
    others: list[RegionResponse]
    promises: dict[str, str]
    """What each consistency promises now."""
    rights: RightsResponse | None
    """`null` where no limit can be kept by escrow."""
    taken_back: list[str]
    """Regions whose rights a person has given to the others."""


class TakenBackResponse(ResponseModel):
    """What became of a region's rights."""

    region: str
    taken_back: bool
    """Whether the others have its rights, in windows that begin five seconds from now."""
    untold: list[str]
    """Regions that did not hear of it. When rights are given back, all of them must: try again."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["regions"], route_class=guarded(node))

    @made.get("/regions", summary="List the regions", **needs("viewer"))
    async def regions() -> RegionsResponse:
        """How the links to other regions are, and what limits that regions keep together promise now."""
        return regions_of(node)

    @made.put(
        "/regions/{region}/taken-back",
        summary="Take back a dead region's rights",
        **needs("operator"),
    )
    async def take_back(request: Request, region: Region, reason: Why = "") -> TakenBackResponse:
        """The others have its rights, in windows that begin five seconds from now. Its store must be stopped."""
        return await _changed(node, request, region, reason, undo=False)

    @made.delete(
        "/regions/{region}/taken-back", summary="Give a region its rights back", **needs("operator")
    )
    async def give_back(request: Request, region: Region, reason: Why = "") -> TakenBackResponse:
        """It has its own rights again, in windows that begin five seconds from now. Start its store after that."""
        return await _changed(node, request, region, reason, undo=True)

    return made


async def _changed(
    node: Node, request: Request, region: str, reason: str, *, undo: bool
) -> TakenBackResponse:
    rights = None if node.exchange is None else node.exchange.rights
    if rights is None:
        raise ProblemError(NOT_FOUND, "no region holds rights here; see consistency: escrow")
    action = "region.give_back" if undo else "region.take_back"
    async with changing(node, request, action, region, after=not undo, reason=reason):
        untold = await rights.take_back(region, undo=undo)
    return TakenBackResponse(region=region, taken_back=not undo, untold=untold)


def regions_of(node: Node) -> RegionsResponse:
    """What this node knows of the regions."""
    regions, exchange = node.regions, node.exchange
    if regions is None:
        return RegionsResponse(
            region=None, weight=1, cut_off=False, others=[], promises={}, rights=None, taken_back=[]
        )
    links = {} if exchange is None else {one.region: one for one in exchange.links()}
    others = []
    for region in regions.others:
        link = links.get(region)
        others.append(
            RegionResponse(
                region=region,
                weight=regions.weights[region],
                link="none" if link is None else "up" if link.up else "cut",
                lag_seconds=None if link is None else link.lag_seconds,
                heard_seconds=None if link is None else link.heard_seconds,
                shipper="" if link is None else link.shipper,
                problem=None if link is None or link.problem is None else link.problem[:300],
                units_charged=0 if exchange is None else exchange.charged_units.get(region, 0),
                rights=_between(exchange, region),
            )
        )
    cut_off = exchange is not None and exchange.cut_off
    modes = ["split"] if exchange is None else ["split", "merge"]
    if exchange is not None and exchange.rights is not None:
        modes.append("escrow")
    return RegionsResponse(
        region=regions.here,
        weight=regions.weights[regions.here],
        cut_off=cut_off,
        others=others,
        promises={mode: promise_of(mode, regions, cut_off=cut_off) for mode in modes},
        rights=_rights(exchange),
        taken_back=_taken_back(exchange),
    )


def _between(exchange: RegionExchange | None, region: str) -> RightsBetween | None:
    if exchange is None or exchange.rights is None:
        return None
    figures = exchange.rights.figures
    return RightsBetween(
        asked=figures.asked[region],
        unanswered=figures.unanswered[region],
        received=figures.received[region],
        given=figures.given[region],
    )


def _rights(exchange: RegionExchange | None) -> RightsResponse | None:
    rights = None if exchange is None else exchange.rights
    if rights is None:
        return None
    held, from_us = rights.held(), rights.desk.share_from_us
    return RightsResponse(
        windows=held.windows,
        held=held.units,
        lost=rights.figures.lost,
        from_window=None if from_us is None else moment(from_us),
    )


def _taken_back(exchange: RegionExchange | None) -> list[str]:
    rights = None if exchange is None else exchange.rights
    if rights is None:
        return []
    return sorted(name for name, one in rights.taken_back.items() if one.until_us == FOR_EVER)
