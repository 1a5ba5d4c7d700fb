"""RightsExchange: how a node gets rights from other regions, and gives rights to them.

A node that runs low first reads what other nodes of its region have obtained, then asks the region that had most. This
happens in the background: no hit waits for it. An unanswered ask is sent again under its id, and gets the same answer
if the first one was lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..algorithms import FixedWindow
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import require_key, require_text
from ..errors import EngineError, HeadgateError, UsageError
from .escrow import EscrowAccount, KeyWindow, Look, RecordGrant, RightsAsk, RightsGrant, TakeOff
from .escrow_guard import ESCROW, EscrowGuard, window_of
from .messages import Message, limit_of_words, words_of
from .rights_figures import KeyRights, RightsFigures
from .rights_steps import UNKNOWN
from .taken_back import TakenBack, escrow_shares

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from .escrow import StoreStep
    from .links import RegionClient
    from .model import Regions
    from .rights_figures import RightsHeld
    from .rights_steps import RightsSteps

RIGHTS: Final = "rights"
"""The kind of these messages."""
TAKEN_BACK: Final = "taken_back"
SOON_US: Final = 5_000_000
"""The notice before a change takes effect, so that all nodes have learned of it."""
TRIES: Final = 2
LOOK_EVERY: Final = 1.0
"""Seconds between two reads of the store's clock and epoch."""
PAUSE_US: Final = 20_000
"""The pause between two attempts to get rights for a key."""


