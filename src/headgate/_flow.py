"""How to wait, without waiting: the logic of `acquire` and `slot`, free of I/O.

A flow is a generator. It yields what it wants done (ask the engine, pause, give something back) and is sent the result;
of the two short drivers in `_drivers.py` one blocks and one awaits, so the logic exists once. An exception that hits
the driver in the middle (a cancelled task, Ctrl-C) is thrown into the flow, which cleans up and re-raises it. If the
clean-up fails, the driver logs that; it never hides the original exception.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .algorithms import TokenBucket
from .algorithms.base import MAX_EXACT
from .charge import ChargeSet
from .charge_kind import ChargeKind
from .errors import RateLimitExceeded, UsageError

if TYPE_CHECKING:
    from .decision import Decision

FOREVER_US: Final = MAX_EXACT // 512
"""Longer than any wait in line, and still exact in the fractions that a bucket counts in."""
MAX_JITTER_US: Final = 50_000
FIRST_POLL_US: Final = 5_000
LAST_POLL_US: Final = 200_000


class Ask(NamedTuple):
    """Put this request to the engine, and send back the decision."""

    request: ChargeSet


class Pause(NamedTuple):
    """Sleep for this long."""

    duration_us: int
    key: str
    """What the caller waits for, for the log."""


class Leave(NamedTuple):
    """Give back the place in line that this decision booked."""

    decision: Decision


Step: TypeAlias = Ask | Pause | Leave
Flow: TypeAlias = Generator[Step, Any, "Decision"]
Now: TypeAlias = Callable[[], int]


def acquire(
    request: ChargeSet, timeout: float | None, now_us: Now, denied: Decision | None = None
) -> Flow:
    """Return with the units, or raise `RateLimitExceeded`. `denied` is the answer if the caller has already asked.

    A token bucket books the next free unit at once, first come, first served. Other algorithms are retried after their
    `retry_after`, plus jitter, so that callers do not all return at the same time. If a denial would count against the
    caller, the flow peeks first. A wait that cannot end before the timeout is not started.
    """
    timeout_us = require_timeout(timeout)
    deadline_us = now_us() + timeout_us
    if timeout_us and _has_line(request):
        decision = yield from _stand_in_line(request, timeout_us)
        if decision:
            return decision
        # A bucket denies only what it does not have in time; but a guard may have asked for another limit, or denied.
        denied = decision
    peek = _peek_of(request) if timeout_us else None
    return (yield from _ask_again(request, peek, deadline_us, now_us, denied))


def hold(request: ChargeSet, timeout: float | None, now_us: Now) -> Flow:
    """Return with slots, or raise `RateLimitExceeded`.

    A slot may be released at any time, so the flow retries soon, then less and less often. If a call fails, slots may
    have been granted anyway: the caller releases them.
    """
    deadline_us = now_us() + require_timeout(timeout)
    poll_us = FIRST_POLL_US
    while True:
        decision: Decision = yield Ask(request)
        left_us = deadline_us - now_us()
        if decision:
            return decision
        if decision.never or left_us <= 0:
            raise RateLimitExceeded(decision)
        pause_us = min(poll_us, decision.retry_after_us, left_us)
        yield Pause(max(1, random.randint(pause_us // 2, pause_us)), decision.key)
        poll_us = min(2 * poll_us, LAST_POLL_US)


def _stand_in_line(request: ChargeSet, timeout_us: int) -> Flow:
    decision: Decision = yield Ask(request._replace(wait_us=timeout_us))
    if not decision or not decision.retry_after_us:
        return decision
    try:
        yield Pause(decision.retry_after_us, decision.key)
    except BaseException:
        yield Leave(decision)
        raise
    return decision.after_waiting()


def _ask_again(
    request: ChargeSet,
    peek: ChargeSet | None,
    deadline_us: int,
    now_us: Now,
    denied: Decision | None,
) -> Flow:
    while True:
        decision: Decision = (yield Ask(peek or request)) if denied is None else denied
        denied = None
        if decision and peek is not None:
            decision = yield Ask(request)
        if decision:
            return decision
        retry_after_us = decision.retry_after_us
        left_us = deadline_us - now_us()
        if decision.never or retry_after_us > left_us:
            raise RateLimitExceeded(decision)
        jitter_us = random.randint(0, min(retry_after_us // 10, MAX_JITTER_US))
        yield Pause(min(retry_after_us + jitter_us, left_us), decision.key)


def _has_line(request: ChargeSet) -> bool:
    """Whether the units can be booked ahead: one bucket, and no reservation to settle later."""
    limits = [limit for charge in request.charges for limit in charge.limits]
    return len(limits) == 1 and isinstance(limits[0], TokenBucket) and not request.reserve_us


def _peek_of(request: ChargeSet) -> ChargeSet | None:
    """The same request as a peek, if a denial would count."""
    if not any(limit.counts_denials for charge in request.charges for limit in charge.limits):
        return None
    charges = [charge.of_kind(ChargeKind.PEEK) for charge in request.charges]
    return ChargeSet(tuple(charges))


def require_timeout(timeout: float | None) -> int:
    """A timeout in microseconds; an invalid one is refused."""
    if timeout is None:
        return FOREVER_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise UsageError(
            f"a timeout must be a number of seconds, at least 0, or None, not {timeout!r}"
        )
    return round(min(timeout, FOREVER_US / 1_000_000) * 1_000_000)
