"""`POST /api/explain`: what the answer would be, and why. Takes nothing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from ...algorithms import FixedWindow
from ...charge import Charge, ChargeSet as Asked, require_key
from ...charge_kind import ChargeKind
from ...decision import Decision
from ...errors import UsageError
from ...regions.escrow_guard import ESCROW
from ..http.bodies import MAX_DESCRIPTORS, DecideBody, answer_of, encode
from ..http.described_request import incoming_from
from .access import guarded, needs
from .limits import named_limit
from .models import MAX_TTL, LimitResponse, RequestModel, ResponseModel, moment

if TYPE_CHECKING:
    from ...algorithms import Limit
    from ...board import Ban
    from ...rules.request import Request as Incoming
    from ..node import Node


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class RequestBody(RequestModel):
    """The description of a request, with the same fields as `POST /decide`."""

    method: str = "GET"
    path: str = "/"
    ip: str | None = None
    user_id: str | None = None
    api_key: str | None = None
    host: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    descriptors: list[Pair] = Field(default_factory=list, max_length=MAX_DESCRIPTORS)
    cost: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None


class ExplainBody(RequestModel):
    """Either a request, for the rules, or a key with the parameters of a check."""

    request: RequestBody | None = None
    key: Annotated[str, Field(min_length=1, max_length=8_192)] | None = None
    limit: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    burst: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    cost: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1


class KeyRightsResponse(ResponseModel):
    """The rights of this region in the window of one key."""

    limit: int
    """The units that all regions together may admit."""
    share: int
    """The units that it started with."""
    received: dict[str, int]
    """Units granted to it by others."""
    given: dict[str, int]
    """Units that it granted to others."""
    admitted: int
    left: int
    said: str
    """The same in words."""


class ExplainResponse(ResponseModel):
    """What the answer would be now, when it will pass, and why."""

    allowed: bool
    passes_after: float | None
    """Seconds until it passes without other traffic; `null` for never."""
    why: str
    limit: LimitResponse | None = None
    limit_from: Literal["override", "key", "check", "default", "rules"]
    """Where the limit comes from."""
    answers: list[dict[str, Any]]
    """The answer of every limit that applies."""
    trace: dict[str, Any] | None = None
    """For a request: every rule, and why it applies or not."""
    admitted_by_region: dict[str, dict[str, int]] | None = None
    """For a request: what each region has admitted of merged limits, as far as it still counts, by rule."""
    rights: dict[str, KeyRightsResponse] | None = None
    """For a request: the rights of this region in limits with escrow, by rule."""


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["explain"], route_class=guarded(node))
    incoming = incoming_from(node.settings.trusted_proxies)

    @made.post("/explain", summary="Explain what the answer would be", **needs("viewer"))
    async def explain(body: ExplainBody) -> ExplainResponse:
        """Takes nothing. With `request`, every rule shows whether it applies.

        With `key`, the limit in force for it is used.
        """
        if (body.request is None) is (body.key is None):
            raise UsageError("give either request, for the rules, or key, for a check")
        if body.request is not None:
            asked = body.request.model_dump()
            asked["descriptors"] = list(map(tuple, asked["descriptors"]))
            return await _of_request(node, incoming(DecideBody(**asked)))
        return await _of_key(node, body)

    return made


async def _of_request(node: Node, request: Incoming) -> ExplainResponse:
    explained = await node.limiter.explain_request(request)
    after = explained.passes_after
    enforced = [one for one in explained.answers if one.source != "shadow"]
    refused = explained.refused
    banned = _ban_on(node, explained.trace.charges)
    if banned is not None:
        after, why = banned.retry_after, f"{banned.key} is {_why(node, banned)}"
    elif refused is not None:
        after, why = math.inf, f"denied by the setting bad_paths: {refused}"
    elif not explained.allowed:
        why = f"denied by {', '.join(sorted({one.rule or '-' for one in enforced if not one}))}"
    elif enforced:
        why = "every rule that applies has enough left"
    else:
        why = "only rules in shadow apply" if explained.answers else "no rule applies"
    return ExplainResponse(
        allowed=explained.allowed and banned is None,
        passes_after=None if math.isinf(after) else after,
        why=why,
        limit_from="rules",
        answers=[_plain(one) for one in explained.answers],
        trace=explained.trace.as_json(),
        admitted_by_region=await _admitted(node, explained.trace.charges),
        rights=await _rights(node, explained.trace.charges),
    )


async def _admitted(node: Node, charges: tuple[Charge, ...]) -> dict[str, dict[str, int]] | None:
    """How much of each count came from which region."""
    if node.exchange is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for charge in charges:
        if charge.rule is not None and any(one.consistency == "merge" for one in charge.limits):
            found[charge.rule] = await node.exchange.admitted_of(charge.key, charge.rule)
    return found or None


async def _rights(node: Node, charges: tuple[Charge, ...]) -> dict[str, KeyRightsResponse] | None:
    """By rule; `None` if no rule is kept by escrow."""
    found: dict[str, KeyRightsResponse] = {}
    for charge in charges:
        for limit in charge.limits:
            rights = await rights_in(node, limit, charge.rule, charge.key)
            if rights is not None and charge.rule is not None:
                found[charge.rule] = rights
    return found or None


async def rights_in(
    node: Node, limit: Limit, rule: str | None, key: str
) -> KeyRightsResponse | None:
    """What this region may admit, and where that came from; `None` for limits that are not kept by escrow."""
    rights = None if node.exchange is None else node.exchange.rights
    if rights is None or rule is None or limit.consistency != ESCROW:
        return None
    if not isinstance(limit, FixedWindow):
        return None
    held = await rights.rights_of(limit, rule, key)
    return KeyRightsResponse(**held._asdict(), said=held.in_words())


async def _of_key(node: Node, body: ExplainBody) -> ExplainResponse:
    key = body.key or ""
    require_key(key)
    limit, limit_from = _limit(node, key, body)
    charge = Charge(key, limit, body.cost)
    banned = _ban_on(node, (charge,))
    (decision,) = await node.limiter.engine.decide([Asked((charge.of_kind(ChargeKind.PEEK),))])
    after = decision.retry_after
    if banned is not None:
        after, why = banned.retry_after, _why(node, banned)
    elif decision.never:
        why = f"a cost of {body.cost} is more than the limit ever allows"
    elif decision:
        why = f"{decision.remaining} left, and {body.cost} asked for"
    else:
        left = f"only {decision.remaining}" if decision.remaining else "nothing"
        why = f"{left} left, and {body.cost} asked for"
    return ExplainResponse(
        allowed=bool(decision) and banned is None,
        passes_after=None if math.isinf(after) else after,
        why=why,
        limit=LimitResponse.of(limit),
        limit_from=limit_from,
        answers=[_plain(decision)],
    )


def _ban_on(node: Node, charges: tuple[Charge, ...]) -> Decision | None:
    """The guard's answer if these were taken instead of peeked: a denial if a key is banned."""
    answer = node.key_settings.before(Asked(charges))
    return answer if isinstance(answer, Decision) else None


def _why(node: Node, banned: Decision) -> str:
    return why_banned(node.board.view.bans.get(banned.key), banned.context.reason)


def why_banned(ban: Ban | None, reason: str | None = None) -> str:
    """By whom, until when and why a key is banned; for a ban that has just ended, only the reason is known."""
    by = "" if ban is None else ban.by
    until = "" if ban is None or ban.until_us is None else f" until {moment(ban.until_us)}"
    given = reason or (ban.reason if ban is not None else "")
    return f"banned by {by or 'somebody'}{until}: {given or 'no reason was given'}"


def _limit(
    node: Node, key: str, body: ExplainBody
) -> tuple[Limit, Literal["override", "key", "check", "default"]]:
    """The limit of a check, and where it comes from."""
    view = node.board.view_now()
    own = view.limits.get(key)
    if own is not None:
        return own, "override" if key in view.overrides else "key"
    named = {name: getattr(body, name) for name in ("limit", "window", "algorithm", "burst")}
    limit = named_limit(node, **named)
    return limit, "default" if set(named.values()) == {None} else "check"


def _plain(decision: Decision) -> dict[str, Any]:
    """An answer in the form of the check API."""
    fields: dict[str, Any] = json.loads(encode(answer_of(decision)))
    return fields
