"""RightsStore: the escrow steps in a region's Redis, next to its counts.

Grants are stored under their own names, one hash per window, which expires some time after the window.

The epoch of the store is a value that is lost with everything else. It is read on every new connection before anything
else is sent: a store that comes back empty has broken all connections, so none of its answers is mistaken for one of
the previous epoch. A store that is emptied while it runs (FLUSHALL) is noticed within a second.
"""

from __future__ import annotations

import secrets
import time
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..engines.redis.failures import NotSent
from ..engines.redis.keys import KeyCodec
from ..engines.redis.scripts import Script
from ..engines.redis.sending import RoutedCommand
from .escrow import StoreEpoch
from .rights_steps import KEPT_US, RightsSteps, field_of
from .taken_back import TakenBack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engines.redis.aio import AsyncRedisEngine
    from ..engines.redis.link import Link
    from .escrow import KeyWindow, RightsGrant


class RightsStore(RightsSteps):
    """A region's counts, grants and epoch, in its Redis."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__()
        self._codec = KeyCodec(namespace, clustered=False)
        self._epoch_key = self._codec.board("escrow:epoch")
        self._taken_key = self._codec.board("escrow:taken_back")
        self._offset_us = (time.time_ns() - time.monotonic_ns()) // 1000

    def open(self, engine: AsyncRedisEngine) -> None:
        """Start using an engine, before it has connections."""
        self._engine = engine
        engine.greet_with(self._greet)

    def now_us(self) -> int:
        """The current time on the store's clock, as estimated here; steps of this node's clock do not affect it."""
        return time.monotonic_ns() // 1000 + self._offset_us

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close besides the engine."""

    async def look(self) -> None:
        """Read the store's clock and epoch."""
        await self._call(self._epoch_key, "")

    async def taken_back(self) -> dict[str, TakenBack]:
        """The regions whose rights were taken back."""
        rows = await self._engine.run(RoutedCommand((b"HGETALL", self._taken_key), 0))
        found = {}
        for name, value in zip(rows[::2], rows[1::2], strict=True):
            from_us, _, until_us = value.partition(b":")
            found[name.decode()] = TakenBack(int(from_us), int(until_us))
        return found

    async def take_back(self, region: str, taken: TakenBack) -> None:
        """Record that a region's rights belong to the others."""
        value = f"{taken.from_us}:{taken.until_us}"
        await self._engine.run(RoutedCommand((b"HSET", self._taken_key, region, value), 0))

    async def granted(self, window: KeyWindow) -> tuple[str, int]:
        """The epoch of the store, and the units granted to this region in that window."""
        total = await self._call(self._granted_key(window), field_of(window))
        return self.epoch.id, total

    async def note_given(self, window: KeyWindow, region: str, units: int) -> None:
        """Record what another region was given, for display; the units are already off the count."""
        arguments = ("", "", units, self._kept_ms(window), region)
        await self._call(self._granted_key(window), field_of(window), *arguments)

    async def moved(
        self, window: KeyWindow, regions: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The units that these regions have given in a window, and those they were given."""
        key = field_of(window)
        names = [f"{way}:{region}:{key}" for way in ("from", "to") for region in regions]
        command = (b"HMGET", self._granted_key(window), *names)
        found = [int(one or 0) for one in await self._engine.run(RoutedCommand(command, 0))]
        received, given = found[: len(regions)], found[len(regions) :]
        return _some(regions, received), _some(regions, given)

    async def _record(self, grant: RightsGrant) -> int | None:
        ask = grant.ask
        window = ask.window
        arguments = (ask.epoch, ask.id, grant.units, self._kept_ms(window), ask.giver)
        total = await self._call(self._granted_key(window), field_of(window), *arguments)
        return total if self.epoch.id == ask.epoch else None

    def _kept_ms(self, window: KeyWindow) -> int:
        return (max(0, window.end_us - self.now_us()) + KEPT_US) // 1000

    def _granted_key(self, window: KeyWindow) -> bytes:
        return self._codec.board(f"escrow:{window.start_us}")

    async def _call(self, key: bytes, field: str, *grant: Any) -> int:
        script = _script()
        sent_us = time.monotonic_ns() // 1000
        words = (secrets.token_hex(8), field, *(grant or ("", "", 0, 0, "")))
        command = (b"EVALSHA", script.sha, 2, self._epoch_key, key, *words)
        now, epoch, total = await self._engine.run(RoutedCommand(command, 0, script))
        self._learn_epoch(int(now), epoch, sent_us)
        return int(total)

    async def _greet(self, link: Link) -> None:
        """Read the store's epoch on a new connection, before anything else is sent."""
        script = _script()
        sent_us = time.monotonic_ns() // 1000
        words = (
            b"EVAL",
            script.text,
            2,
            self._epoch_key,
            self._epoch_key,
            secrets.token_hex(8),
            "",
        )
        reply = await link.call((*words, "", "", 0, 0, ""))
        if not isinstance(reply, list):
            if "READONLY" in str(reply):  # A replica, which decides nothing.
                return
            raise NotSent(f"the epoch of the store cannot be read: {reply}")
        self._learn_epoch(int(reply[0]), reply[1], sent_us)

    def _learn_epoch(self, now_us: int, epoch: bytes, sent_us: int) -> None:
        id_, _, began_us = epoch.decode().partition(":")
        self.epoch = StoreEpoch(id_, int(began_us))
        here_us = time.monotonic_ns() // 1000
        self._offset_us = now_us - (sent_us + here_us) // 2


def _some(regions: Sequence[str], units: Sequence[int]) -> dict[str, int]:
    return {region: many for region, many in zip(regions, units, strict=True) if many}


@cache
def _script() -> Script:
    text = (files(__package__) / "lua" / "rights.lua").read_bytes()
    # Redis identifies scripts by this digest.
    digest = sha1(text, usedforsecurity=False).hexdigest()
    return Script("rights", text, digest.encode())
