"""`POST /api/explain`: what would be answered, and why. Takes nothing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from ...charge import Charge, Kind, Request as Asked, require_key
from ...errors import UsageError
from ..incoming import incoming_from
from ..wire import MAX_DESCRIPTORS, Decide, answer_of, encode
from .guard import guarded, needs
from .limits import named_limit
from .models import MAX_TTL, LimitShown, Sent, Shown, moment

if TYPE_CHECKING:
    from ...algorithms import Limit
    from ...board.kept import Ban
    from ...decision import Decision
    from ...rules.request import Request as Incoming
    from ..desk import Desk


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class RequestBody(Sent):
    """What is known of a request; as for `POST /decide`, which takes the same and no more."""

    method: str = "GET"
    path: str = "/"
    ip: str | None = None
    user_id: str | None = None
    api_key: str | None = None
    host: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    descriptors: list[Pair] = Field(default_factory=list, max_length=MAX_DESCRIPTORS)
    cost: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None


class ExplainBody(Sent):
    """Either a request, for the rules, or a key with what a check would name."""

    request: RequestBody | None = None
    key: Annotated[str, Field(min_length=1, max_length=8_192)] | None = None
    limit: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    burst: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    cost: Annotated[int, Field(ge=0, le=2**53 - 1)] = 1


class ExplainShown(Shown):
    """What would be answered now, when it will pass, and why."""

    allowed: bool
    passes_after: float | None
    """Seconds until it passes if nobody else comes; `null` for never."""
    why: str
    limit: LimitShown | None = None
    limit_from: Literal["override", "key", "check", "default", "rules"]
    """Who says which limit holds."""
    answers: list[dict[str, Any]]
    """What every limit that applies would answer."""
    trace: dict[str, Any] | None = None
    """For a request: every rule, and why it applies or not."""


def router(desk: Desk) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["explain"], route_class=guarded(desk))
    incoming = incoming_from(desk.settings.trusted_proxies)

    @made.post("/explain", summary="Say what would be answered, and why", **needs("viewer"))
    async def explain(body: ExplainBody) -> ExplainShown:
        """Takes nothing. With `request`, every rule says whether it applies; with `key`, the limit that holds for it does."""
        if (body.request is None) is (body.key is None):
            raise UsageError("give either request, for the rules, or key, for a check")
        if body.request is not None:
            asked = body.request.model_dump()
            asked["descriptors"] = list(map(tuple, asked["descriptors"]))
            return await _of_request(desk, incoming(Decide(**asked)))
        return await _of_key(desk, body)

    return made


async def _of_request(desk: Desk, request: Incoming) -> ExplainShown:
    explained = await desk.limiter.explain_request(request)
    after = explained.passes_after
    enforced = [one for one in explained.answers if one.source != "shadow"]
    refused = explained.trace.refusal if desk.settings.bad_paths == "deny" else None
    bans = desk.board.view_now().bans
    banned = [one for one in enforced if one.key in bans]
    if banned:
        ban = bans[banned[0].key]
        after, why = _left(desk, ban), f"{banned[0].key} is {_why(ban)}"
    elif refused is not None:
        after, why = math.inf, f"denied by the setting bad_paths: {refused}"
    elif not explained.allowed:
        why = f"denied by {', '.join(sorted({one.rule or '-' for one in enforced if not one}))}"
    elif enforced:
        why = "every rule that applies has enough left"
    else:
        why = "only rules in shadow apply" if explained.answers else "no rule applies"
    return ExplainShown(
        allowed=explained.allowed and refused is None and not banned,
        passes_after=None if math.isinf(after) else after,
        why=why,
        limit_from="rules",
        answers=[_plain(one) for one in explained.answers],
        trace=explained.trace.as_json(),
    )


async def _of_key(desk: Desk, body: ExplainBody) -> ExplainShown:
    key = body.key or ""
    require_key(key)
    limit, limit_from = _limit(desk, key, body)
    ban = desk.board.view_now().bans.get(key)
    charge = Charge(key, limit, body.cost, kind=Kind.PEEK)
    (decision,) = await desk.limiter.engine.decide([Asked((charge,))])
    after = math.inf if decision.never else decision.retry_after
    if ban is not None:
        after, why = _left(desk, ban), _why(ban)
    elif decision.never:
        why = f"a cost of {body.cost} is more than the limit ever gives"
    elif decision:
        why = f"{decision.remaining} left, and {body.cost} asked for"
    else:
        left = f"only {decision.remaining}" if decision.remaining else "nothing"
        why = f"{left} left, and {body.cost} asked for"
    return ExplainShown(
        allowed=bool(decision) and ban is None,
        passes_after=None if math.isinf(after) else after,
        why=why,
        limit=LimitShown.of(limit),
        limit_from=limit_from,
        answers=[_plain(decision)],
    )


def _left(desk: Desk, ban: Ban) -> float:
    """Seconds until a ban is over."""
    if ban.until_us is None:
        return math.inf
    return max(0.0, (ban.until_us - desk.board.now_us()) / 1_000_000)


def _why(ban: Ban) -> str:
    until = "" if ban.until_us is None else f" until {moment(ban.until_us)}"
    return f"banned by {ban.by or 'somebody'}{until}: {ban.reason or 'no reason was given'}"


def _limit(
    desk: Desk, key: str, body: ExplainBody
) -> tuple[Limit, Literal["override", "key", "check", "default"]]:
    """The limit that holds for a check, and who says so."""
    view = desk.board.view_now()
    own = view.limits.get(key)
    if own is not None:
        return own, "override" if key in view.overrides else "key"
    named = {name: getattr(body, name) for name in ("limit", "window", "algorithm", "burst")}
    limit = named_limit(desk, **named)
    return limit, "default" if set(named.values()) == {None} else "check"


def _plain(decision: Decision) -> dict[str, Any]:
    """An answer as the check API would tell it."""
    fields: dict[str, Any] = json.loads(encode(answer_of(decision)))
    return fields
