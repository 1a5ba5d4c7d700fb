"""Bodies: the requests and answers of the check API. `json_reading` parses them.

A field that is missing in a body must also be missing when the body is encoded again (see `json_reading`): it is
`UNSET`, or omitted as a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from ...algorithms.base import MAX_EXACT
from ...decision import ENGINE, NO_LIMIT, Decision
from ..front import SHORT_KEY, Check
from .problems import BAD_VALUE, ProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engines.base import Run

MAX_BATCH: Final = 1_000
MAX_DESCRIPTORS: Final = 32
MAX_SHOWN: Final = 256


class CheckBody(Check, gc=False):
    """The body of `POST /check`."""


class ReserveBody(Check, gc=False):
    """The body of `POST /reserve`."""

    ttl: int | float | UnsetType = UNSET


class SettleBody(msgspec.Struct, gc=False):
    """The body of `POST /settle`."""

    token: str
    actual: int


class AcquireBody(msgspec.Struct, gc=False, omit_defaults=True):
    """The body of `POST /acquire`."""

    key: str
    limit: int
    cost: int = 1
    ttl: int | float = 30
    token: str | UnsetType = UNSET


class ReleaseBody(msgspec.Struct, gc=False):
    """The body of `POST /release`."""

    key: str
    token: str


class PlainCheckBody(CheckBody, gc=False):
    """A check whose key and cost are certainly valid; other checks may be valid, too."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=SHORT_KEY)]
    cost: Annotated[int, msgspec.Meta(ge=0, le=MAX_EXACT)] | UnsetType = UNSET


class BatchBody(msgspec.Struct, gc=False):
    """The body of `POST /check/batch`, if all checks are plain."""

    checks: list[PlainCheckBody]


class RawBatchBody(msgspec.Struct, gc=False):
    """The same, if some are not."""

    checks: list[msgspec.Raw]


class DecideBody(msgspec.Struct, gc=False, omit_defaults=True):
    """The body of `POST /decide`: the caller's description of a request."""

    method: str = "GET"
    path: str = "/"
    ip: str | None = None
    user_id: str | None = None
    api_key: str | None = None
    host: str | None = None
    headers: dict[str, str] = {}
    descriptors: list[tuple[str, str]] = []
    cost: int | None = None


class PlainAnswer(msgspec.Struct, gc=False, omit_defaults=True):
    """The JSON form of an ordinary decision."""

    key: str
    allowed: bool
    limit: int | None
    remaining: int | None
    """`null`, like `limit`, if no rule limits the request."""
    algorithm: str
    retry_after: float | None
    """Seconds; `null` for never."""
    reset_after: float
    backoff_level: int
    source: str


class Answer(PlainAnswer, gc=False, omit_defaults=True):
    """The JSON form of any decision."""

    rule: str | None = None
    never: bool = False
    degraded: bool = False
    token: str | None = None
    reason: str | None = None
    rules: tuple[PlainAnswer, ...] = ()


encode = msgspec.json.Encoder().encode


def answer_of(decision: Decision) -> PlainAnswer:
    """The JSON form of a decision."""
    limit, context = decision.limited_by, decision.context
    allowed, remaining, retry_us, reset_us, level = decision.answer
    usual = context is ENGINE and not decision.several
    if usual and retry_us >= 0:
        return PlainAnswer(
            decision.key,
            allowed,
            limit.limit,
            remaining,
            limit.decider,
            retry_us / 1_000_000,
            reset_us / 1_000_000,
            level,
            "engine",
        )
    limited = limit is not NO_LIMIT
    return Answer(
        decision.key,
        allowed,
        limit.limit if limited else None,
        remaining if limited else None,
        limit.decider,
        retry_us / 1_000_000 if retry_us >= 0 else None,
        reset_us / 1_000_000,
        level,
        context.source,
        rule=context.rule,
        never=retry_us < 0,
        degraded=context.degraded,
        token=context.token,
        reason=context.reason,
        rules=tuple(map(answer_of, decision.several)),
    )


def answers_of(run: Run) -> list[PlainAnswer]:
    """The JSON form of decisions that have most in common."""
    keys, limit, answers, context, _ = run
    if context is not ENGINE:
        return list(map(answer_of, run.decisions()))
    units, algorithm = limit.limit, limit.decider
    return [
        PlainAnswer(
            key,
            allowed,
            units,
            remaining,
            algorithm,
            retry_us / 1_000_000,
            reset_us / 1_000_000,
            level,
            "engine",
        )
        if retry_us >= 0
        else answer_of(
            Decision(key, limit, (allowed, remaining, retry_us, reset_us, level), context)
        )
        for key, (allowed, remaining, retry_us, reset_us, level) in zip(keys, answers, strict=True)
    ]


def require_few(descriptors: Sequence[object]) -> None:
    """Refuse more descriptors than a request may have."""
    if len(descriptors) > MAX_DESCRIPTORS:
        raise ProblemError(
            BAD_VALUE,
            f"a request may have at most {MAX_DESCRIPTORS} descriptors, not {len(descriptors)}",
            pointer="#/descriptors",
        )


def shown(text: str) -> str:
    """A text from outside, shortened for a message."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")
