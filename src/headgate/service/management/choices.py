"""`/api/choice`: which algorithm decides adaptive limits, why, and how to pin one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from ...adaptive import OVERALL
from ...algorithms.adaptive import CANDIDATES
from ...errors import UsageError
from ..http.problems import NOT_FOUND, ProblemError
from .access import caller_of, guarded, needs
from .audited_change import changing
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .limits import Why  # noqa: TC001 - as above
from .models import Reason, RequestModel, ResponseModel, Ttl

if TYPE_CHECKING:
    from ...adaptive import Choice
    from ..node import Node

EVERYTHING = "*"
"""The name of the overall choice in addresses; a rule goes by its id."""
US = 1_000_000


class ChoiceResponse(ResponseModel):
    """Which algorithm decides, since when and why. Times are seconds since 1970, by the board's clock."""

    scope: str
    """`*`, or the id of a rule."""
    algorithm: str
    since: float | None
    """`null` if there is no choice yet."""
    epoch: int
    pinned_by: str | None
    pinned_until: float | None
    """`null` if it is not pinned, or pinned without an end."""
    dwell_left: float
    """Seconds until the next switch is possible."""
    reason: str


class ChoicesResponse(ResponseModel):
    """The overall choice, and those of rules with an adaptive limit."""

    overall: ChoiceResponse
    rules: dict[str, ChoiceResponse]


class PinBody(RequestModel):
    """What to pin, and for how long; by default until it is unpinned."""

    algorithm: Annotated[str, Field(max_length=64)]
    ttl: Ttl | None = None
    reason: Reason = ""


def choice_response(node: Node, rule: str = OVERALL) -> ChoiceResponse:
    """Which algorithm decides for a rule, or for everything."""
    choice = node.control.deciding(rule)
    until_us, since_us = choice.pinned_until_us, choice.since_us
    dwell_us = node.control.agreement.thresholds.dwell_us
    left_us = since_us + dwell_us - node.board.now_us() if since_us and not choice.pinned else 0
    return ChoiceResponse(
        scope=rule or EVERYTHING,
        algorithm=choice.algorithm,
        since=since_us / US if since_us else None,
        epoch=choice.epoch,
        pinned_by=choice.pinned_by or None,
        pinned_until=until_us / US if until_us else None,
        dwell_left=round(max(0, left_us) / US, 3),
        reason=choice.reason,
    )


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["choice"], route_class=guarded(node))

    @made.get("/choice", summary="Which algorithm decides", **needs("viewer"))
    async def choices() -> ChoicesResponse:
        """For checks and rules with an adaptive limit, as all nodes have agreed."""
        rules = sorted(node.rule_traffic.adaptive)
        return ChoicesResponse(
            overall=choice_response(node),
            rules={rule: choice_response(node, rule) for rule in rules},
        )

    @made.put("/choice/{key:key}", summary="Pin an algorithm", **needs("operator"))
    async def put(request: Request, key: Key, body: PinBody) -> ChoiceResponse:
        """Let one algorithm decide regardless of the traffic: `*` for everything, or the id of a rule.

        It takes effect here at once and on all nodes within a second. A rule's own pin wins over the overall one.
        """
        rule = _rule_of(node, key)
        if body.algorithm not in CANDIDATES:
            text = f"adaptive chooses between {', '.join(CANDIDATES)}, not {body.algorithm!r:.40}"
            raise UsageError(text, "algorithm")
        now_us, by = node.board.now_us(), caller_of(request).name
        until_us = 0 if body.ttl is None else now_us + max(1, round(body.ttl * US))
        async with changing(
            node,
            request,
            "choice.pin",
            key,
            before=_audited(node.control.known(rule)),
            after={"algorithm": body.algorithm, "ttl": body.ttl},
            reason=body.reason,
        ):
            await node.board.propose(
                lambda: node.control.pin(
                    rule, body.algorithm, now_us, by, body.reason, until_us=until_us
                )
            )
        return choice_response(node, rule)

    @made.delete("/choice/{key:key}", summary="Let the traffic decide again", **needs("operator"))
    async def delete(request: Request, key: Key, reason: Why = "") -> ChoiceResponse:
        """The pinned algorithm stays for the dwell time, like any other choice."""
        rule = _rule_of(node, key)
        before = node.control.known(rule)
        if not before.pinned:
            raise ProblemError(NOT_FOUND, "there is no pin")
        async with changing(
            node, request, "choice.unpin", key, before=_audited(before), reason=reason
        ):
            await node.board.propose(lambda: node.control.unpin(rule, node.board.now_us()))
        return choice_response(node, rule)

    return made


def _rule_of(node: Node, scope: str) -> str:
    """The rule in an address."""
    if scope == EVERYTHING:
        return OVERALL
    if scope in node.rule_traffic.adaptive:
        return scope
    raise ProblemError(
        NOT_FOUND, "there is no rule of this name with an adaptive limit; * is everything"
    )


def _audited(choice: Choice) -> dict[str, str | None]:
    return {"algorithm": choice.algorithm, "pinned_by": choice.pinned_by or None}
