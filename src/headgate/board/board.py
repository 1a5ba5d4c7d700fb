"""Board: one node's place at the board. It keeps the snapshot that everybody here reads, and says how old it is.

Between `start` and `stop` there is a `beat` every second. It works out what happened since the last time, exchanges that with the store and swaps
the snapshot. If the store does not answer, the snapshot stays, `problem` says why and `stale_seconds` for how long; what was
counted meanwhile goes along the next time. Decisions never wait for any of this.

What a person sets through this node (`keep`, `remove`) is in its snapshot before the call returns, and in everybody else's
a second later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ..clock import SystemClock
from ..errors import EngineError, UsageError
from .kept import Kept, name_of, to_bytes
from .model import Identity, NodeSeen, Report, Second, Totals, View
from .sheets import read_blocks, read_top
from .sketch import merged
from .store import NOTHING_COUNTED, Counts, Push
from .traffic import KEPT_SECONDS, last_seconds, spread, strip_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .kept import Ban, KeyLimit, Kind
    from .model import Block, NodeState
    from .sketch import Hot
    from .store import Pulled, Store

US_PER_SECOND: Final = 1_000_000
HEARTBEAT_US: Final = 10_000_000
FORGET_AFTER_TTLS: Final = 4
"""A node that is not heard of is Down after its TTL, and gone after so many of them."""
MAX_KEPT: Final = 10_000
"""How many limits, overrides and bans there may be: every node holds them all."""
JUST_AFTER_US: Final = 20_000
"""How long after a second has ended its counts are taken, so that a timer that is early does no harm."""


class Board:
    """One node's place at the board."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        report: Callable[[], Report] = Report,
        heartbeat_us: int = HEARTBEAT_US,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < heartbeat_us < identity.ttl_us:
            raise UsageError(
                f"a heartbeat every {heartbeat_us / 1e6:g} s cannot keep a node alive that is given up "
                f"after {identity.ttl_us / 1e6:g} s; make it shorter"
            )
        self.identity = identity
        self._clock: Clock = SystemClock() if clock is None else clock
        self.view = View(nodes=(_alone(identity, self._clock.now_us()),))
        """What holds, as of the last beat or change; what has ended since may still be in it."""
        self.problem: str | None = None
        """Why the store did not answer the last time."""
        self.reachable = True
        """Whether there was an answer the last time, be it a refusal."""
        self._store = store
        self._report = report
        self._log = logging.getLogger("headgate.board")
        self._beating: asyncio.Task[None] | None = None
        self._heartbeat_us = heartbeat_us
        self._beaten_us = -heartbeat_us
        self._offset_us = 0
        self._revision = ""
        self._kept = Kept()
        self._changes = 0
        self._counted = Totals()
        self._counted_to = -1
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)
        self._sheets: dict[str, bytes] = {}
        self._pushed: dict[str, bytes] = {}
        self._known: dict[str, dict[str, bytes]] = {}
        self._heard_us = self._clock.now_us()

    @property
    def stale_seconds(self) -> float:
        """How long ago the store last answered."""
        return (self._clock.now_us() - self._heard_us) / US_PER_SECOND

    def now_us(self) -> int:
        """The store's clock, as far as it is known here."""
        return self._clock.now_us() + self._offset_us

    @property
    def offset_us(self) -> int:
        """How far the store's clock is ahead of this node's."""
        return self._offset_us

    def view_now(self) -> View:
        """The view for people: without what has ended since the last beat."""
        self._swap()
        return self.view

    def until_beat_us(self) -> int:
        """How long until the second that runs now is over, and the next beat is due."""
        return US_PER_SECOND - (self.now_us() - JUST_AFTER_US) % US_PER_SECOND

    async def start(self) -> None:
        """Take this node's place, and keep it until `stop`. A store that is away is no reason not to start."""
        await self.beat()
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating())

    async def stop(self) -> None:
        """Leave the board, and let go of the store."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self.beat()
        with suppress(EngineError):  # The others will notice.
            await self._store.leave(self.identity.id)
        await self._store.aclose()

    async def beat(self) -> bool:
        """Exchange what there is, and say whether the store answered."""
        totals, sheets = self._report()
        self._count(totals)
        self._sheets.update(sheets)
        asked_us = self._clock.now_us()
        heartbeat = asked_us - self._beaten_us >= self._heartbeat_us
        changed = {n: blob for n, blob in self._sheets.items() if self._pushed.get(n) != blob}
        push = Push(
            node=self.identity.id,
            identity=self.identity.to_bytes() if heartbeat else None,
            forget_us=self.identity.ttl_us * FORGET_AFTER_TTLS,
            counts=Counts(totals, strip_of(self._seconds, max(0, self._counted_to))),
            sheets=changed,
            revision=self._revision,
        )
        changes = self._changes
        try:
            pulled = await self._store.exchange(push)
        except EngineError as error:
            self._failed(error)
            self._pushed.clear()
            self._swap()
            return False
        self._heard_us = self._clock.now_us()
        self._offset_us = pulled.now_us - (asked_us + self._heard_us) // 2
        if self._counted_to < 0 or self._counted_to > self._last_second() + KEPT_SECONDS:
            self._counted, self._counted_to = totals, self._last_second()  # It has its own clock.
        if heartbeat:
            self._beaten_us = asked_us
        self._pushed.update(changed)
        self._answered()
        if (
            self.identity.id not in pulled.nodes
        ):  # The store was emptied, or we were silent for long.
            self._beaten_us -= self._heartbeat_us
            self._pushed.clear()
        if pulled.kept is not None and changes == self._changes:
            # Else somebody set something here meanwhile, which this may not know; the next beat does.
            self._kept.replace(pulled.kept, self.now_us())
            self._revision = pulled.revision
        self._take(pulled)
        return True

    async def keep(self, kind: Kind, entry: KeyLimit | Ban) -> None:
        """Keep what a person has set, until it ends or for ever; when this returns it is safe and in force here."""
        name = name_of(kind, entry.key)
        if name not in self._kept and len(self._kept) >= MAX_KEPT:
            raise UsageError(
                f"there are {MAX_KEPT} limits and bans of single keys already; write a rule instead"
            )
        await self._change(name, to_bytes(entry), entry.until_us)

    async def remove(self, kind: Kind, key: str) -> bool:
        """Remove it again; false when there was none."""
        return await self._change(name_of(kind, key), None, None) is not None

    async def blocks(self) -> list[Block]:
        """The keys that other nodes deny right now; when the store is away, as it was last known."""
        sheets = await self._sheets_named("blocks")
        sheets.pop(self.identity.id, None)
        # Beside the event loop: a hundred nodes in distress have long lists.
        return await asyncio.to_thread(_live_blocks, sheets, self.now_us())

    async def top(self, own: tuple[list[Hot], int], many: int) -> list[Hot]:
        """The keys that are asked for most, over all nodes; `own` is what this node has seen, as of now."""
        sheets = await self._sheets_named("top")
        others = [read_top(sheet) for node, sheet in sheets.items() if node != self.identity.id]
        return merged([own, *others], many)

    def describe(self, **changes: object) -> None:
        """Say something else about this node; the others hear of it with the next beat."""
        changed = replace(self.identity, **changes)  # type: ignore[arg-type]  # Field names, checked by replace.
        if changed != self.identity:
            self.identity, self._beaten_us = changed, self._clock.now_us() - self._heartbeat_us

    async def _keep_beating(self) -> None:
        while True:
            await self._clock.asleep_us(self.until_beat_us())
            try:
                await self.beat()
            except Exception:  # noqa: BLE001 - whatever it is, the next beat comes all the same
                self._log.exception("a beat of the board failed")

    async def _change(self, name: str, blob: bytes | None, until_us: int | None) -> bytes | None:
        self._changes += 1
        before = await self._store.change(name, blob, until_us)
        self._changes += 1
        self._kept.put(name, blob, self.now_us())
        self._swap()
        return before

    def _count(self, totals: Totals) -> None:
        """Note what was counted since the last time, by the seconds in which it was."""
        last = self._last_second()
        if self._counted_to < 0 or last <= self._counted_to:
            return  # The store's clock is not known yet, or this is too early.
        first = max(self._counted_to + 1, last - KEPT_SECONDS + 1)
        requests = totals.requests - self._counted.requests
        denied = totals.denied - self._counted.denied
        self._seconds.extend(spread(first, last, requests, denied))
        self._counted, self._counted_to = totals, last

    def _last_second(self) -> int:
        """The last second that is over, by the store's clock."""
        return (self.now_us() - JUST_AFTER_US // 2) // US_PER_SECOND - 1

    async def _sheets_named(self, name: str) -> dict[str, bytes]:
        try:
            self._known[name] = await self._store.sheets(name)
        except EngineError as error:
            self._failed(error)
        return dict(self._known.get(name, {}))

    def _failed(self, error: EngineError) -> None:
        """The store did not do what it was asked; the log says so once."""
        if self.problem is None:
            self._log.error("the board does not answer: %s", error)
        self.problem, self.reachable = str(error), not error.transient

    def _answered(self) -> None:
        if self.problem is not None:
            self._log.warning("the board answers again")
        self.problem, self.reachable = None, True

    def _take(self, pulled: Pulled) -> None:
        """Swap the snapshot for what the store says."""
        last = pulled.now_us // US_PER_SECOND - 1 - self._store.lag_seconds
        every = [pulled.gone, *(counts.totals for counts in pulled.counts.values())]
        self.view = View(
            at_us=pulled.now_us,
            nodes=_nodes(pulled),
            seconds=last_seconds((one.strip for one in pulled.counts.values()), last),
            totals=Totals(sum(one.requests for one in every), sum(one.denied for one in every)),
        )
        self._swap()

    def _swap(self) -> None:
        """Put what people have set into the snapshot, without what has ended."""
        self._kept.end(self.now_us())
        self.view = replace(self.view, **self._kept.in_force._asdict())


def _live_blocks(sheets: dict[str, bytes], now_us: int) -> list[Block]:
    found = (block for sheet in sheets.values() for block in read_blocks(sheet))
    return [block for block in found if block.until_us > now_us]


def _alone(identity: Identity, now_us: int) -> NodeSeen:
    """The node that we are, before anybody has heard of it: there since now, as far as we know."""
    return NodeSeen(
        identity=identity,
        state="Up",
        registered_at_us=now_us,
        last_seen_us=now_us,
        requests=0,
        denied=0,
    )


def _nodes(pulled: Pulled) -> tuple[NodeSeen, ...]:
    found = []
    for node, row in sorted(pulled.nodes.items()):
        identity = _identity(node, row.identity)
        state: NodeState = "Up" if pulled.now_us - row.beat_us <= identity.ttl_us else "Down"
        totals = pulled.counts.get(node, NOTHING_COUNTED).totals
        found.append(
            NodeSeen(
                identity=identity,
                state=state,
                registered_at_us=row.registered_us,
                last_seen_us=row.beat_us,
                requests=totals.requests,
                denied=totals.denied,
            )
        )
    return tuple(found)


@lru_cache(maxsize=4_096)
def _identity(node: str, blob: bytes) -> Identity:
    """What a node says about itself; most say the same again every time."""
    try:
        return Identity.from_bytes(node, blob)
    except (ValueError, TypeError):  # Written by a version that we do not understand.
        return Identity(id=node, address="")
