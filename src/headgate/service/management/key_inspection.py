"""`GET /api/keys/{key}`: everything about one key, what the answer would be now, and why.

Takes nothing. An adaptive limit is evaluated three times, once per candidate: they share one state, so their answers
show what a switch would change, and what not.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from ...adaptive import OVERALL
from ...algorithms import NEVER, Adaptive
from ...algorithms.adaptive import CANDIDATES
from ...charge import require_key
from ...engines.memory import MemoryEngine
from ..telemetry.denied_keys import limit_in_words
from .access import guarded, needs
from .blocks import BanResponse
from .explain import KeyRightsResponse, rights_in, why_banned
from .key_states import limits_for
from .keys import Key  # noqa: TC001 - FastAPI reads it
from .models import KeyLimitResponse, ResponseModel, moment

if TYPE_CHECKING:
    from ...algorithms import Limit
    from ...board import Ban
    from ...board.key_settings import KeyOverride
    from ...engines.base import Usage
    from ..node import Node
    from .key_states import States

Source = Literal["default", "check", "key", "override", "rule"]
US: Final = 1_000_000
SAID: Final = {
    "default": "the default",
    "check": "the limit in checks",
    "key": "its own limit",
    "override": "the override",
}


class CandidateResponse(ResponseModel):
    """What one algorithm of an adaptive limit would answer."""

    algorithm: str
    decides: bool
    used: int
    remaining: int
    allowed: bool
    passes_after: float | None


class LimitStateResponse(ResponseModel):
    """What a key has used of one limit, and the answer it would get."""

    model_config = ConfigDict(populate_by_name=True)

    rule: str | None
    name: str
    """The rule; of a limit without one, who says that it holds, in words."""
    limit: int
    window: float
    burst: int | None
    said: str
    """The limit in words."""
    source: Source = Field(serialization_alias="from")
    """Where it comes from."""
    algorithm: str
    decides: str
    """The algorithm that answers; for an adaptive limit, the one that is chosen now."""
    in_use: bool
    used: int
    remaining: int
    allowed: bool
    passes_after: float | None
    """Seconds; `null` for never."""
    reset_after: float
    backoff_level: int
    enforced: bool
    """False for a shadow rule, which never denies."""
    candidates: list[CandidateResponse] | None
    rights: KeyRightsResponse | None
    """Of a limit that is kept by escrow: what this region may admit. The rest of the answer is about that."""


class SettingResponse(ResponseModel):
    """Something that a person has set for a key."""

    what: str
    """In words."""
    by: str
    until: str | None
    reason: str
    undo: Literal["bans", "overrides"] | None
    """Where it can be removed; `null` for a limit that the key has of its own."""
    rule: str | None


class KeyResponse(ResponseModel):
    """Everything that is known about a key."""

    key: str
    now: float
    allowed: bool
    passes_after: float | None
    why: str
    remaining: int | None
    """What is left of the limit that has least; `null` if none is enforced."""
    limits: list[LimitStateResponse]
    ban: BanResponse | None
    override: KeyLimitResponse | None
    rule_overrides: list[KeyLimitResponse]
    """Overrides of single rules for the key."""
    own_limit: KeyLimitResponse | None
    settings: list[SettingResponse]
    """The ban, the overrides and the limit of its own, in words."""
    complete: bool
    """False if checks may have named other limits, which would have to be searched for among all keys."""


class Holding(NamedTuple):
    """A limit that applies to a key, and where it comes from."""

    rule: str | None
    limit: Limit
    source: Source
    enforced: bool = True


def router(node: Node) -> APIRouter:
    """The routes of this topic."""
    made = APIRouter(prefix="/api", tags=["keys"], route_class=guarded(node))

    @made.get("/keys/{key:key}", summary="Inspect a key", **needs("viewer"))
    async def inspect(key: Key) -> KeyResponse:
        """What the key has used of each limit, the answer it would get now, and why.

        Unused limits are left out, except for the limit of a check that names none.
        """
        require_key(key)
        shown = [await _state(node, key, holding) for holding in _holding(node, key)]
        limits = [
            one for one in shown if one.in_use or one.rule is None or one.source == "override"
        ]
        return _response(node, key, limits)

    return made


def _holding(node: Node, key: str) -> list[Holding]:
    """The limits in force for a check without a limit, and those by which rules count the key."""
    view = node.board.view_now()
    own = view.limits.get(key)
    if own is None:
        found = [Holding(None, node.default_limit, "default")]
    else:
        found = [Holding(None, own, "override" if key in view.overrides else "key")]
    for rule in () if node.rules is None else node.rules.rules:
        source: Source = "override" if key in view.rule_limits.get(rule.rule_id, {}) else "rule"
        found += [
            Holding(rule.rule_id, limit, source, not rule.shadow)
            for limit in limits_for(node, rule, key)
        ]
    known = {(one.rule, one.limit.identity) for one in found}
    named = [
        limit
        for rule, limit in _states(node, key)
        if rule is None and (None, limit.identity) not in known
    ]
    # A limit that denies the key is shown, even if it shares its count with another.
    listed = {_numbers(limit) for limit in [*(one.limit for one in found if not one.rule), *named]}
    named += [
        limit
        for rule, limit in node.recorder.blocking(key)
        if rule is None and _numbers(limit) not in listed
    ]
    return found + [Holding(None, limit, "check") for limit in named]


def _numbers(limit: Limit) -> tuple[str, int, int | None]:
    return limit.identity, limit.limit, getattr(limit, "burst", None)


def _states(node: Node, key: str) -> States:
    """All states of a key, if they can be found without scanning all keys."""
    engine = node.limiter.engine.unguarded
    if isinstance(engine, MemoryEngine):
        return engine.scoped(node.settings.namespace).states_of(key)
    return []


async def _state(node: Node, key: str, holding: Holding) -> LimitStateResponse:
    rule, limit, source, enforced = holding
    candidates = None
    decides = limit.name
    if isinstance(limit, Adaptive):
        decides = node.control.deciding(rule or OVERALL).algorithm
        asked = {
            name: Adaptive(limit.limit, limit.window_us, limit.burst, name) for name in CANDIDATES
        }
        usages = {name: await _usage(node, key, one, rule) for name, one in asked.items()}
        candidates = [
            _candidate(name, one, decides=name == decides) for name, one in usages.items()
        ]
        usage = usages[decides]
    else:
        usage = await _usage(node, key, limit, rule)
    allowed, remaining, retry_us, reset_us, level = usage.answer
    used = usage.used
    rights = await rights_in(node, limit, rule, key)
    if rights is not None:
        allowed, remaining, used = rights.left > 0, rights.left, rights.admitted
        retry_us = 0 if allowed else reset_us
    return LimitStateResponse(
        rule=rule,
        name=rule or SAID[source],
        limit=limit.limit,
        window=limit.window_us / US,
        burst=getattr(limit, "burst", None),
        said=limit_in_words(limit),
        source=source,
        algorithm=limit.name,
        decides=decides,
        in_use=usage.in_use,
        used=used,
        remaining=remaining,
        allowed=allowed,
        passes_after=_after(retry_us),
        reset_after=reset_us / US,
        backoff_level=level,
        enforced=enforced,
        candidates=candidates,
        rights=rights,
    )


async def _usage(node: Node, key: str, limit: Limit, rule: str | None) -> Usage:
    """Read behind the guards: they would replace each candidate with the chosen algorithm."""
    engine: Any = node.limiter.engine.unguarded.scoped(node.settings.namespace)
    usage = engine.usage(key, limit, rule)
    found: Usage = await usage if isawaitable(usage) else usage
    return found


def _candidate(name: str, usage: Usage, *, decides: bool) -> CandidateResponse:
    allowed, remaining, retry_us, _, _ = usage.answer
    return CandidateResponse(
        algorithm=name,
        decides=decides,
        used=usage.used,
        remaining=remaining,
        allowed=allowed,
        passes_after=_after(retry_us),
    )


def _response(node: Node, key: str, limits: list[LimitStateResponse]) -> KeyResponse:
    """The overall answer: the ban, or else the limit that denies for longest."""
    view = node.board.view_now()
    ban = view.bans.get(key)
    enforced = [one for one in limits if one.enforced]
    denying = [one for one in enforced if not one.allowed]
    after: float | None = 0.0
    if ban is not None:
        after = (
            None if ban.until_us is None else max(0.0, (ban.until_us - node.board.now_us()) / US)
        )
        why = why_banned(ban)
    elif denying:
        worst = max(
            denying, key=lambda one: float("inf") if one.passes_after is None else one.passes_after
        )
        after = worst.passes_after
        given = worst.rights.said if worst.rights is not None else f"{worst.used} are used"
        why = f"{worst.name} allows {worst.said}, and {given}"
    else:
        least = min(enforced, key=lambda one: one.remaining)
        why = f"{least.remaining} left of {least.said}" + (
            f", by {least.rule}" if least.rule else ""
        )
    override, own = view.overrides.get(key), view.key_limits.get(key)
    of_rules = [one[key] for _, one in sorted(view.rule_overrides.items()) if key in one]
    settings = [] if ban is None else [_setting("Banned", ban, "bans")]
    if override is not None:
        settings.append(_setting(limit_in_words(override.limit), override, "overrides"))
    for one in of_rules:
        what = f"{limit_in_words(one.limit)} of {one.rule}"
        settings.append(_setting(what, one, "overrides", one.rule))
    if own is not None:
        settings.append(_setting(f"Its own limit, {limit_in_words(own.limit)},", own, None))
    return KeyResponse(
        key=key,
        now=node.board.now_us() / US,
        allowed=ban is None and not denying,
        passes_after=after,
        why=why,
        remaining=min((one.remaining for one in enforced), default=None),
        limits=limits,
        ban=None if ban is None else BanResponse.of(ban),
        override=None if override is None else KeyLimitResponse.of_entry(override),
        rule_overrides=[KeyLimitResponse.of_entry(one) for one in of_rules],
        own_limit=None if own is None else KeyLimitResponse.of_entry(own),
        settings=settings,
        complete=isinstance(node.limiter.engine.unguarded, MemoryEngine),
    )


def _setting(
    what: str,
    entry: Ban | KeyOverride,
    undo: Literal["bans", "overrides"] | None,
    rule: str | None = None,
) -> SettingResponse:
    until = None if entry.until_us is None else moment(entry.until_us)
    return SettingResponse(
        what=what,
        by=entry.by or "an operator",
        until=until,
        reason=entry.reason,
        undo=undo,
        rule=rule,
    )


def _after(retry_us: int) -> float | None:
    return None if retry_us == NEVER else retry_us / US
