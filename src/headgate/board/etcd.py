"""A board in etcd: next to the counts of an etcd engine, or alone.

An exchange is one transaction. It writes this node's part and reads all nodes' parts. Per-key settings and agreed
choices have a revision each; the transaction compares both with what the node knows, and reads the rest only if one has
changed. So an idle fleet costs etcd one small write per second and node.

    live/node/<node>           when it was last heard from and registered, and what it says about itself
    live/counts/<node#life>    what it has counted, in all and by rule
    live/gone                  the totals of lives that are over
    live/revision/<of what>    is written with every change of what is kept or agreed on
    sheets/<node>/<name>       its lists, at most every few seconds: they are long and change all the time
    kept/<name>                what people have set, and until when
    agreed/<scope>             what was agreed on

all under `/headgate/<cluster>/b/<namespace>/`. etcd has no clock, so times come from a given clock: next to an etcd
engine, the cluster's. A heartbeat also removes what has expired: silent nodes, and bans and overrides that have ended.
Each removal compares that the row has not changed since.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from ..engines.etcd.history import CompactionPlan
from ..engines.etcd.kind import etcd_module
from ..engines.etcd.options import EtcdOptions, parse_url
from ..engines.etcd.transactions import ChangedAt, Delete, NotDone, Put, Unsure, end_of, explained
from .model import Totals
from .rows import (
    packed_choice,
    packed_counts,
    packed_node,
    packed_scopes,
    unpacked_choice,
    unpacked_counts,
    unpacked_node,
    unpacked_scopes,
)
from .store import MAX_AGREED, BoardPull, BoardPush, Counts, NodeRow, StoredChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock
    from ..engines.etcd.client import AsyncEtcdClient
    from ..engines.etcd.transactions import Condition, Item, Operation
    from .store import ChoiceProposal
    from .traffic import SecondCounts

LISTS_US: Final = 3_000_000
"""How often lists are written at most."""
AT_ONCE: Final = 50
"""Entries that are removed together: etcd takes 128 operations in one transaction."""


def open_store(url: str, namespace: str, clock: Clock) -> EtcdBoardStore:
    """The board that a URL names; it compacts the history of that etcd."""
    return EtcdBoardStore(parse_url(url), namespace=namespace, clock=clock, compacts=True)


def open_store_beside(engine: str | EtcdOptions, namespace: str, clock: Clock) -> EtcdBoardStore:
    """The board that lies beside an engine, which compacts the history."""
    options = parse_url(engine) if isinstance(engine, str) else engine
    return EtcdBoardStore(options, namespace=namespace, clock=clock)


class EtcdBoardStore:
    """Keeps a board in etcd. Lives in one event loop."""

    lag_seconds = 1
    private_lists = False

    def __init__(
        self, options: EtcdOptions, *, clock: Clock, namespace: str = "", compacts: bool = False
    ) -> None:
        self._options = options
        self._clock = clock
        self._client_class = etcd_module("client").AsyncEtcdClient
        self._connected: AsyncEtcdClient | None = None
        self._paths = _Paths(options.cluster, namespace)
        self._history = CompactionPlan(options.compact if compacts else 0.0, time.monotonic())
        self._registered_us: dict[str, int] = {}
        """Since when nodes of this process are there."""
        self._ends: dict[str, tuple[int, int]] = {}
        """What is kept and ends by itself: when, and the revision of its row."""
        self._lists: dict[str, bytes] = {}
        """Lists to be written."""
        self._lists_due_us = 0

    @property
    def _client(self) -> AsyncEtcdClient:
        """Made when it is first used: it belongs to the event loop."""
        if self._connected is None:
            self._connected = self._client_class(self._options)
        return self._connected

    async def exchange(self, push: BoardPush) -> BoardPull:
        """Bring this node's part and take the others' along, in one transaction."""
        paths = self._paths
        with explained():
            sent_us = self._clock.now_us()
            brought = await self._brought(push, sent_us)
            known: list[Condition] = [
                ChangedAt(paths.kept_revision, int(push.revision or -1)),
                ChangedAt(paths.agreed_revision, int(push.agreed_revision or -1)),
            ]
            found = await self._client.exchange(
                brought, paths.live, known, (paths.kept, paths.agreed)
            )
        now_us = (sent_us + self._clock.now_us()) // 2
        rows = _LiveRows(paths, found.items)
        if not found.known:
            self._ends = {
                name: (until_us, changed)
                for name, (_, until_us, changed) in rows.kept.items()
                if until_us is not None
            }
        if push.identity is not None:
            self._registered_us[push.node] = rows.nodes[push.node].registered_us
            with contextlib.suppress(
                NotDone, Unsure
            ):  # Another node does it, or the next heartbeat.
                await self._clean(rows, push, now_us)
        elif push.node not in rows.nodes:
            self._registered_us.pop(push.node, None)
        self._history.note(time.monotonic(), found.revision)
        await self._compact(rows, push.node)
        return BoardPull(
            now_us=now_us,
            nodes={
                node: row
                for node, row in rows.nodes.items()
                if row.beat_us + push.forget_us >= now_us
            },
            counts=rows.counts,
            gone=rows.gone,
            revision=rows.revisions["kept"],
            kept=None
            if found.known or push.revision == rows.revisions["kept"]
            else {
                name: value
                for name, (value, until_us, _) in rows.kept.items()
                if until_us is None or until_us > now_us
            },
            scopes=rows.scopes,
            agreed_revision=rows.revisions["agreed"],
            agreed=None
            if found.known or push.agreed_revision == rows.revisions["agreed"]
            else rows.agreed,
        )

    async def change(self, name: str, value: bytes | None, until_us: int | None) -> bytes | None:
        """Keep a value under a name, or remove it."""
        key = self._paths.kept + name
        row = Delete(key) if value is None else Put(key, _packed_kept(value, until_us))
        with explained():
            before = await self._client.replace(key, [row, Put(self._paths.kept_revision, b"")])
        return None if before is None else _unpacked_kept(before)[0]

    async def agree(self, proposal: ChoiceProposal) -> StoredChoice:
        """Replace a choice if its epoch is the expected one."""
        paths = self._paths
        scope, expected_epoch, choice = proposal
        key = paths.agreed + scope
        with explained():
            found = {
                item.key: item
                for item in (await self._client.read(paths.agreed, end_of(paths.agreed))).items
            }
            item = found.get(key)
            stored = StoredChoice() if item is None else unpacked_choice(item.value)
            if stored.epoch != expected_epoch:
                return stored
            written: list[Operation] = [
                Put(key, packed_choice(choice)),
                Put(paths.agreed_revision, b""),
            ]
            if item is None and len(found) >= MAX_AGREED:
                # Rules that are gone fill it; nodes tell again what they use.
                written += (Delete(paths.agreed, key), Delete(key + "\0", end_of(paths.agreed)))
            changed = 0 if item is None else item.changed
            await self._client.transact([ChangedAt(key, changed)], written)
            now = (await self._client.read(key)).items  # Another node may have been faster.
            return unpacked_choice(now[0].value) if now else StoredChoice()

    async def lists(self, name: str) -> dict[str, bytes]:
        """The lists of all nodes that go by this name."""
        prefix = self._paths.lists
        with explained():
            found = await self._client.read(prefix, end_of(prefix))
        lists = {}
        for item in found.items:
            node, _, one = item.key[len(prefix) :].partition("/")
            if one == name:
                lists[unquote(node)] = zlib.decompress(item.value)
        return lists

    async def leave(self, node: str) -> None:
        """Forget a node."""
        self._registered_us.pop(node, None)
        with explained():
            await self._client.transact([], self._forgetting(node))

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            await self._connected.close()

    async def _brought(self, push: BoardPush, now_us: int) -> list[Operation]:
        """What a node brings, as it is written."""
        paths = self._paths
        counted = f"{packed_counts(push.counts)}\n{packed_scopes(push.scopes)}".encode()
        brought: list[Operation] = [Put(paths.counts + push.counted_by, zlib.compress(counted, 1))]
        if push.identity is not None:
            registered_us = await self._registered(push.node, now_us)
            row = packed_node(NodeRow(now_us, registered_us, push.identity))
            brought.append(Put(paths.nodes + push.node, row))
        self._lists.update(push.lists)
        if self._lists and now_us >= self._lists_due_us:
            own = paths.lists_of(push.node)
            brought += [
                Put(own + name, zlib.compress(packed, 1)) for name, packed in self._lists.items()
            ]
            self._lists.clear()
            self._lists_due_us = now_us + LISTS_US
        return brought

    async def _registered(self, node: str, now_us: int) -> int:
        """Since when a node is there: as its row says, if it has one."""
        known_us = self._registered_us.get(node)
        if known_us is None:
            found = (await self._client.read(self._paths.nodes + node)).items
            return unpacked_node(found[0].value).registered_us if found else now_us
        return known_us

    def _forgetting(self, node: str) -> list[Operation]:
        own = self._paths.lists_of(node)
        return [Delete(self._paths.nodes + node), Delete(own, end_of(own))]

    async def _clean(self, rows: _LiveRows, push: BoardPush, now_us: int) -> None:
        """Remove what is over."""
        paths, client = self._paths, self._client
        for node, row in rows.nodes.items():
            if row.beat_us + push.forget_us < now_us:
                key = paths.nodes + node
                await client.transact([ChangedAt(key, rows.changed[key])], self._forgetting(node))
        over = [
            by
            for by, (totals, strip) in rows.counts.items()
            if strip.last * 1_000_000 + push.forget_us < now_us
            and by != push.counted_by
            and (strip.last or not totals.requests)  # Else it has counted, but no whole second yet.
        ]
        if over:  # The rest of them with the next heartbeat.
            await self._settle(rows, over[:AT_ONCE])
        ended = [name for name, (until_us, _) in self._ends.items() if until_us <= now_us]
        for start in range(0, len(ended), AT_ONCE):
            keys = {
                paths.kept + name: self._ends[name][1] for name in ended[start : start + AT_ONCE]
            }
            await client.transact(
                [ChangedAt(key, changed) for key, changed in keys.items()],
                [*map(Delete, keys), Put(paths.kept_revision, b"")],
            )

    async def _settle(self, rows: _LiveRows, over: Sequence[str]) -> None:
        """Add up what was counted by those who count no more. Their last seconds have been read by then."""
        paths = self._paths
        totals = [rows.gone, *(rows.counts[by].totals for by in over)]
        gone = Counts(Totals(*map(sum, zip(*totals, strict=True))))
        keys = [paths.counts + by for by in over]
        guarded = [ChangedAt(key, rows.changed.get(key, 0)) for key in (paths.gone, *keys)]
        written = Put(paths.gone, packed_counts(gone).encode())
        await self._client.transact(guarded, [written, *map(Delete, keys)])

    async def _compact(self, rows: _LiveRows, node: str) -> None:
        """Have the history compacted, by one node of all."""
        old = self._history.due(time.monotonic())
        if old and node == min(rows.nodes, default=node):
            with contextlib.suppress(NotDone, Unsure):
                await self._client.compact(old)


class _Paths:
    """Where a board keeps what."""

    def __init__(self, cluster: str, namespace: str) -> None:
        root = f"/headgate/{cluster}/b/{quote(namespace, safe='')}/"
        self.live = f"{root}live/"
        self.nodes = f"{self.live}node/"
        self.counts = f"{self.live}counts/"
        self.gone = f"{self.live}gone"
        self.revisions = f"{self.live}revision/"
        self.kept_revision = f"{self.revisions}kept"
        self.agreed_revision = f"{self.revisions}agreed"
        self.lists = f"{root}sheets/"
        self.kept = f"{root}kept/"
        self.agreed = f"{root}agreed/"

    def lists_of(self, node: str) -> str:
        """What the keys of a node's lists begin with."""
        return f"{self.lists}{quote(node, safe='')}/"


