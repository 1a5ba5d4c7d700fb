"""RightsStore: the steps of escrow in the Redis of a region, next to its counts.

Grants are on record under names of their own, one hash for each window, which goes when the window is long over.

The epoch of the store is a value that goes when everything does. It is read on every new connection before anything
else is sent there: a store that comes back empty has broken all connections, so no answer of it is taken for one of the
store before. A store that is emptied while it runs (FLUSHALL) is noticed within a second.
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
        """Begin to use an engine, before it has connections."""
        self._engine = engine
        engine.greet_with(self._greet)

    def now_us(self) -> int:
        """The store's clock, as far as it is known; a step of this node's clock does not matter."""
        return time.monotonic_ns() // 1000 + self._offset_us

    async def aclose(self) -> None:
        """There is nothing besides the engine."""

    async def look(self) -> None:
        """Learn the store's clock and its epoch."""
        await self._call(self._epoch_key, "")

    async def taken_back(self) -> dict[str, TakenBack]:
        """Whose rights were taken back."""
        rows = await self._engine.run(RoutedCommand((b"HGETALL", self._taken_key), 0))
        found = {}
        for name, value in zip(rows[::2], rows[1::2], strict=True):
            from_us, _, until_us = value.partition(b":")
            found[name.decode()] = TakenBack(int(from_us), int(until_us))
        return found

    async def take_back(self, region: str, taken: TakenBack) -> None:
        """Note that a region's rights are the others'."""
        value = f"{taken.from_us}:{taken.until_us}"
        await self._engine.run(RoutedCommand((b"HSET", self._taken_key, region, value), 0))

    async def granted(self, window: KeyWindow) -> tuple[str, int]:
        """The epoch of the store, and what is on record there for the region in that window."""
        total = await self._call(self._granted_key(window), field_of(window))
        return self.epoch.id, total

    async def note_given(self, window: KeyWindow, region: str, units: int) -> None:
        """Note for people what a region was given; the units are off the count already."""
        arguments = ("", "", units, self._kept_ms(window), region)
        await self._call(self._granted_key(window), field_of(window), *arguments)

    async def moved(
        self, window: KeyWindow, regions: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """What these regions have given of a window, and what they were given."""
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
        self._know(int(now), epoch, sent_us)
        return int(total)

    async def _greet(self, link: Link) -> None:
        """Read the epoch of a store on a new connection, before anything else is sent there."""
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
            if "READONLY" in str(reply):  # A replica: nothing is decided there.
                return
            raise NotSent(f"the epoch of the store cannot be read: {reply}")
        self._know(int(reply[0]), reply[1], sent_us)

    def _know(self, now_us: int, epoch: bytes, sent_us: int) -> None:
        id_, _, began_us = epoch.decode().partition(":")
        self.epoch = StoreEpoch(id_, int(began_us))
        here_us = time.monotonic_ns() // 1000
        self._offset_us = now_us - (sent_us + here_us) // 2


def _some(regions: Sequence[str], units: Sequence[int]) -> dict[str, int]:
    return {region: many for region, many in zip(regions, units, strict=True) if many}


@cache
def _script() -> Script:
    text = (files(__package__) / "lua" / "rights.lua").read_bytes()
    digest = sha1(text, usedforsecurity=False).hexdigest()  # The name that Redis itself gives it.
    return Script("rights", text, digest.encode())
