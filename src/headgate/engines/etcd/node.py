"""A node on one etcd cluster: joins, joins again after it was fenced, and leaves.

Everything here runs in one event loop, the one in which the engine is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import random
import secrets
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from ...errors import ConfigError, EngineConnectionError, EngineError
from .client import AsyncEtcdClient
from .cluster_clock import TimeAnswer, ahead_us
from .history import CompactionPlan
from .incarnation import ClusterHandle, Fenced, Incarnation, not_decided
from .ownership import Ownership
from .peer_watch import PeerWatch
from .records import SECRET_BYTES, ClusterSettings, Paths
from .transactions import CreatedAt, NotDone, Put, Unsure

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...clock import Clock
    from ..meter import Meter
    from .cluster_clock import ClusterClock
    from .options import EtcdOptions
    from .peers import PeerLinks
    from .records import Member
    from .shard import Shard
    from .transactions import Store

SHARDS: Final = 64
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5
ALONE: Final = "alone"
"""The address of a node that other nodes cannot reach."""
UNREACHABLE: Final = ("", ALONE)
LEAVE_S: Final = 5.0
"""How long leaving may take; after that the others detect it."""
SWEEP_S: Final = 1.0
TIME_S: Final = 30.0
"""How often the oldest node is asked for the time."""
TIME_TRIES: Final = 5
WARN_LEAD_US: Final = 500_000
WARN_AGAIN_S: Final = 60.0
log = logging.getLogger("headgate.etcd")


class Bell:
    """Wakes all tasks that wait for a change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Signal a change."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait for the next change, for at most `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


class Common(NamedTuple):
    """What the nodes of one process share; there is one node per etcd cluster."""

    clock: Clock
    cluster_clock: ClusterClock | None
    """The same clock, if it can be adjusted."""
    serving: list[Shard | None]
    """The shards that this process decides, by number; empty until their number is known."""
    changed: Bell
    meter: Meter


