"""`GET /api/regions`: the regions, the links to them, and the current guarantees."""

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
    """Rights exchanged for limits with escrow, since this node started."""

    asked: int
    """Asks that this node has sent."""
    unanswered: int
    received: int
    """Units."""
    given: int
    """Units."""


class RightsResponse(ResponseModel):
    """The rights of this region, as known to this node."""

    windows: int
    """Current windows of keys in which this node has asked for or given rights."""
    held: int
    """What this region may admit in these, including what it has admitted."""
    lost: int
    """Units taken off for another region that did not arrive, since this node started."""
    from_window: str | None
    """The store has its share of windows that begin after this moment; `null` if that is not known yet."""


class RegionResponse(ResponseModel):
    """Another region, as this one sees it."""

    region: str
    weight: int
    link: Literal["up", "cut", "none"]
    """`none` if regions do not communicate, because all their limits are split."""
    lag_seconds: float | None
    """The age of what it knows about this region; `null` if it knows nothing."""
    heard_seconds: float | None
    """Seconds since its last message; `null` for never."""
    shipper: str
    """The node that reports this region's admissions to it."""
    problem: str | None
    units_charged: int
    """Units of merged limits that it admitted and that this node has charged here."""
    rights: RightsBetween | None
    """Rights exchanged between it and this node; `null` if escrow is not available."""


class RegionsResponse(ResponseModel):
    """All regions; empty if there is only one."""

    region: str | None
    """This region."""
    weight: int
    cut_off: bool
    """Whether some region cannot be reached."""
    others: list[RegionResponse]
    promises: dict[str, str]
    """What each consistency guarantees now."""
    rights: RightsResponse | None
    """`null` if escrow is not available."""
    taken_back: list[str]
    """Regions whose rights an operator has given to the others."""


class TakenBackResponse(ResponseModel):
    """The state of a region's rights."""

    region: str
    taken_back: bool
    """Whether the others have its rights, in windows that begin five seconds from now."""
    untold: list[str]
    """Regions that were not reached. To give rights back, all must be: try again."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["regions"], route_class=guarded(node))

    @made.get("/regions", summary="List the regions", **needs("viewer"))
    async def regions() -> RegionsResponse:
        """The links to other regions, and what shared limits guarantee now."""
        return regions_of(node)

    @made.put(
        "/regions/{region}/taken-back",
        summary="Take back a dead region's rights",
        **needs("operator"),
    )
    async def take_back(request: Request, region: Region, reason: Why = "") -> TakenBackResponse:
        """The others get its rights, in windows that begin five seconds from now. Its store must be stopped."""
        return await _changed(node, request, region, reason, undo=False)

    @made.delete(
        "/regions/{region}/taken-back", summary="Give a region its rights back", **needs("operator")
    )
    async def give_back(request: Request, region: Region, reason: Why = "") -> TakenBackResponse:
        """It gets its own rights back, in windows that begin five seconds from now. Start its store after that."""
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
    """What this node knows about the regions."""
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
    held, from_us = rights.held(), rights.account.share_from_us
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
