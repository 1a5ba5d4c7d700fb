"""`/api/kill-switch`: turn off all limits or those of one rule, even while the store is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Request

from ...guards.kill_switch import EVERYTHING
from ..http.problems import NOT_FOUND, ProblemError
from .access import guarded, needs
from .audited_change import changing
from .limits import Why  # noqa: TC001 - FastAPI reads it
from .models import Reason, Removed, RequestModel, ResponseModel

if TYPE_CHECKING:
    from ..node import Node

RuleId = Annotated[str, Path(min_length=1, max_length=256, pattern=r"^[^\s#*][^\s]*$")]


class KillSwitchBody(RequestModel):
    """Why limits are turned off."""

    reason: Reason = ""


class KillSwitchResponse(ResponseModel):
    """What is turned off, and why."""

    everything: bool
    reason: str
    """Why everything is off."""
    rules: dict[str, str]
    """Rules that are off, each with its reason."""
    file: bool
    """Whether it is stored in a file, so that it survives this process and applies to all of its workers."""

    @classmethod
    def of(cls, node: Node) -> KillSwitchResponse:
        """What is off on a node."""
        switch = node.kill_switch
        off = dict(switch.off)
        everything = off.pop(EVERYTHING, None)
        return cls(
            everything=everything is not None,
            reason=everything or "",
            rules=off,
            file=switch.path is not None,
        )


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["kill switch"], route_class=guarded(node))
    switch = node.kill_switch

    async def turn_off(request: Request, what: str, reason: str) -> KillSwitchResponse:
        async with changing(node, request, "kill-switch.off", what, reason=reason):
            switch.turn_off(what, reason)
        return KillSwitchResponse.of(node)

    async def turn_on(request: Request, what: str, reason: str) -> Removed:
        if what not in switch.off:
            raise ProblemError(NOT_FOUND, "these limits are on")
        async with changing(node, request, "kill-switch.on", what, reason=reason):
            switch.turn_on(what)
        return Removed()

    @made.get("/kill-switch", summary="Which limits are turned off", **needs("viewer"))
    async def get() -> KillSwitchResponse:
        """The switch of this node; every node has its own."""
        return KillSwitchResponse.of(node)

    @made.put("/kill-switch", summary="Turn all limits off", **needs("operator"))
    async def put(request: Request, body: KillSwitchBody) -> KillSwitchResponse:
        """Every request passes, and none is counted; bans do not apply either."""
        return await turn_off(request, EVERYTHING, body.reason)

    @made.delete("/kill-switch", summary="Turn all limits on", **needs("operator"))
    async def delete(request: Request, reason: Why = "") -> Removed:
        """Limits apply again, except for rules that are off themselves."""
        return await turn_on(request, EVERYTHING, reason)

    @made.put(
        "/kill-switch/{rule_id}", summary="Turn the limits of a rule off", **needs("operator")
    )
    async def put_rule(
        request: Request, rule_id: RuleId, body: KillSwitchBody
    ) -> KillSwitchResponse:
        """The rule's limits are off; other rules still apply."""
        return await turn_off(request, rule_id, body.reason)

    @made.delete("/kill-switch/{rule_id}", summary="Turn them on again", **needs("operator"))
    async def delete_rule(request: Request, rule_id: RuleId, reason: Why = "") -> Removed:
        """The rule's limits apply again."""
        return await turn_on(request, rule_id, reason)

    return made
