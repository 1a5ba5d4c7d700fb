"""The bodies of the management API. Unknown fields are refused.

Times are ISO 8601 in UTC; lengths of time that are sent are seconds, those that come back say their unit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...algorithms import Concurrency
from ...board.key_settings import MAX_TEXT, KeyOverride
from ...rate import Rate

if TYPE_CHECKING:
    from ...algorithms import Limit

MAX_TTL = 366 * 86_400.0

Reason = Annotated[str, Field(max_length=MAX_TEXT, description="Why, for the audit log.")]
RuleName = Annotated[str, Field(min_length=1, max_length=256, description="A rule's name.")]
Ttl = Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False, description="Seconds.")]


class RequestModel(BaseModel):
    """Something that a caller sends."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """Something that a caller gets."""


class LimitBody(RequestModel):
    """A limit for one key."""

    limit: Annotated[int, Field(ge=0, le=2**53 - 1)]
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    """Seconds; as the default, if nothing is said."""
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    burst: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    reason: Reason = ""

    def rate(self, default_window: float) -> str:
        """The rate that it names, as it is kept."""
        window = default_window if self.window is None else self.window
        return str(Rate(self.limit, window, self.burst))


class OverrideBody(LimitBody):
    """A temporary limit for one key."""

    ttl: Ttl
    rule: RuleName | None = None
    """The rule whose limits it replaces; without one, it is for checks."""


class BanBody(RequestModel):
    """Why a key is banned, and for how long; for ever, if nothing is said."""

    ttl: Ttl | None = None
    reason: Reason = ""


class ResetBody(RequestModel):
    """What is to be forgotten of a key. With neither rule nor window: everything that is found."""

    key: Annotated[str, Field(min_length=1, max_length=8_192)]
    rule: Annotated[str, Field(max_length=256)] | None = None
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    reason: Reason = ""
    cursor: Annotated[str, Field(max_length=65_536)] = ""
    """To look on where an earlier answer has left off."""


class LimitResponse(ResponseModel):
    """A limit, in numbers."""

    limit: int
    window_ms: int
    algorithm: str
    burst: int | None = None

    @classmethod
    def of(cls, limit: Limit) -> LimitResponse:
        """The numbers of a limit."""
        return cls(**_numbers(limit))


class KeyLimitResponse(LimitResponse):
    """What one key may do instead of the default, or instead of a rule's limits."""

    rule: str | None = None
    by: str
    reason: str
    set_at: str
    until: str | None = None

    @classmethod
    def of_entry(cls, entry: KeyOverride) -> KeyLimitResponse:
        """An entry of the board."""
        return cls(
            **_numbers(entry.limit),
            rule=entry.rule,
            by=entry.by,
            reason=entry.reason,
            set_at=moment(entry.set_at_us),
            until=None if entry.until_us is None else moment(entry.until_us),
        )


class Removed(ResponseModel):
    """What was there has been removed."""

    removed: Literal[True] = True


def moment(at_us: int) -> str:
    """An instant as it is shown."""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole_ms(window_us: int) -> int:
    """A window in milliseconds: the finest that a limit of a key or a check can have."""
    return -(-window_us // 1_000)


def _numbers(limit: Limit) -> dict[str, Any]:
    return {
        "limit": limit.limit,
        "window_ms": 0 if isinstance(limit, Concurrency) else whole_ms(limit.window_us),
        "algorithm": limit.name,
        "burst": getattr(limit, "burst", None),
    }
