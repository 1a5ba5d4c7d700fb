"""The bodies of the management API. Unknown fields are refused.

Times are ISO 8601 in UTC; durations in requests are seconds, those in responses have a unit in their name.
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
    """The base of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """The base of response bodies."""


class LimitBody(RequestModel):
    """A limit for one key."""

    limit: Annotated[int, Field(ge=0, le=2**53 - 1)]
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    """Seconds; the default window if not given."""
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    burst: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    reason: Reason = ""

    def rate(self, default_window: float) -> str:
        """The rate in its stored form."""
        window = default_window if self.window is None else self.window
        return str(Rate(self.limit, window, self.burst))


class OverrideBody(LimitBody):
    """A temporary limit for one key."""

    ttl: Ttl
    rule: RuleName | None = None
    """The rule whose limits it replaces; without one, it applies to checks."""


class BanBody(RequestModel):
    """Why a key is banned, and for how long; permanently by default."""

    ttl: Ttl | None = None
    reason: Reason = ""


class ResetBody(RequestModel):
    """What to reset for a key. With neither rule nor window: everything that is found."""

    key: Annotated[str, Field(min_length=1, max_length=8_192)]
    rule: Annotated[str, Field(max_length=256)] | None = None
    algorithm: Annotated[str, Field(max_length=64)] | None = None
    window: Annotated[float, Field(gt=0, le=MAX_TTL, allow_inf_nan=False)] | None = None
    reason: Reason = ""
    cursor: Annotated[str, Field(max_length=65_536)] = ""
    """Continues the search of an earlier answer."""


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
    """A key's limit, instead of the default or of a rule's limits."""

    rule: str | None = None
    by: str
    reason: str
    set_at: str
    until: str | None = None

    @classmethod
    def of_entry(cls, entry: KeyOverride) -> KeyLimitResponse:
        """From an entry of the board."""
        return cls(
            **_numbers(entry.limit),
            rule=entry.rule,
            by=entry.by,
            reason=entry.reason,
            set_at=moment(entry.set_at_us),
            until=None if entry.until_us is None else moment(entry.until_us),
        )


class Removed(ResponseModel):
    """Confirms a removal."""

    removed: Literal[True] = True


def moment(at_us: int) -> str:
    """A time in its displayed form."""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole_ms(window_us: int) -> int:
    """A window in milliseconds: the resolution of per-key limits and checks."""
    return -(-window_us // 1_000)


def _numbers(limit: Limit) -> dict[str, Any]:
    return {
        "limit": limit.limit,
        "window_ms": 0 if isinstance(limit, Concurrency) else whole_ms(limit.window_us),
        "algorithm": limit.name,
        "burst": getattr(limit, "burst", None),
    }