class RightsExchange:
    """One node's part in escrow. `clients` connect to the nodes of the other regions."""

    def __init__(
        self, regions: Regions, clients: Mapping[str, RegionClient], store: RightsSteps
    ) -> None:
        self._regions = regions
        self._clients = clients
        self._store = store
        self.account = EscrowAccount(
            regions.here, self._shares_of, UNKNOWN, lambda: secrets.token_hex(8)
        )
        self.guard = EscrowGuard(self.account, self._store, self._look_for_rights)
        self.figures = RightsFigures()
        self.taken_back: dict[str, TakenBack] = {}
        """Regions whose rights an operator has taken back."""
        self._busy: set[Any] = set()
        self._not_before: dict[Any, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._log = logging.getLogger("headgate.regions")

    @property
    def others(self) -> tuple[str, ...]:
        """All regions but this one."""
        return self._regions.others

    async def start(self, engine: Any) -> None:
        """Start in the event loop that decides, before the engine is first used."""
        self._store.open(engine)
        await self._look()
        self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    async def stop(self) -> None:
        """Cancel all tasks, and close the store."""
        tasks = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.aclose()

    async def answer(self, message: Message) -> list[Any]:
        """Answer another region's ask for rights; returns the values of the reply."""
        ask, limit = _read_ask(message, self._regions.here)
        grant, step, done = await self._carry_out(
            self.account.answer(ask, self._store.now_us()), limit
        )
        units, left = (0, 0) if grant is None else (grant.units, grant.left)
        if isinstance(step, TakeOff) and done.allowed:  # A repeated answer takes nothing off.
            if units:
                self.figures.given[ask.asker] += units
                with suppress(EngineError):
                    await self._store.note_given(ask.window, ask.asker, units)
            else:
                self.figures.lose(step.units, self._store.now_us())
        return [self.account.epoch.id.encode(), units, left]

    async def rights_of(self, limit: FixedWindow, rule: str | None, key: str) -> KeyRights:
        """The rights of this region in the current window of a key."""
        window = window_of(limit, rule, key, self._store.now_us())
        received, given = await self._store.moved(window, self._regions.others)
        self.account.set_epoch(self._store.epoch)
        share = self.account.share(window)
        rights = share + sum(received.values())  # From the same read: a grant may come at any time.
        seen = await self._store.do(Look(window, rights), limit)
        left = seen.left if seen.start_us == window.start_us else rights
        admitted = max(0, rights - left - sum(given.values()))
        return KeyRights(limit.limit, share, received, given, admitted, left)

    def held(self) -> RightsHeld:
        """See `EscrowAccount.held`."""
        return self.account.held(self._store.now_us())

    async def take_back(self, region: str, *, undo: bool = False) -> list[str]:
        """Give a dead region's rights to the others, or undo that, shortly; returns regions that were not reached.

        Taking back works without them. Undoing must reach all regions: otherwise rights would be held twice.
        """
        if region not in self._regions.others:
            known = ", ".join(self._regions.others)
            raise UsageError(f"there is no other region {region!r:.60}, only {known}", "region")
        before = self.taken_back.get(region)
        if undo and before is None:
            raise UsageError(f"the rights of {region} were not taken back", "region")
        soon_us = self._store.now_us() + SOON_US
        taken = (
            TakenBack(soon_us) if before is None or not undo else before._replace(until_us=soon_us)
        )
        message = Message(TAKEN_BACK, self._regions.here, self.account.epoch.id, [region, *taken])
        unreached: list[str] = []
        # The region itself comes last: it must not use rights that an unreached region still holds.
        for other in sorted(self._regions.others, key=region.__eq__):
            if undo and unreached:
                unreached.append(other)
                continue
            try:
                await self._clients[other].call(message.pack())
            except HeadgateError as error:
                self._log.warning("could not notify region %s about %s: %s", other, region, error)
                unreached.append(other)
        await self._store.take_back(region, taken)
        self.taken_back = await self._store.taken_back()
        return unreached

    async def receive_taken_back(self, message: Message) -> list[Any]:
        """Process another region's message about rights that were taken back; returns the values of the reply."""
        try:
            region, from_us, until_us = message.content
        except (ValueError, TypeError):
            raise UsageError("this does not say whose rights were taken back") from None
        if region not in self._regions.weights:
            raise UsageError(f"there is no region {region!r:.60}")
        whole = [require_whole("time", one, 0, MAX_EXACT + 1) for one in (from_us, until_us)]
        await self._store.take_back(region, TakenBack(*whole))
        self.taken_back = await self._store.taken_back()
        return [self.account.epoch.id.encode()]

    def _shares_of(self, window: KeyWindow) -> Mapping[str, int]:
        return escrow_shares(window, self._regions.weights, self.taken_back)

    def _look_for_rights(self, limit: FixedWindow, window: KeyWindow, left: int) -> None:
        """Called after each decision: get more rights if few are left."""
        name = window.name
        if name in self._busy or not self.account.is_low(window, left):
            return
        if self._store.now_us() < self._not_before.get(name, 0):
            return
        self._busy.add(name)
        task = asyncio.get_running_loop().create_task(self._obtain(limit, window, left))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obtain(self, limit: FixedWindow, window: KeyWindow, left: int) -> None:
        try:
            known = self.account.rights(window)
            epoch, total = await self._store.granted(window)
            self.account.set_epoch(self._store.epoch)
            self.account.set_recorded_total(window, epoch, total)
            left += self.account.rights(window) - known
            ask = self.account.ask(window, left, self._store.now_us())
            if ask is not None:
                await self._ask(ask, limit)
        except EngineError as error:
            self._log.debug("the store of this region does not answer: %s", error)
        finally:
            self._busy.discard(window.name)
            self._not_before[window.name] = self._store.now_us() + PAUSE_US

    async def _ask(self, ask: RightsAsk, limit: FixedWindow) -> None:
        self.figures.asked[ask.giver] += 1
        packed = _ask_message(ask, limit).pack()
        for _ in range(TRIES):
            try:
                _, units, left = await self._clients[ask.giver].call(packed)
                grant = RightsGrant(ask, int(units), int(left))
            except (HeadgateError, ValueError, TypeError) as error:
                self._log.debug("the region %s gives no rights: %s", ask.giver, error)
                continue
            await self._take_in(grant, limit)
            return
        self.figures.unanswered[ask.giver] += 1
        self.account.unanswered(ask, self._store.now_us())

    async def _take_in(self, grant: RightsGrant, limit: FixedWindow) -> None:
        """Record a grant; retried if need be, because the store counts it once."""
        for left in reversed(range(TRIES)):
            try:
                steps = self.account.take_in(grant, self._store.now_us())
                _, step, total = await self._carry_out(steps, limit)
            except EngineError:
                if not left:
                    self.figures.lose(grant.units, self._store.now_us())
                    raise
                continue
            if isinstance(step, RecordGrant) and total is not None:
                self.figures.received[grant.ask.giver] += grant.units
            else:  # The store has lost its data, and this grant with it.
                self.figures.lose(grant.units, self._store.now_us())
            return

    async def _carry_out(
        self, steps: Generator[StoreStep, Any, Any], limit: FixedWindow
    ) -> tuple[Any, StoreStep | None, Any]:
        """Run the account's steps in the store; returns the outcome, the last step, and its result."""
        self.account.set_epoch(self._store.epoch)
        step: StoreStep | None = None
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value, step, result
            try:
                result = await self._store.do(step, limit)
            except EngineError as error:
                if isinstance(step, TakeOff) and error.indefinite:
                    self.figures.lose(step.units, self._store.now_us())
                raise

    async def _look(self) -> None:
        try:
            await self._store.look()
            self.taken_back = await self._store.taken_back()
        except EngineError as error:
            self._log.debug("the store of this region does not answer: %s", error)
            return
        if self.account.epoch != UNKNOWN and self._store.epoch.id != self.account.epoch.id:
            self._log.warning(
                "the store of this region has lost its counts: it has no rights until the next window"
            )
        self.account.set_epoch(self._store.epoch)
        now_us = self._store.now_us()
        self.account.forget(now_us)
        self._not_before = {
            name: at_us for name, at_us in self._not_before.items() if at_us > now_us
        }

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self._look()


def _ask_message(ask: RightsAsk, limit: FixedWindow) -> Message:
    window = ask.window
    content = [
        ask.id, ask.giver, list(words_of(limit)), window.rule, window.key, window.start_us, ask.left,
    ]  # fmt: skip
    return Message(RIGHTS, ask.asker, ask.epoch, content)


def _read_ask(message: Message, here: str) -> tuple[RightsAsk, FixedWindow]:
    """The inverse of `_ask_message`."""
    try:
        id_, giver, words, rule, key, start, left = message.content
        limit = limit_of_words(tuple(words))
    except (ValueError, TypeError) as error:
        if isinstance(error, HeadgateError):
            raise
        raise UsageError("this is no ask for rights") from None
    if not isinstance(limit, FixedWindow) or limit.consistency != ESCROW:
        raise UsageError(f"{limit!r:.80} is not kept by escrow")
    if giver != here:
        raise UsageError(f"{giver!r:.60} was asked for rights, and this is {here}")
    start_us, end_us = limit.bounds_us(require_whole("start", start, 0, MAX_EXACT))
    window = KeyWindow(
        None if rule is None else require_text("rule", rule),
        require_key(key),
        limit.identity,
        limit.limit,
        start_us,
        end_us,
    )
    asked = RightsAsk(
        require_text("ask", id_),
        message.sender,
        message.epoch,
        giver,
        window,
        require_whole("left", left, 0, MAX_EXACT),
    )
    return asked, limit
