"""Reservations and slots for asyncio: `held.py` with the same methods."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from . import _flow
from ._drivers import run_async, run_to_completion
from ._spec import stats_of
from .charge import shown
from .engines.base import AsyncEngine
from .errors import HeadgateError, may_have_happened
from .held import NOT_RELEASED, NOT_SETTLED, SLOT_TTL, ReservationBase, SlotBase, SlotsSpec

if TYPE_CHECKING:
    import logging
    from typing import Self

    from ._spec import Stats
    from .charge import ChargeSet
    from .decision import Decision


class AsyncReservation(ReservationBase[AsyncEngine]):
    """Costs that are charged now and settled later. See `Reservation`."""

    async def acquire(self) -> Self:
        """Charge the estimate, waiting for it if the mode is blocking.

        A task that is cancelled in the middle gives back what may have been charged.
        """
        request = self._begin()
        try:
            steps = _flow.acquire(request, self._timeout, self._engine.clock.now_us)
            self.decision = await run_async(steps, self._engine, self._log)
        except BaseException as error:
            if may_have_happened(error):
                await run_to_completion(self._withdraw(request))
            raise
        return self

    async def settle(self, *actual: int) -> bool:
        """Settle the real cost. See `Reservation.settle`."""
        with self._settling(actual) as (token, used):
            return await self._engine.settle(token, used)

    async def _withdraw(self, request: ChargeSet) -> None:
        try:
            await self._engine.withdraw(request)
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, self._shown, error)

    async def _settle_on_leaving(self, *, failed: bool) -> None:
        try:
            await self.settle(*self._costs_on_leaving(failed=failed))
        except HeadgateError as error:
            self._log.warning(NOT_SETTLED, self._shown, error)

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_to_settle:
            await run_to_completion(self._settle_on_leaving(failed=kind is not None))


class AsyncSlots:
    """A limit on how many can hold a key at the same time. See `Slots`."""

    def __init__(self, engine: AsyncEngine, key: str, limit: int, logger: logging.Logger) -> None:
        self._engine = engine
        self._spec = SlotsSpec(key, limit)
        self._log = logger

    def slot(self, *, ttl: float = SLOT_TTL, timeout: float | None = 0, cost: int = 1) -> AsyncSlot:
        """A slot to hold with `async with`. Raises `RateLimitExceeded` when none is free in time."""
        return AsyncSlot(self._engine, self._spec.request(cost, ttl), timeout, self._log)

    async def check(self) -> Decision:
        """Say whether a slot is free."""
        return (await self._engine.decide([self._spec.peek()]))[0]

    async def stats(self) -> Stats:
        """How many slots are held and free."""
        limit = self._spec.limit
        return stats_of(limit, await self._engine.usage(self._spec.key, limit))

    async def reset(self) -> None:
        """Free all slots, no matter who holds them."""
        await self._engine.reset(self._spec.key, self._spec.limit)


class AsyncSlot(SlotBase[AsyncEngine]):
    """A slot, held inside an `async with` block, or from `acquire` to `release`, and renewed until then."""

    def __init__(
        self,
        engine: AsyncEngine,
        request: ChargeSet,
        timeout: float | None,
        logger: logging.Logger,
    ) -> None:
        super().__init__(engine, request, timeout, logger)
        self._renewal: asyncio.Task[None] | None = None

    async def acquire(self) -> Self:
        """Hold a slot, renewed until it is released. Raises `RateLimitExceeded` when none is free in time."""
        user = secrets.token_hex(16)
        try:
            request = self._begin(user)
            steps = _flow.hold(request, self._timeout, self._engine.clock.now_us)
            await run_async(steps, self._engine, self._log)
        except BaseException as error:
            if may_have_happened(error) and self._user.get("now") == user:
                await run_to_completion(self._release_once(user))  # The slot may be ours.
            self._end(user)
            raise
        self._granted = user
        self._renewal = asyncio.create_task(self._keep_renewing())
        return self

    async def release(self) -> None:
        """Release the slot; does nothing if it is not held by this process, or not yet."""
        user = self._held_by()
        if user is None:
            return
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        await run_to_completion(self._release_once(user))

    async def _release_once(self, user: str) -> None:
        try:
            await self._engine.release(self.key, self.limit, user)
        except HeadgateError as error:
            self._log.warning(NOT_RELEASED, shown(self.key), error)
        finally:
            self._end(user)  # Unless another release was faster, and it is held again.

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _keep_renewing(self) -> None:
        held = True
        while held:
            await asyncio.sleep(self.renew_every)
            asked = time.monotonic()
            try:
                held = await self._engine.renew(self.key, self.limit, self.token)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one may come in time
                self.not_renewed(error)
            else:
                self._renewed(asked, held=held)
