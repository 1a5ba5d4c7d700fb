"""Budgets for calls to third-party APIs: what the HTTP clients' integrations share.

A call is counted under the host it goes to (or what `key` says), waits for its turn, and is sent. What the other side
says about its limits is kept in the engine as slots that expire by themselves (`learned:` and the key), so that every
process on that engine pauses as well, and none is told twice.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import uuid4

from ..aio import AsyncLimiter
from ..algorithms import Concurrency
from ..algorithms.base import MAX_MEMBERS
from ..charge import Charge, ChargeSet
from ..charge_kind import ChargeKind
from ..errors import RateLimitExceeded, UsageError
from ..limiter import Limiter
from ..rate import limits_of
from ._learned_pauses import pause_s
from ._shared import key_of, log, open_limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..decision import Decision
    from ..rate import RateLike

L = TypeVar("L", Limiter, AsyncLimiter)
MIN_PAUSE_S: Final = 0.05
MAX_KNOWN: Final = 10_000


class Call:
    """One call: the key that it is counted under, and its rate."""

    __slots__ = ("key", "rate")

    def __init__(self, key: str, rate: RateLike | None) -> None:
        self.key = key
        self.rate = rate


class ClientBudgets(Generic[L]):
    """Which budget a call has; waiting is the subclass's."""

    def __init__(
        self,
        limiter_class: type[Any],
        rate: RateLike | None,
        *,
        rates: Mapping[str, RateLike] | None,
        key: Callable[[Any], str | None] | None,
        limiter: L | str | None,
        max_wait: float | None,
    ) -> None:
        if rate is None and not rates:
            raise UsageError("no budget: pass rate='4/second', or rates={host: rate}")
        for one in (*(rates or {}).values(), *(() if rate is None else (rate,))):
            limits_of(one)  # What is wrong with a rate is told now.
        if max_wait is not None and (isinstance(max_wait, bool) or not max_wait >= 0):
            raise UsageError(f"max_wait must be a number of seconds, not {max_wait!r}")
        self.limiter: L
        self.limiter, self.owned = open_limiter(limiter_class, limiter)
        self._rate = rate
        self._rates = {host.lower(): one for host, one in (rates or {}).items()}
        self._key = key
        self._max_wait = max_wait
        self._limits: dict[tuple[str, Any], Any] = {}

    def call(self, request: Any, host: str) -> Call:
        """The budget of a request to a host."""
        host = host.lower()
        said = None if self._key is None else self._key(request)
        name = host if said is None else said
        return Call(key_of(name, "api"), self._rates.get(host, self._rate))

    def limit(self, call: Call) -> Any:
        """The limit of a call, made once."""
        known = self._limits.get((call.key, call.rate))
        if known is None:
            if len(self._limits) >= MAX_KNOWN:
                self._limits.clear()
            known = self._limits[call.key, call.rate] = self.limiter.limit(call.key, call.rate)
        return known

    def pause_left(self, decision: Decision, began: float) -> float:
        """How long a learned pause lasts still; raises if that is longer than one wants to wait."""
        if decision.allowed:
            return 0.0
        left = max(MIN_PAUSE_S, decision.retry_after)
        if self._max_wait is not None and time.monotonic() - began + left > self._max_wait:
            raise RateLimitExceeded(decision)
        return left

    def wait_left(self, began: float) -> float | None:
        """What is left of the longest wait."""
        if self._max_wait is None:
            return None
        return max(0.0, self._max_wait - (time.monotonic() - began))


def _question(call: Call) -> ChargeSet:
    """Whether a pause was learned: the one slot is free once every pause is over."""
    return ChargeSet((Charge(f"learned:{call.key}", Concurrency(1), kind=ChargeKind.PEEK),))


def _pause(call: Call, seconds: float) -> ChargeSet:
    """Hold a slot for that long. It is not renewed, so it expires, and a shorter pause never ends a longer one."""
    slot = Concurrency(MAX_MEMBERS, round(seconds * 1_000_000))
    return ChargeSet((Charge(f"learned:{call.key}", slot),), token=uuid4().hex)


def _is_longer(seconds: float, known: Decision) -> bool:
    """Whether a pause is news."""
    return known.allowed or seconds > known.retry_after


class Budgets(ClientBudgets[Limiter]):
    """Budgets for clients that block."""

    def wait(self, call: Call) -> None:
        """Wait for a call's turn."""
        began = time.monotonic()
        while True:
            while left := self.pause_left(self._ask(call), began):
                time.sleep(left)
            if call.rate is None:
                return
            asked = time.monotonic()
            self.limit(call).acquire(timeout=self.wait_left(began))
            # After a wait there may be a pause again: then all take their turn anew when it is over.
            if time.monotonic() - asked < MIN_PAUSE_S or self._ask(call).allowed:
                return

    def pause_if_asked(self, call: Call, status: int, headers: Mapping[str, str]) -> None:
        """Pause, and let everybody pause, if a response asks for it."""
        seconds = pause_s(status, headers, time.time())
        if seconds >= MIN_PAUSE_S and _is_longer(seconds, self._ask(call)):
            log.info("%s asks for a pause of %.1f s", call.key, seconds)
            self.limiter.engine.decide([_pause(call, seconds)])

    def _ask(self, call: Call) -> Decision:
        return self.limiter.engine.decide([_question(call)])[0]


class AsyncBudgets(ClientBudgets[AsyncLimiter]):
    """The same, awaited."""

    async def wait(self, call: Call) -> None:
        """Wait for a call's turn."""
        began = time.monotonic()
        while True:
            while left := self.pause_left(await self._ask(call), began):  # noqa: ASYNC110 - others end a pause
                await asyncio.sleep(left)
            if call.rate is None:
                return
            asked = time.monotonic()
            await self.limit(call).acquire(timeout=self.wait_left(began))
            # After a wait there may be a pause again: then all take their turn anew when it is over.
            if time.monotonic() - asked < MIN_PAUSE_S or (await self._ask(call)).allowed:
                return

    async def pause_if_asked(self, call: Call, status: int, headers: Mapping[str, str]) -> None:
        """Pause, and let everybody pause, if a response asks for it."""
        seconds = pause_s(status, headers, time.time())
        if seconds >= MIN_PAUSE_S and _is_longer(seconds, await self._ask(call)):
            log.info("%s asks for a pause of %.1f s", call.key, seconds)
            await self.limiter.engine.decide([_pause(call, seconds)])

    async def _ask(self, call: Call) -> Decision:
        return (await self.limiter.engine.decide([_question(call)]))[0]