class _LiveRows:
    """What an exchange has read."""

    def __init__(self, paths: _Paths, items: Sequence[Item]) -> None:
        self.nodes: dict[str, NodeRow] = {}
        self.counts: dict[str, Counts] = {}
        self.scopes: dict[str, dict[str, SecondCounts]] = {}
        self.gone = Totals()
        self.revisions = {"kept": "0", "agreed": "0"}
        self.kept: dict[str, tuple[bytes, int | None, int]] = {}
        """By name: the value, until when, and the revision of the row."""
        self.agreed: dict[str, StoredChoice] = {}
        self.changed = {item.key: item.changed for item in items}
        readers: dict[str, Any] = {
            paths.nodes: self._read_node,
            paths.counts: self._read_counts,
            paths.gone: self._read_gone,
            paths.revisions: self._read_revision,
            paths.kept: self._read_kept,
            paths.agreed: self._read_agreed,
        }
        for item in items:
            for prefix, read in readers.items():
                if item.key.startswith(prefix):
                    read(item.key.removeprefix(prefix), item)

    def _read_node(self, name: str, item: Item) -> None:
        self.nodes[name] = unpacked_node(item.value)

    def _read_counts(self, name: str, item: Item) -> None:
        counted, _, scopes = zlib.decompress(item.value).partition(b"\n")
        self.counts[name] = unpacked_counts(counted)
        self.scopes[name] = unpacked_scopes(scopes)

    def _read_gone(self, _: str, item: Item) -> None:
        self.gone = unpacked_counts(item.value).totals

    def _read_revision(self, name: str, item: Item) -> None:
        self.revisions[name] = str(item.changed)

    def _read_kept(self, name: str, item: Item) -> None:
        self.kept[name] = (*_unpacked_kept(item.value), item.changed)

    def _read_agreed(self, name: str, item: Item) -> None:
        self.agreed[name] = unpacked_choice(item.value)


def _packed_kept(value: bytes, until_us: int | None) -> bytes:
    return f"{'' if until_us is None else until_us}:".encode() + value


def _unpacked_kept(row: bytes) -> tuple[bytes, int | None]:
    until_us, _, value = row.partition(b":")
    return value, int(until_us) if until_us else None