class EtcdNode:
    """This process on one etcd cluster. With several, the node on the first agrees on settings and keeps the time."""

    def __init__(
        self,
        options: EtcdOptions,
        common: Common,
        connect: Callable[[EtcdOptions], Store] = AsyncEtcdClient,
        *,
        first: EtcdNode | None = None,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.options = options
        self.clock, self._cluster_clock, self.serving, self.changed, self.meter = common
        self.settings: ClusterSettings | None = None
        """The settings of the cluster; `None` until etcd has answered."""
        self.others_work: Callable[[], bool] = lambda: False
        """Whether another etcd cluster accepts commits, so that a failure here affects only some keys."""
        self._first = first
        self._part, self._parts = part, parts
        self.own: Incarnation | None = None
        self.ownership: Ownership | None = None
        self.problem: Exception | None = None
        """Why it is not a member."""
        self._connect = connect
        self._client: Store | None = None
        self._task: asyncio.Task[None] | None = None
        self._paths = Paths(options.cluster)
        self._leaving = False
        self._peers: PeerLinks | None = None
        self._peer_watch: PeerWatch | None = None
        self._warned = 0.0
        self._incarnations = 0
        self._refused = 0
        """Commits that etcd refused in earlier incarnations."""

    @property
    def _address(self) -> str:
        """Where others reach it, as announced to them."""
        return (self.options.listen or ALONE) if self.options.owns else ""

    def gauges(self) -> dict[str, float]:
        """Values for operators, by the name of the metric."""
        own = self.own
        found: dict[str, float] = {
            "etcd_joined_total": self._incarnations,
            "etcd_refused_total": self._refused + (0 if own is None else own.refused),
        }
        return found if own is None else found | own.gauges()

    def start(self) -> None:
        """Join in the background; does nothing if that is under way."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._task.get_loop() is not asyncio.get_running_loop():
            raise EngineError(
                "an etcd engine belongs to the event loop in which it was first used",
                transient=False,
            )

    async def ready(self, ends: float) -> Incarnation:
        """Wait until this node is a member."""
        self.start()
        loop = asyncio.get_running_loop()
        while self.own is None:
            if self._leaving:
                raise EngineError("the etcd engine is closed", transient=False)
            if isinstance(self.problem, ConfigError):
                raise EngineError(str(self.problem), transient=False) from self.problem
            if loop.time() >= ends:
                raise self.unreachable()
            await self.changed.wait(ends - loop.time())
        return self.own

    def unreachable(self) -> EngineError:
        """The error that nothing was decided, because this node is not a member or the shard has no owner."""
        if self.problem is None:
            return not_decided("nobody owns the key's shard yet")
        error = EngineConnectionError(
            f"no answer from {self.options} ({self.problem}); nothing was charged", transient=True
        )
        error.partial = self.others_work()
        return error

    async def _run(self) -> None:
        """Stay a member until this node leaves, under a new name after each fencing."""
        client = self._client = self._connect(self.options)
        pause = FIRST_PAUSE_S
        while not self._leaving:
            try:
                settings = await self._agree(client)
                await self._live(
                    ClusterHandle(
                        client, self.options, self._paths, settings, self.clock, self.meter
                    )
                )
                pause = FIRST_PAUSE_S
            except (NotDone, Unsure, ConfigError) as error:
                self.problem = error
                log.warning("this node is not in the cluster: %s", error)
            except Fenced as error:
                log.warning("this node has to join again: %s", error)
            self.changed.ring()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _agree(self, client: Store) -> ClusterSettings:
        """Read the settings of the cluster; the first node writes them."""
        if self.settings is not None:
            return self.settings
        key = self._paths.settings
        wanted, place = self.options.shards, (self._part, self._parts)
        if self._first is None:
            mine = ClusterSettings(wanted or SHARDS, secrets.token_bytes(SECRET_BYTES), *place)
        elif self._first.settings is None:
            raise NotDone("the first etcd cluster does not have its settings yet")
        else:
            mine = self._first.settings._replace(part=self._part)
        await client.transact([CreatedAt(key, 0)], [Put(key, mine.encode())])
        found = await client.read(key)
        settings = ClusterSettings.decode(found.items[0].value)
        if (settings.part, settings.parts) != place or (self._first and settings != mine):
            raise ConfigError(
                f"{self.options} was number {settings.part + 1} of {settings.parts} etcd clusters, or belongs to "
                "others than now; name all of them in the same order everywhere, or name another cluster"
            )
        if wanted not in (None, settings.shards):
            raise ConfigError(
                f"the cluster has {settings.shards} shards, not {wanted} as this node's options say; "
                "leave the option out, or name another cluster"
            )
        if settings.shards < self._parts:
            raise ConfigError(
                f"{settings.shards} shards cannot be divided among {self._parts} etcd clusters; "
                "ask for more shards"
            )
        if self._first is None:
            self.serving[:] = [None] * settings.shards
        self.settings = settings
        return settings

    async def _live(self, cluster: ClusterHandle) -> None:
        """One incarnation, from joining to its end."""
        own = Incarnation(cluster, self.changed.ring)
        own.others_work = self.others_work
        await own.join(socket.gethostname(), self._address)
        addresses = [one.address for one in own.map.members.values()]
        if len(addresses) > 1 and ALONE in addresses:
            await own.client.revoke(own.lease)
            raise NotDone(
                "a node without an address is in charge; this one takes over when it ends"
            )
        if self._cluster_clock is not None and self._first is None:
            await self._ask_time(own, self._cluster_clock, at_once=not any(self.serving))
        ownership = Ownership(own, self.serving, self.changed.ring, self._cluster_clock)
        self.own, self.ownership, self.problem = own, ownership, None
        self._incarnations += 1
        self.changed.ring()
        why = "this node was fenced"
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in (
                    own.keep_alive(),
                    own.watch(),
                    own.commit(),
                    own.expire(),
                    ownership.tend(),
                    self._keep_house(own, ownership),
                    self._watch_peers(own),
                    self._keep_time(own),
                ):
                    tasks.create_task(work)
        except BaseExceptionGroup as group:
            fenced = group.subgroup(Fenced)
            if fenced is None:
                log.exception("this node has to join again, because of a bug")
                raise Fenced(str(group.exceptions[0])) from group
            why = str(fenced.exceptions[0])
            raise Fenced(why) from group
        finally:
            self.own = self.ownership = None
            self._refused += own.refused
            for number in cluster.settings.numbers:
                self.serving[number] = None
            own.end(why)

    async def _keep_house(self, own: Incarnation, ownership: Ownership) -> None:
        """Drop idle states, and compact etcd's history."""
        loop = asyncio.get_running_loop()
        history = CompactionPlan(self.options.compact, loop.time())
        while True:
            await asyncio.sleep(SWEEP_S)
            ownership.sweep()
            if self._peers is not None:
                await self._peers.forget(own.map.members)
            history.note(loop.time(), own.revision)
            old = history.due(loop.time())
            if old and own.settings.part in own.shards:
                with contextlib.suppress(NotDone, Unsure):
                    await own.client.compact(old)

    async def _watch_peers(self, own: Incarnation) -> None:
        """Take over from nodes whose process has died, without waiting for the end of their lease."""
        if not self.options.listen:
            return
        watch = self._peer_watch = self._peer_watch or PeerWatch(self.peers.tls)
        watches: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                members = own.map.members
                for name in [name for name in watches if name not in members]:
                    watches.pop(name).cancel()
                for name, member in members.items() if self.options.fence_dead_peers else ():
                    if (
                        name not in watches
                        and name != own.name
                        and member.address not in UNREACHABLE
                    ):
                        work = watch.watch(own, member)
                        watches[name] = asyncio.get_running_loop().create_task(work)
                await self.changed.wait(SWEEP_S)
        finally:
            for task in watches.values():
                task.cancel()
            await asyncio.gather(*watches.values(), return_exceptions=True)

    async def _keep_time(self, own: Incarnation) -> None:
        """Follow the clock of the oldest node; that one follows its machine's wall clock."""
        clock = self._cluster_clock
        if clock is None or self._first is not None:
            return
        asked_of, asked_at = "", 0.0
        loop = asyncio.get_running_loop()
        while True:
            oldest = _oldest(own)
            if oldest.incarnation == own.name:
                clock.follow_wall()
            elif oldest.incarnation != asked_of or loop.time() - asked_at > TIME_S:
                asked_of, asked_at = oldest.incarnation, loop.time()
                await self._ask_time(own, clock)
            if abs(clock.lead_us) > WARN_LEAD_US and loop.time() - self._warned > WARN_AGAIN_S:
                self._warned = loop.time()
                log.warning(
                    "this machine's clock and the cluster's differ by %.1f s", clock.lead_us / 1e6
                )
            await asyncio.sleep(SWEEP_S)

    async def _ask_time(
        self, own: Incarnation, clock: ClusterClock, *, at_once: bool = False
    ) -> None:
        """Set the clock by the oldest node, or by the next one if that does not answer."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.options.ttl / 2  # A joining node does not renew its lease yet.
        for member in sorted(_owners(own), key=lambda one: one.created):
            if member.incarnation == own.name or loop.time() > ends:
                return  # Younger nodes follow this one.
            answers = await self._answers(member, clock)
            if answers:
                to_us = clock.now_us() + ahead_us(answers)
                (clock.jump_to if at_once else clock.slew_to)(to_us)
                return

    async def _answers(self, member: Member, clock: ClusterClock) -> list[TimeAnswer]:
        """Ask another node for the time, a few times."""
        answers: list[TimeAnswer] = []
        try:
            for _ in range(TIME_TRIES if member.address not in UNREACHABLE else 0):
                there_us = await self.peers.engine(member).time_us()
                answers.append(TimeAnswer(there_us, clock.now_us()))
        except EngineError as error:
            log.info("could not read the clock of %s: %s", member.incarnation, error)
        return answers

    @property
    def peers(self) -> PeerLinks:
        """The other nodes, as engines."""
        if self._peers is None:
            try:
                module = importlib.import_module("headgate.engines.etcd.peers")
            except ModuleNotFoundError as error:
                if error.name != "hiredis":
                    raise
                raise ConfigError(
                    "several nodes need an extra: pip install 'headgate[redis]'"
                ) from error
            links: PeerLinks = module.PeerLinks(self.options)
            self._peers = links
        return self._peers

    async def hand_over(self) -> None:
        """Let other nodes take over this node's shards, and ask them from now on; does nothing if there are none."""
        own = self.own
        if own is None or not any(
            member.address for name, member in own.map.members.items() if name != own.name
        ):
            return
        with contextlib.suppress(NotDone, Unsure):
            await own.withdraw_address()
            await self._drain(own)

    async def _drain(self, own: Incarnation) -> None:
        """Release every shard, with a time limit."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + LEAVE_S
        if self.ownership is not None:
            self.ownership.draining = True
        own.map_changed.set()
        while own.shards and self.own is own and loop.time() < ends:
            await self.changed.wait(ends - loop.time())

    async def leave(self) -> None:
        """Hand everything over, and leave."""
        self._leaving = True
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            return
        own = self.own
        if own is not None:
            await self._drain(own)
            with contextlib.suppress(NotDone, Unsure):
                await own.client.revoke(own.lease)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.changed.ring()
        if self._peers is not None:
            await self._peers.close()
        if self._client is not None:
            await self._client.close()


def _oldest(own: Incarnation) -> Member:
    """The oldest of the nodes that can own shards."""
    return min(_owners(own), key=lambda member: member.created, default=own.member)


def _owners(own: Incarnation) -> list[Member]:
    return [member for member in own.map.members.values() if member.address]
