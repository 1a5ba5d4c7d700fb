"""What a key's limit is, apart from who waits for it: the part that sync and async share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from . import flow
from .charge import Charge, Kind, Request, require_key, require_steps
from .errors import UsageError
from .rate import Rate, RateLike, limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .algorithms import Limit
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


class Spec:
    """A key, its limits, and what to do when they are used up."""

    def __init__(self, key: str, limits: tuple[Limit, ...], mode: Mode) -> None:
        require_key(key)
        require_steps(len(limits))
        if mode not in ("blocking", "immediate"):
            raise UsageError(f"mode is 'blocking' or 'immediate', not {mode!r}")
        self.key = key
        self.limits = limits
        self.mode = mode

    def request(self, cost: int, kind: Kind = Kind.TAKE) -> Request:
        """All of the key's limits, together."""
        return Request(tuple(Charge(self.key, limit, cost, kind=kind) for limit in self.limits))

    def flow(self, request: Request, timeout: float | None, now_us: flow.Now) -> flow.Flow:
        """How to get the units in this mode: a timeout that is given wins over the mode."""
        if timeout is None and self.mode == "immediate":
            timeout = 0
        return flow.acquire(request, timeout, now_us)

    def stats(self, usages: Sequence[Usage]) -> Stats:
        """The figures of the limit that has the least left."""
        limit, usage = min(
            zip(self.limits, usages, strict=True), key=lambda pair: pair[1].answer[1]
        )
        return Stats(usage.used, limit.limit, limit.window_us / 1_000_000, usage.answer[1])


def resolve_limits(
    rate: RateLike | None,
    limit: int | None,
    window: float | None,
    burst: int | None,
    algorithm: str | None,
) -> tuple[Limit, ...]:
    """The limits that a call names, as `"4/second"` or as `limit=4, window=1.0`."""
    if rate is not None:
        if limit is not None or window is not None or burst is not None:
            raise UsageError(f"say either {rate!r} or limit=, window= and burst=, not both")
        return limits_of(rate, algorithm)
    if limit is None or window is None:
        raise UsageError(
            "a limit needs a rate such as '4/second', or limit= and window= in seconds"
        )
    return limits_of(Rate(limit, window, burst), algorithm)
