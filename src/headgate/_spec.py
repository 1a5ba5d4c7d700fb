"""The limits of a key, without the waiting: the part that sync and async share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from . import _flow
from ._flow import require_timeout
from .charge import ChargeSet, ReadyCharge, require_cost, require_key, require_steps
from .charge_kind import ChargeKind
from .errors import UsageError
from .rate import REGIONAL, Consistency, Rate, RateLike, leased, limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .algorithms import Limit
    from .decision import Decision
    from .engines.base import Usage

Mode: TypeAlias = Literal["blocking", "immediate"]
"""Whether `acquire` waits for its units or raises at once."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a key has used: `count` units of `limit` in `window` seconds.

    `remaining` is what could still be taken now. Of a bucket that is at most its burst, which may be more
    than the limit; `count` and `remaining` then add up to the burst.
    """

    count: int
    limit: int
    window: float
    remaining: int
    algorithm: str = field(default="", compare=False)
    """How it is counted."""


class Spec:
    """A key, its limits, and what to do when they are used up."""

    def __init__(self, key: str, limits: tuple[Limit, ...], mode: Mode) -> None:
        require_key(key)
        require_steps(len(limits))
        if mode not in ("blocking", "immediate"):
            raise UsageError(f"mode must be 'blocking' or 'immediate', not {mode!r}")
        self.key = key
        self.limits = limits
        self.mode = mode
        self.peeks = any(limit.counts_denials for limit in limits)
        """Whether waiters peek first, because a denial would count."""

    def __repr__(self) -> str:
        rates = " and ".join(
            f"{limit.limit} in {limit.window_us / 1_000_000:g} s by {limit.name}"
            for limit in self.limits
        )
        return f"{self.key!r}: {rates}, {self.mode}"

    def request(self, cost: int, kind: ChargeKind = ChargeKind.TAKE) -> ChargeSet:
        """All of the key's limits, as one charge: a guard may replace all of them by one limit of the key's own."""
        return ChargeSet((ReadyCharge(self.key, self.limits, require_cost(cost), kind, None),))

    def may_hit(self, timeout: float | None) -> bool:
        """Whether `acquire` may start with a plain hit: not if the caller would wait and a denial counts."""
        if timeout is None:
            return self.mode == "immediate" or not self.peeks
        return not require_timeout(timeout) or not self.peeks

    def flow(
        self,
        request: ChargeSet,
        timeout: float | None,
        now_us: _flow.Now,
        denied: Decision | None = None,
    ) -> _flow.Flow:
        """How to get the units in this mode."""
        return _flow.acquire(request, self.patience(timeout), now_us, denied)

    def patience(self, timeout: float | None) -> float | None:
        """How long to wait: a timeout overrides the mode."""
        return 0 if timeout is None and self.mode == "immediate" else timeout

    def estimate(self, cost: int) -> ChargeSet:
        """The same, whose real cost is settled later."""
        return self.request(cost)

    def stats(self, usages: Sequence[Usage]) -> Stats:
        """The figures of the limit that has the least left."""
        limit, usage = min(
            zip(self.limits, usages, strict=True), key=lambda pair: pair[1].answer[1]
        )
        return stats_of(limit, usage)


def stats_of(limit: Limit, usage: Usage) -> Stats:
    """The figures of one limit."""
    window = limit.window_us / 1_000_000
    return Stats(usage.used, limit.limit, window, usage.answer[1], limit.name)


def resolve_limits(
    rate: RateLike | None,
    limit: int | None,
    window: float | None,
    burst: int | None,
    algorithm: str | None,
    *,
    consistency: Consistency = "exact",
) -> tuple[Limit, ...]:
    """The limits given to a call, as `"4/second"` or as `limit=4, window=1.0`."""
    if consistency not in ("exact", "leased", *REGIONAL):
        raise UsageError(
            "consistency must be 'exact' or 'leased', or 'split', 'merge' or 'escrow' across regions, "
            f"not {consistency!r}",
            "consistency",
        )
    if rate is None:
        if limit is None or window is None:
            raise UsageError(
                "a limit needs a rate such as '4/second', or limit= and window= in seconds"
            )
        rate = Rate(limit, window, burst)
    elif limit is not None or window is not None or burst is not None:
        raise UsageError(f"pass either {rate!r} or limit=, window= and burst=, not both")
    if consistency == "leased":
        return (leased(rate, algorithm),)
    limits = limits_of(rate, algorithm, waiting=True)
    if consistency in REGIONAL:
        return tuple(one.across_regions(consistency) for one in limits)
    return limits
