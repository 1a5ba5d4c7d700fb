"""An incarnation: a node from the time it joins the cluster until its end.

It has one lease and one key attached to it. That key is the **fence**: every commit, claim and release requires that
the key is still the one created on joining. The lease is for liveness; only that comparison is for safety. An
incarnation that is fenced drops everything it holds, and the node joins again as a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...errors import EngineError, EngineTimeout
from .commits import Commits
from .journal import Journal
from .records import ClusterMap, Member, member_value, read_map
from .transactions import CreatedAt, Delete, NotDone, Put, Rejected, TooLarge, Unsure, end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...clock import Clock
    from ..meter import Meter
    from .commits import Waiter
    from .entries import Entry
    from .options import EtcdOptions
    from .records import ClusterSettings, Paths
    from .shard import Shard
    from .transactions import Condition, Store

COMMIT_S: Final = 0.3
"""How long to wait for a commit before sending it again."""
RETRY_S: Final = 0.05
LEASE_PART: Final = 0.9
"""The part of the lease to use, so that this node stops before others may start."""
EXPIRE_S: Final = 0.05
log = logging.getLogger("headgate.etcd")


class Fenced(Exception):  # noqa: N818 - it is an outcome
    """This incarnation is over: its lease has ended or was revoked."""


def not_decided(why: str) -> EngineError:
    """The error that a request was not carried out, and may be tried again."""
    return EngineTimeout(f"etcd engine: not decided, {why}; nothing was charged", transient=True)


def unknown(why: str) -> EngineError:
    """The error that a request may have been carried out."""
    return EngineTimeout(
        f"etcd engine: {why}; the request may have been charged", transient=True, indefinite=True
    )


class ClusterHandle(NamedTuple):
    """What it takes to be a member of a cluster."""

    client: Store
    options: EtcdOptions
    paths: Paths
    settings: ClusterSettings
    clock: Clock
    meter: Meter
    """Receives statistics of commits."""


class Incarnation:
    """One membership in the cluster: its lease, its commits, its map."""

    def __init__(self, cluster: ClusterHandle, changed: Callable[[], None]) -> None:
        self.client, self.options, self.paths, self.settings, self.clock, self.meter = cluster
        options = self.options
        self.name = ""
        self.fence: Condition = CreatedAt("", 0)
        """The condition of all its writes."""
        self.lease = 0
        self.member = Member("", "", 0, 0)
        """Its record as other nodes see it."""
        self.map = ClusterMap()
        self.shards: dict[int, Shard] = {}
        """The shards it holds, whether it serves them yet or not."""
        self.commits = Commits(Journal(), self.shards, options.policy)
        self.confirmed = 0
        """The last entry that is certainly in etcd."""
        self.revision = 0
        """The revision of etcd after the last commit."""
        self.others_work: Callable[[], bool] = lambda: False
        """Whether another etcd cluster accepts commits, so that a failure here affects only some keys."""
        self.refused = 0
        """How often etcd has refused a commit, which was then sent again."""
        self.open_until = 0.0
        """Until when decisions may be made, in event loop time: while the lease lasts and no commit is late. Compared
        on every decision."""
        self._is_refused = False
        """Whether the log already says that commits are refused."""
        self._deadline = 0.0
        self._ttl = options.ttl
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        """The time of the event loop, in seconds."""
        self._wake = asyncio.Event()
        self.map_changed = asyncio.Event()
        """Set when the map should be read again."""

    async def join(self, name: str, address: str) -> None:
        """Become a member."""
        sent = self._loop.time()
        self.lease, ttl = await self.client.grant(self.options.ttl)
        self._ttl = ttl
        self.name = f"{name}-{self.lease:x}"
        key = self.paths.member(self.name)
        value = member_value(address, self.lease)
        with contextlib.suppress(Unsure):  # The outcome shows right away.
            await self.client.transact([CreatedAt(key, 0)], [Put(key, value, self.lease)])
        found = await self.client.read(key)
        if not found.items:  # It may still arrive, and would be an idle member.
            await self.client.revoke(self.lease)
            raise Fenced("this node could not join")
        self.fence = CreatedAt(key, found.items[0].created)
        self.member = Member(self.name, address, found.items[0].created, self.lease)
        self._renewed(sent)
        await self.read_map()

    async def withdraw_address(self) -> None:
        """Stay a member, but one that gets no shards."""
        key = self.paths.member(self.name)
        put = Put(key, member_value("", self.lease), self.lease)
        await self.client.transact([self.fence], [put])

    def _renewed(self, sent: float) -> None:
        self._deadline = sent + LEASE_PART * self._ttl
        self._reopen()

    def _reopen(self) -> None:
        """Compute until when decisions may be made."""
        commits = self.commits
        if commits.fenced:
            self.open_until = 0.0
        elif commits.in_flight:
            self.open_until = min(self._deadline, commits.left + commits.policy.late_s)
        else:
            self.open_until = self._deadline

    async def read_map(self) -> None:
        """Read members and owners, at one revision."""
        found = await self.client.read(self.paths.map, end_of(self.paths.map))
        if found.revision > self.map.revision:
            self.map = read_map(self.paths, found)
            self._changed()

    # Background tasks

    async def keep_alive(self) -> None:
        """Renew the lease until it is gone."""
        while True:
            await asyncio.sleep(self._ttl / 5)
            sent = self._loop.time()
            try:
                alive = await self.client.keep_alive(self.lease, self._ttl / 4)
            except NotDone as error:
                log.warning("the lease of this node was not renewed: %s", error)
                continue
            if not alive:
                raise Fenced("the lease of this node has ended")
            self._renewed(sent)

    async def watch(self) -> None:
        """Trigger a read of the map whenever it changes, and now and then anyway."""
        while True:
            async for _ in self.client.watch(self.paths.map, self.map.revision):
                self.map_changed.set()
            self.map_changed.set()
            await asyncio.sleep(RETRY_S)

    async def commit(self) -> None:
        """Commit all changes, one commit after another."""
        commits, confirmed_waiters = self.commits, list[Any]()
        while True:
            due = commits.due(self._loop.time())
            if due is None or due > 0:
                self._resolve(confirmed_waiters)
                confirmed_waiters = []
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await self._wake.wait()
                continue
            left = commits.take_off(self._loop.time(), self.clock.now_us())
            self._reopen()
            sending = asyncio.ensure_future(self._send_entries()) if left else None
            self._resolve(
                confirmed_waiters
            )  # The next commit is in flight, so etcd does not idle meanwhile.
            try:
                if sending is not None:
                    await sending
            finally:
                if sending is not None:
                    sending.cancel()
            confirmed_waiters = commits.landed()
            self._reopen()
            self._changed()

    async def _send_entries(self) -> None:
        commits = self.commits
        while commits.entries:
            entry = commits.entries[0]
            await self._send(entry)
            commits.confirmed()
            self.confirmed = entry.sequence
        if self.meter.on_batch is not None:
            self.meter.on_batch(self._loop.time() - commits.left, commits.flying_events)

    async def _send(self, entry: Entry) -> None:
        """Send an entry until it is in etcd. Sending it twice is harmless."""
        name = self.name
        operations: list[Any] = [Put(self.paths.entry(name, entry.sequence), entry.value)]
        if entry.done < entry.base:
            # From the first existing entry, never from the start: etcd scans over deleted keys.
            first, end = (self.paths.entry(name, one) for one in (entry.done, entry.base))
            operations.append(Delete(first, end))
        while True:
            try:
                outcome = await self.client.transact([self.fence], operations, timeout=COMMIT_S)
            except TooLarge as error:
                raise Fenced(f"etcd does not take an entry: {error}") from error
            except Unsure:
                self.commits.unsure = True
            except NotDone as error:
                if not self._is_refused:
                    log.warning("a commit has to be sent again: %s", error)
                self._is_refused = True
                self.refused += isinstance(error, Rejected)
                await asyncio.sleep(RETRY_S)
            else:
                if outcome.succeeded:
                    self._is_refused = False
                    self.revision = outcome.revision
                    return
                raise Fenced("a commit was refused: this node is fenced")

    async def expire(self) -> None:
        """Fail requests that have waited for too long: their outcome is unknown."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            for future, _, _ in self.commits.expired(self._loop.time()):
                if not future.done():
                    error = unknown("the commit has no answer in time")
                    error.partial = self.others_work()
                    future.set_exception(error)

    # For decisions

    def is_open(self) -> bool:
        """Whether decisions may be made now."""
        return self.time() < self.open_until

    def confirm(self, value: Any, now: float, ends: float | None = None) -> Any:
        """The value, or a future of it that resolves when all it depends on is in etcd, or as the policy allows."""
        if self.commits.answers_now(now):
            if self.commits.events in (1, self.options.policy.flush_events):
                self._wake.set()
            return value
        future = self._loop.create_future()
        self.commits.wait(future, value, now + self.options.deadline if ends is None else ends)
        self._wake.set()
        return future

    def wake(self) -> None:
        """Check whether there is something to commit."""
        self._wake.set()

    @staticmethod
    def _resolve(confirmed_waiters: list[Waiter]) -> None:
        """Resolve the requests whose commit is confirmed."""
        for future, value, _ in confirmed_waiters:
            if not future.done():
                future.set_result(value)

    def end(self, why: str) -> None:
        """Stop deciding, and fail all waiting requests."""
        lost, unsure = self.commits.fence()
        self._reopen()
        for shard in self.shards.values():
            shard.serving = False
        self._changed()
        for future, _, _ in lost:
            if not future.done():
                future.set_exception(not_decided(why))
        for future, _, _ in unsure:
            if not future.done():
                future.set_exception(unknown(why))

    def gauges(self) -> dict[str, float]:
        """Values for operators, by the name of the metric."""
        commits, journal = self.commits, self.commits.journal
        in_flight_s = self._loop.time() - commits.left if commits.in_flight else 0.0
        return {
            "etcd_shards": sum(shard.serving for shard in self.shards.values()),
            "etcd_free_shards": sum(map(self.map.is_free, self.settings.numbers)),
            "etcd_members": len(self.map.members),
            "etcd_unconfirmed": commits.unconfirmed,
            "etcd_commit_age_seconds": round(in_flight_s, 6),
            "etcd_journal_entries": len(journal),
            "etcd_journal_rows": journal.rows,
        }
