"""Board: one node's part of the board, with the snapshot that this process reads, and its age.

Between `start` and `stop` there is a `beat` every second. It collects what happened since the last one, exchanges it
with the store and swaps the snapshot. If the store does not answer, the snapshot stays, `problem` holds the reason and
`stale_seconds` its age; the next beat includes what was counted meanwhile. Decisions never wait for any of this.

What an operator sets through this node (`keep`, `remove`) is in its snapshot before the call returns, and in the other
nodes' a second later.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ..clock import SystemClock
from ..errors import EngineError, UsageError
from .key_settings import KeySettings, name_of, to_bytes
from .model import BoardView, NodeIdentity, NodeSeen, Report, Totals
from .shared_lists import read_blocks, read_top
from .sketch import merged
from .store import BoardPush, Counts, node_of
from .traffic import KEPT_SECONDS, SecondBuckets, last_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .key_settings import Ban, KeyOverride, Kind
    from .model import Block, NodeState, Second
    from .sketch import TopKey
    from .store import AlgorithmControl, BoardPull, BoardStore, ChoiceProposal

US_PER_SECOND: Final = 1_000_000
HEARTBEAT_US: Final = 10_000_000
FORGET_AFTER_TTLS: Final = 4
"""A silent node is Down after its TTL, and gone after this many TTLs."""
MAX_KEPT: Final = 10_000
"""The maximum number of per-key limits, overrides and bans: every node holds them all."""
PROPOSALS: Final = 10
"""How often a pin is proposed again when another node was faster."""
SECOND_GRACE_US: Final = 20_000
"""How long after the end of a second it is counted, in case a timer fires early."""


class Board:
    """One node's part of the board."""

    def __init__(
        self,
        store: BoardStore,
        identity: NodeIdentity,
        *,
        report: Callable[[], Report] = Report,
        heartbeat_us: int = HEARTBEAT_US,
        clock: Clock | None = None,
        control: AlgorithmControl | None = None,
    ) -> None:
        if not 0 < heartbeat_us < identity.ttl_us:
            raise UsageError(
                f"a heartbeat every {heartbeat_us / 1e6:g} s is too slow for a node that counts as down "
                f"after {identity.ttl_us / 1e6:g} s; make it shorter"
            )
        self.identity = identity
        self._clock: Clock = SystemClock() if clock is None else clock
        self.view = BoardView(nodes=(_only_node(identity, self._clock.now_us()),))
        """The snapshot as of the last heartbeat or change; it may still contain entries that have expired since."""
        self.problem: str | None = None
        """Why the store did not answer the last call."""
        self.reachable = True
        """Whether the store answered the last call, even if it refused."""
        self._store = store
        self._control = control
        self._agreed_revision = ""
        self._report = report
        self._log = logging.getLogger("headgate.board")
        self._beating: asyncio.Task[None] | None = None
        self._heartbeat_us = heartbeat_us
        self._beaten_us = -heartbeat_us
        self.offset_us = 0
        """How far the store's clock is ahead of this node's."""
        self._life = secrets.token_hex(4)
        self._revision = ""
        self._kept = KeySettings()
        self._changes = 0
        self._seconds = SecondBuckets()
        self._lists: dict[str, bytes] = {}
        self._pushed: dict[str, bytes] = {}
        self._known: dict[str, dict[str, bytes]] = {}
        self._answered_us = self._clock.now_us()

    @property
    def stale_seconds(self) -> float:
        """How long ago the store last answered."""
        return (self._clock.now_us() - self._answered_us) / US_PER_SECOND

    def now_us(self) -> int:
        """The current time on the store's clock, as estimated here."""
        return self._clock.now_us() + self.offset_us

    def view_now(self) -> BoardView:
        """The view without entries that have expired since the last heartbeat."""
        self._swap()
        return self.view

    def until_beat_us(self) -> int:
        """Microseconds until the current second is over and the next beat is due."""
        return US_PER_SECOND - (self.now_us() - SECOND_GRACE_US) % US_PER_SECOND

    async def start(self) -> None:
        """Join the board, and send heartbeats until `stop`. It starts even if the store is down."""
        await self.beat()
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating())

    async def stop(self) -> None:
        """Leave the board, and close the store."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self.beat()
        with suppress(EngineError):  # The other nodes will notice.
            await self._store.leave(self.identity.id)
        await self._store.aclose()

    async def beat(self) -> bool:
        """Exchange data with the store once; returns whether it answered."""
        totals, lists = self._report()
        self._seconds.note(totals, self._last_second())
        self._lists.update(lists)
        control = self._control
        begun = self._seconds.counted_to >= 0  # Until then the store's clock is not known.
        scopes = control.strips(self._last_second()) if control is not None and begun else {}
        asked_us = self._clock.now_us()
        heartbeat = asked_us - self._beaten_us >= self._heartbeat_us
        changed = {n: blob for n, blob in self._lists.items() if self._pushed.get(n) != blob}
        push = BoardPush(
            node=self.identity.id,
            identity=self.identity.to_bytes() if heartbeat else None,
            forget_us=self.identity.ttl_us * FORGET_AFTER_TTLS,
            life=self._life,
            counts=Counts(totals, self._seconds.strip()),
            lists=changed,
            revision=self._revision,
            scopes=scopes,
            agreed_revision=self._agreed_revision,
        )
        changes = self._changes
        try:
            pulled = await self._store.exchange(push)
        except EngineError as error:
            self._failed(error)
            self._pushed.clear()
            self._swap()
            return False
        self._answered_us = self._clock.now_us()
        self.offset_us = pulled.now_us - (asked_us + self._answered_us) // 2
        counted_to = self._seconds.counted_to
        if counted_to < 0 or counted_to > self._last_second() + KEPT_SECONDS:
            self._seconds.begin(totals, self._last_second())  # The store has its own clock.
            if control is not None:
                control.strips(self._last_second())  # Start counting by rule as well.
        if heartbeat:
            self._beaten_us = asked_us
        self._pushed.update(changed)
        self._answered()
        # The store was emptied, or this node was silent for too long.
        if self.identity.id not in pulled.nodes:
            self._beaten_us -= self._heartbeat_us
            self._pushed.clear()
        if pulled.kept is not None and changes == self._changes:
            # Otherwise something was set here meanwhile that this answer may lack; the next one has it.
            self._kept.replace(pulled.kept, self.now_us())
            self._revision = pulled.revision
        self._take(pulled)
        if control is not None:
            await self._choose(control, pulled)
        return True

    async def keep(self, kind: Kind, entry: KeyOverride | Ban) -> None:
        """Store an operator's setting. When this returns it is durable, and in force on this node."""
        name = name_of(kind, entry.key, getattr(entry, "rule", None))
        if name not in self._kept and len(self._kept) >= MAX_KEPT:
            raise UsageError(
                f"there are already {MAX_KEPT} per-key limits and bans; write a rule instead"
            )
        await self._change(name, to_bytes(entry), entry.until_us)

    async def remove(self, kind: Kind, key: str, rule: str | None = None) -> bool:
        """Remove a setting; false if there was none."""
        return await self._change(name_of(kind, key, rule), None, None) is not None

    async def propose(self, wanted: Callable[[], ChoiceProposal | None]) -> None:
        """Get a choice of algorithm agreed on, even if others propose meanwhile; then it is in force on this node.

        `wanted` is called again whenever another node was faster, and may then return `None`.
        """
        control = self._control
        assert control is not None, "this node has no adaptive limits"
        for _ in range(PROPOSALS):
            proposal = wanted()
            if proposal is None:
                return
            stored = await self._store.agree(proposal)
            control.process_answer(proposal.scope, stored)
            if stored == proposal.choice:
                return
        raise EngineError("other nodes keep changing the choice; try again", transient=True)

    async def blocks(self) -> list[Block]:
        """The keys that other nodes deny right now; if the store is down, as last known."""
        lists = await self.others("blocks")
        # In a thread: the lists of a hundred nodes under attack are long.
        return await asyncio.to_thread(_live_blocks, lists, self.now_us())

    async def top(self, own: tuple[list[TopKey], int], many: int) -> list[TopKey]:
        """The busiest keys over all nodes; `own` is what this node has counted, up to now."""
        others = [read_top(packed) for packed in (await self.others("top")).values()]
        return merged([own, *others], many)

    async def others(self, name: str) -> dict[str, bytes]:
        """The lists of other nodes under this name; if the store is down, as last known."""
        lists = await self._lists_named(name)
        lists.pop(self.identity.id, None)
        return lists

    @property
    def own_seconds(self) -> tuple[Second, ...]:
        """The last ten seconds of this node alone."""
        return last_seconds([self._seconds.strip()], self._last_second())

    def describe(self, **changes: object) -> None:
        """Change this node's identity; other nodes see it with the next heartbeat."""
        changed = replace(self.identity, **changes)  # type: ignore[arg-type]  # Field names, checked by replace.
        if changed != self.identity:
            self.identity, self._beaten_us = changed, self._clock.now_us() - self._heartbeat_us

    async def _keep_beating(self) -> None:
        while True:
            await self._clock.asleep_us(self.until_beat_us())
            try:
                await self.beat()
            except Exception:  # noqa: BLE001 - the next beat follows, whatever failed
                self._log.exception("a heartbeat of the board failed")

    async def _change(self, name: str, blob: bytes | None, until_us: int | None) -> bytes | None:
        self._changes += 1
        before = await self._store.change(name, blob, until_us)
        self._changes += 1
        self._kept.put(name, blob, self.now_us())
        self._swap()
        return before

    async def _choose(self, control: AlgorithmControl, pulled: BoardPull) -> None:
        """Apply the agreed choices, and propose new ones if needed."""
        self._agreed_revision = pulled.agreed_revision
        last = pulled.now_us // US_PER_SECOND - 1 - self._store.lag_seconds
        try:
            for proposal in control.process_pull(pulled, last):
                control.process_answer(proposal.scope, await self._store.agree(proposal))
        except EngineError as error:
            self._failed(error)  # The next beat shows whether it was carried out.
            self._agreed_revision = ""

    def _last_second(self) -> int:
        """The last complete second, by the store's clock."""
        return (self.now_us() - SECOND_GRACE_US // 2) // US_PER_SECOND - 1

    async def _lists_named(self, name: str) -> dict[str, bytes]:
        try:
            self._known[name] = await self._store.lists(name)
        except EngineError as error:
            self._failed(error)
        return dict(self._known.get(name, {}))

    def _failed(self, error: EngineError) -> None:
        """Record a failed call to the store, and log it once."""
        if self.problem is None:
            self._log.error("the board does not answer: %s", error)
        self.problem, self.reachable = str(error), not error.transient

    def _answered(self) -> None:
        if self.problem is not None:
            self._log.warning("the board answers again")
        self.problem, self.reachable = None, True

    def _take(self, pulled: BoardPull) -> None:
        """Replace the snapshot with the store's answer."""
        last = pulled.now_us // US_PER_SECOND - 1 - self._store.lag_seconds
        every = [pulled.gone, *(counts.totals for counts in pulled.counts.values())]
        seen = seen_in(pulled)
        self.view = BoardView(
            at_us=pulled.now_us,
            nodes=tuple(one for one in seen if not one.identity.is_limiter),
            limiters=tuple(one for one in seen if one.identity.is_limiter),
            seconds=last_seconds((one.strip for one in pulled.counts.values()), last),
            totals=Totals(sum(one.requests for one in every), sum(one.denied for one in every)),
        )
        self._swap()

    def _swap(self) -> None:
        """Update the settings in the snapshot, without expired ones."""
        self._kept.end(self.now_us())
        self.view = replace(self.view, **self._kept.in_force._asdict())


def _live_blocks(lists: dict[str, bytes], now_us: int) -> list[Block]:
    found = (block for packed in lists.values() for block in read_blocks(packed))
    return [block for block in found if block.until_us > now_us]


def _only_node(identity: NodeIdentity, now_us: int) -> NodeSeen:
    """This node as the only one, before the first exchange."""
    return NodeSeen(
        identity=identity,
        state="Up",
        registered_at_us=now_us,
        last_seen_us=now_us,
        requests=0,
        denied=0,
    )


def seen_in(pulled: BoardPull) -> tuple[NodeSeen, ...]:
    """All nodes and limiters that have registered, and whether they are up."""
    counted: dict[str, Totals] = {}
    for by, (totals, _) in pulled.counts.items():
        before = counted.get(node_of(by), Totals())
        counted[node_of(by)] = Totals(
            before.requests + totals.requests, before.denied + totals.denied
        )
    found = []
    for node, row in sorted(pulled.nodes.items()):
        identity = _identity(node, row.identity)
        state: NodeState = "Up" if pulled.now_us - row.beat_us <= identity.ttl_us else "Down"
        totals = counted.get(node, Totals())
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
def _identity(node: str, blob: bytes) -> NodeIdentity:
    """Decode a node's identity; cached, because it seldom changes."""
    try:
        return NodeIdentity.from_bytes(node, blob)
    except (ValueError, TypeError):  # Written by a version that this one does not understand.
        return NodeIdentity(id=node, address="")
