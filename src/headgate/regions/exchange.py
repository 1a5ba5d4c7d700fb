"""RegionExchange: a node's part in what regions tell each other.

Every interval it puts what it has admitted itself where all nodes of the region see it (`store.py`), and hears there
how the links to other regions are. If it is the shipper of one, it tells that region. What another region says to any
node is taken in by `receive`: kept, and charged to this region's engine by force.

It is noted that a growth is charged before it is: a node that dies in between leaves out one message's growth, and
none is charged twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..charge import ChargeSet, PastCharge, ReadyCharge
from ..charge_kind import ChargeKind
from ..engines.base import Awaited
from ..errors import EngineError, HeadgateError, UsageError
from .counters import Actor, Growth, OwnCounts, charges, foreign, is_early
from .escrow_exchange import RIGHTS, TAKEN_BACK, RightsExchange
from .links import RegionClient
from .merge_guard import CutOffGuard, MergeGuard
from .messages import COUNTERS, Message, Reply, read_counters
from .shipper import MOST, Shipper
from .store import LinkState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ..engines.base import AsyncEngine
    from ..guards.base import Guard
    from .counters import Charged, CounterTotal
    from .rights_steps import RightsSteps
    from .settings import RegionsSettings
    from .store import RegionState, RegionStore

CUT_US: Final = 4_000_000
"""A region that was not heard of for so long, or could not be told anything, is cut off."""
AT_ONCE: Final = 128
"""Charges that are made in one call."""
MAX_OWN: Final = 100_000
"""Counters of its own that a node remembers; with more of them it goes on as another actor, which begins at zero."""
MAX_OWED: Final = 100_000
"""Charges that wait for a store that does not answer."""


class RegionLink(NamedTuple):
    """The link to another region, as this one sees it."""

    region: str
    up: bool
    """Whether both have heard of each other lately."""
    lag_seconds: float | None
    """How old what the other region knows of this one is; `None` if it knows nothing."""
    heard_seconds: float | None
    """How long ago it was heard of; `None` for never."""
    shipper: str
    """The node that tells it."""
    problem: str | None
    """Why it cannot be told, if this node is the one that tried."""


class RegionExchange:
    """What one node does for its region. `start` it in the loop that it will live in."""

    def __init__(
        self,
        settings: RegionsSettings,
        store: RegionStore,
        *,
        now_us: Callable[[], int],
        keeps_share: Callable[[str | None], bool],
        node: str,
        rights: RightsSteps | None = None,
        guards: tuple[MergeGuard, CutOffGuard] | None = None,
    ) -> None:
        self._regions = settings.regions
        self._store = store
        self._now_us = now_us
        self._admitted, self._cut_off = guards or (
            MergeGuard(now_us),
            CutOffGuard(settings.regions, keeps_share),
        )
        self.guards: tuple[Guard, ...] = (self._admitted, self._cut_off)
        """What goes around the engine of the node, the outermost first."""
        self._interval = settings.interval_us / 1_000_000
        self._cut_us = max(CUT_US, 10 * settings.interval_us)
        self._own = OwnCounts()
        self._begin()
        self._unsynchronized: list[CounterTotal] = []
        """What the store has not been told yet."""
        self.state: RegionState | None = None
        self._owed: dict[Charged, int] = {}
        self.charged_units: dict[str, int] = dict.fromkeys(self._regions.others, 0)
        """Units of other regions that this node has charged, by region."""
        self.lost_units = 0
        """Units that could not be charged, because the store did not answer for too long."""
        self.shippers = [
            Shipper(
                region,
                RegionClient(url),
                store,
                here=self._regions.here,
                node=node,
                interval_us=settings.interval_us,
                state=lambda: self.state,
            )
            for region, url in settings.urls.items()
        ]
        self.handlers: dict[str, Callable[[Message], Awaitable[list[Any]]]] = {
            COUNTERS: self._counters
        }
        """What is done with a message, by its kind; the values of the reply."""
        self.rights: RightsExchange | None = None
        """This node's part in rights, for escrow; `None` where the store cannot keep them."""
        if rights is not None:
            clients = {shipper.region: shipper.link for shipper in self.shippers}
            self.rights = RightsExchange(self._regions, clients, rights)
            self.guards = (*self.guards, self.rights.guard)
            self.handlers[RIGHTS] = self.rights.answer
            self.handlers[TAKEN_BACK] = self.rights.receive_taken_back
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logging.getLogger("headgate.regions")
        self._engine: AsyncEngine | None = None

    async def start(self, engine: AsyncEngine) -> None:
        """Begin. The engine behind all guards is charged what other regions admit: here that is not admitted."""
        behind: Any = engine.unguarded
        self._engine = behind if hasattr(behind, "aclose") else Awaited(behind)
        if self.rights is not None:
            await self.rights.start(behind)
        with suppress(EngineError):
            await self.synchronize()
        self._look()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_synchronizing())]
        self._tasks += [loop.create_task(shipper.run()) for shipper in self.shippers]

    async def stop(self) -> None:
        """Tell a last time, and let go of everything."""
        if self.rights is not None:
            await self.rights.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.synchronize()
            for shipper in self.shippers:
                if shipper.leads:
                    await shipper.step()
        except (
            HeadgateError
        ) as error:  # Other nodes of this region, or the next start, will tell it.
            self._log.warning(
                "the other regions may not know yet what was admitted here: %s", error
            )
        finally:
            for shipper in self.shippers:
                await shipper.link.aclose()
            await self._store.aclose()

    def links(self) -> list[RegionLink]:
        """How the links to the other regions are."""
        state, now_us = self.state, self._now_us()
        problems = {one.region: one.problem for one in self.shippers if one.leads}
        found = []
        for region in self._regions.others:
            known = LinkState() if state is None else state.links.get(region, LinkState())
            told = now_us - known.taken_us
            heard = now_us - known.heard_us
            found.append(
                RegionLink(
                    region,
                    up=max(told, heard) < self._cut_us,
                    lag_seconds=_seconds(told) if known.taken_us else None,
                    heard_seconds=_seconds(heard) if known.heard_us else None,
                    shipper=known.shipper,
                    problem=problems.get(region),
                )
            )
        return found

    def client_of(self, region: str) -> RegionClient:
        """How to tell a region something."""
        return next(one.link for one in self.shippers if one.region == region)

    @property
    def cut_off(self) -> bool:
        """Whether some region cannot be reached, so that rules which say so go on with their share."""
        return self._cut_off.cut

    def _look(self) -> None:
        self._cut_off.set_reachable(all_regions=all(one.up for one in self.links()))

    async def admitted_of(self, key: str, rule: str | None) -> dict[str, int]:
        """How many units of a key that still count each region has admitted, as far as it is known here."""
        found: dict[str, int] = {}
        for name, actor, total in await self._store.counters_of(key):
            if name.rule == rule:
                left = charges([Growth(name, actor, total)], self._now_us())
                found[actor.region] = found.get(actor.region, 0) + sum(left.values())
        return dict(sorted(found.items()))

    async def receive(self, packed: bytes) -> list[Any]:
        """Take in what another region says; the reply to it."""
        message = Message.unpack(packed)
        if message.sender not in self._regions.others:
            known = ", ".join(self._regions.others)
            raise UsageError(
                f"{self._regions.here} has no other region called {message.sender!r:.60}, only {known}"
            )
        handler = self.handlers.get(message.kind)
        if handler is None:
            raise UsageError(f"nobody here knows messages about {message.kind!r:.60}")
        return await handler(message)

    async def _counters(self, message: Message) -> list[Any]:
        entries = read_counters(message.content)
        now_us = self._now_us()
        due = [one for one in entries if not is_early(one.name, now_us)]
        state, grown = await self._store.merge(due, message.sender)
        self._learn_state(state)
        await self._charge(foreign(grown, self._regions.here, state.epoch))
        return Reply(state.epoch, len(entries) - len(due)).values()

    async def synchronize(self) -> None:
        """Put what this node has admitted where all nodes of the region see it, and hear what they know."""
        state = self.state
        if state is not None:
            grown = self._own.add(self._admitted.take())
            self._unsynchronized += self._own.entries(grown, self._actor(state.epoch))
            if len(self._own) > MAX_OWN:
                self._begin()
        parts = list(_parts(self._unsynchronized, MOST)) or [[]]
        for part in parts:
            merged = await self._store.merge(part)
            self._unsynchronized = self._unsynchronized[len(part) :]
            self._learn_state(merged.state)
            await self._charge(foreign(merged.grown, self._regions.here, merged.state.epoch))
        if self.state is not None:
            self._own.forget(self.state.now_us)
        await self._charge(())

    def _learn_state(self, state: RegionState) -> None:
        before = self.state
        self.state = state
        if before is not None and before.epoch != state.epoch:
            self._log.warning("the store of this region has lost what it knew of the others")
            # Under the old name the store does not know what was admitted, so it is told, and charged.
            self._unsynchronized += self._own.retire(self._actor(before.epoch))
            self._begin()

    def _begin(self) -> None:
        """Count from zero, under another name."""
        self._life = secrets.token_hex(6)
        self._own.clear()

    def _actor(self, epoch: str) -> Actor:
        return Actor(self._regions.here, epoch, self._life)

    async def _charge(self, grown: Sequence[Growth]) -> None:
        """Charge what other regions have admitted, and what could not be charged before."""
        now_us = self._now_us()
        for state, units in charges(grown, now_us).items():
            self._owe(state, units)
        for one in grown:
            counted = self.charged_units.get(one.actor.region, 0)
            self.charged_units[one.actor.region] = counted + one.units
        engine = self._engine
        while self._owed and engine is not None:
            part = dict(islice(self._owed.items(), AT_ONCE))
            for state in part:
                del self._owed[state]
            try:
                await engine.decide([_forced(state, units) for state, units in part.items()])
            except EngineError as error:
                if not error.indefinite:
                    for state, units in part.items():
                        self._owe(state, units)
                self._log.warning("what other regions admitted is not charged yet: %s", error)
                return

    def _owe(self, state: Charged, units: int) -> None:
        if state in self._owed or len(self._owed) < MAX_OWED:
            self._owed[state] = self._owed.get(state, 0) + units
        else:
            self.lost_units += units

    async def _keep_synchronizing(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.synchronize()
            except EngineError as error:
                self._log.debug("the store of this region does not answer: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next time comes all the same
                self._log.exception("what was admitted here was not told")
            self._look()


def _parts(entries: Sequence[CounterTotal], most: int) -> Iterator[Sequence[CounterTotal]]:
    for place in range(0, len(entries), most):
        yield entries[place : place + most]


def _forced(state: Charged, units: int) -> ChargeSet:
    rule, key, limit, came_us = state
    if came_us:
        return ChargeSet((PastCharge(key, (limit,), units, came_us, rule),))
    return ChargeSet((ReadyCharge(key, (limit,), units, ChargeKind.FORCE, rule),))


def _seconds(us: int) -> float:
    return max(0, us) / 1_000_000
