"""How to wait, without waiting: the logic of `acquire` and `slot`, free of I/O.

A flow is a generator. It yields what it wants done (ask the engine, pause, give something back) and is
sent the result; of the two short drivers in `driver.py` one does it by blocking and one by awaiting, so the
logic exists once. An exception that hits the driver in the middle (a cancelled task, Ctrl-C) is thrown into
the flow, which tidies up and lets it pass. A tidy-up that fails is logged by the driver: it never hides the
exception that caused it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .algorithms import TokenBucket
from .algorithms.base import MAX_EXACT
from .charge import Kind, Request
from .errors import RateLimitExceeded, UsageError, may_have_happened

if TYPE_CHECKING:
    from .decision import Decision

FOREVER_US: Final = MAX_EXACT // 512
"""Longer than any line; in the fractions a bucket counts in it is still an exact number."""
MAX_JITTER_US: Final = 50_000
FIRST_POLL_US: Final = 5_000
LAST_POLL_US: Final = 200_000


class Ask(NamedTuple):
    """Put this request to the engine, and send back the decision."""

    request: Request


class Pause(NamedTuple):
    """Wait so long."""

    duration_us: int
    key: str
    """What for; the log tells."""


class Leave(NamedTuple):
    """Give back the place in line that this decision booked."""

    decision: Decision


class Release(NamedTuple):
    """Let go of slots that this request may have been given."""

    request: Request


Step: TypeAlias = Ask | Pause | Leave | Release
Flow: TypeAlias = Generator[Step, Any, "Decision"]
Now: TypeAlias = Callable[[], int]


def acquire(request: Request, timeout: float | None, now_us: Now) -> Flow:
    """Come back with the units, or raise `RateLimitExceeded`.

    A token bucket books the next free slot at once, first come, first served. Other algorithms are
    asked again when they said a retry could pass, a little later for each caller so that not all of them
    return in the same instant. Where a denial would make things worse, the flow peeks first. A wait that
    cannot end before the timeout is not begun.
    """
    timeout_us = _microseconds(timeout)
    if timeout_us and _has_line(request):
        return (yield from _stand_in_line(request, timeout_us))
    return (yield from _ask_again(request, timeout_us, now_us))


def hold(request: Request, timeout: float | None, now_us: Now) -> Flow:
    """Come back with slots, or raise `RateLimitExceeded`.

    A slot may be let go at any moment, so the flow asks again soon, then less and less often.
    """
    deadline_us = now_us() + _microseconds(timeout)
    poll_us = FIRST_POLL_US
    while True:
        try:
            decision: Decision = yield Ask(request)
        except BaseException as error:
            if may_have_happened(error):
                yield Release(request)  # The answer was lost; the slot may be ours.
            raise
        left_us = deadline_us - now_us()
        if decision:
            return decision
        if decision.never or left_us <= 0:
            raise RateLimitExceeded(decision)
        pause_us = min(poll_us, decision.retry_after_us, left_us)
        yield Pause(max(1, random.randint(pause_us // 2, pause_us)), decision.key)
        poll_us = min(2 * poll_us, LAST_POLL_US)


def _stand_in_line(request: Request, timeout_us: int) -> Flow:
    decision: Decision = yield Ask(request._replace(wait_us=timeout_us))
    if not decision:
        raise RateLimitExceeded(decision)
    if not decision.retry_after_us:
        return decision
    try:
        yield Pause(decision.retry_after_us, decision.key)
    except BaseException:
        yield Leave(decision)
        raise
    return decision.after_waiting()


def _ask_again(request: Request, timeout_us: int, now_us: Now) -> Flow:
    deadline_us = now_us() + timeout_us
    peek = _peek_of(request) if timeout_us else None
    while True:
        decision: Decision = yield Ask(peek or request)
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


def _has_line(request: Request) -> bool:
    """Whether the units can be booked ahead: one bucket, and no reservation to settle later."""
    limits = [limit for charge in request.charges for limit in charge.limits]
    return len(limits) == 1 and isinstance(limits[0], TokenBucket) and not request.reserve_us


def _peek_of(request: Request) -> Request | None:
    """The same question without the denial, where one would count."""
    if not any(limit.counts_denials for charge in request.charges for limit in charge.limits):
        return None
    charges = [charge.of_kind(Kind.PEEK) for charge in request.charges]
    return Request(tuple(charges))


def _microseconds(timeout: float | None) -> int:
    if timeout is None:
        return FOREVER_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise UsageError(f"a timeout is a number of seconds from 0 up, or None, not {timeout!r}")
    return round(min(timeout, FOREVER_US / 1_000_000) * 1_000_000)
