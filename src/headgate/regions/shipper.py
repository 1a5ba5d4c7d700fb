"""Shipper: sends this region's counts to one other region. One node of a region does it, and is replaced if it dies.

Changes are sent every interval, in order. After a failure, and to a region whose store has lost everything, all known
counters of every region are sent again: the receiver keeps what it did not know.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ..errors import HeadgateError
from .messages import COUNTERS, Message, counters_content

if TYPE_CHECKING:
    from collections.abc import Callable

    from .links import RegionClient
    from .store import RegionState, RegionStore

MOST: Final = 1_000
"""The maximum number of counters in a message."""
MAX_BYTES: Final = 262_144
"""The maximum size of a message; it may contain keys of 8 KB."""
LEAD_US: Final = 2_000_000
"""How long a node stays the shipper before it must renew its lead."""
RENEW_US: Final = 500_000
SIGN_OF_LIFE_US: Final = 1_000_000
"""How often an empty message is sent as a sign of life."""


class Shipper:
    """Sends to one region, while this node is the shipper."""

    def __init__(
        self,
        region: str,
        link: RegionClient,
        store: RegionStore,
        *,
        here: str,
        node: str,
        interval_us: int,
        state: Callable[[], RegionState | None],
    ) -> None:
        self.region = region
        self.link = link
        self._store = store
        self._here = here
        self._node = node
        self._interval = interval_us / 1_000_000
        self._state = state
        self.leads = False
        """Whether this node is the shipper."""
        self.problem: str | None = None
        """Why the last message to the other region failed."""
        self.sent_counters = 0
        self._since = 0
        """The last change that the other region has confirmed."""
        self._everything = True
        """Whether to send counters of all regions, not only of this one."""
        self._own_epoch = self._epoch = ""
        self._renew_us = self._alive_us = 0
        self._most = MOST
        self._log = logging.getLogger("headgate.regions")

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.step()
            except HeadgateError as error:
                self._failed(error)
            except Exception:  # noqa: BLE001 - the next message follows, whatever failed
                self._log.exception("sending to region %s failed", self.region)
                self._restart()

    async def step(self) -> None:
        """Send what has changed, if this node is the shipper."""
        state = self._state()
        if state is None:
            return
        now_us = state.now_us
        if state.epoch != self._own_epoch:
            self._own_epoch = state.epoch
            self._restart()  # The store numbers its changes from zero again.
        if now_us - self._renew_us >= RENEW_US or now_us < self._renew_us:
            led = self.leads
            self.leads = await self._store.lead(self.region, self._node, LEAD_US)
            self._renew_us = now_us
            if self.leads and not led:
                self._restart()  # It is unknown what the previous shipper has sent.
        if self.leads:
            while await self._send(state):
                pass

    async def _send(self, state: RegionState) -> bool:
        """Send one message; returns whether there is more to send right away."""
        most = self._most
        found, last = await self._store.changes(self._since, most)
        told = [one for one in found if self._everything or one.actor.region == self._here]
        if not told and state.now_us - self._alive_us < SIGN_OF_LIFE_US:
            self._since = last
            return len(found) == most
        message = Message(COUNTERS, self._here, state.epoch, counters_content(told)).pack()
        if len(message) > MAX_BYTES and most > 1:
            self._most = most // 2
            return True
        self._most = min(MOST, 2 * most)
        reply = await self.link.send(message)
        if self.problem is not None:
            self._log.warning("region %s can be reached again", self.region)
        self.problem, self._alive_us = None, state.now_us
        self.sent_counters += len(told)
        if reply.epoch != self._epoch:
            known, self._epoch = self._epoch, reply.epoch
            if known:
                self._log.warning("the store of the region %s has lost what it knew", self.region)
                self._restart()
                return True
        if reply.early:
            return False  # Its clock is behind: send the same again later.
        self._since = last
        more = len(found) == most
        if not more:
            self._everything = False
            await self._store.note_taken(self.region, state.now_us)
        return more

    def _failed(self, error: HeadgateError) -> None:
        if self.problem is None:
            self._log.error("cannot send to region %s: %s", self.region, error)
        self.problem = str(error)
        self._restart()

    def _restart(self) -> None:
        """Start over with all known counters."""
        self._since, self._everything = 0, True
