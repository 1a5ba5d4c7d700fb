"""A master, its replicas, and the Sentinels that replace it when it dies."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from redis.exceptions import ResponseError
from tests.servers.process import HOST, free_ports
from tests.servers.redis.server import (
    RedisServer,
    Setting,
    common_settings,
    own_folder,
    wait_until_answered,
)

MASTER_NAME = "mymaster"


class Sentinel(RedisServer):
    """One Sentinel, with less patience than they have by themselves.

    By default it looks around every second or two. Here it does several times a second, so that the
    group is whole sooner, and a new master is not taken for dead before the first look at it.
    """

    options = ("--sentinel",)

    # A replica is not chosen if it was last asked longer ago than five PING periods, and while there
    # is no master it is asked once a second, whatever is said here.
    _PERIODS_MS: ClassVar = {
        "PING-PERIOD": 400,
        "PUBLISH-PERIOD": 200,
        "ASK-PERIOD": 200,
        "INFO-PERIOD": 1_000,
    }

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        super().start()
        for name, period_ms in self._PERIODS_MS.items():
            self.call("SENTINEL", "DEBUG", name, period_ms)


@dataclass(slots=True)
class SentinelGroup:
    """One master, two replicas, and three Sentinels that agree on who is the master."""

    nodes: list[RedisServer]
    sentinels: list[Sentinel]
    name: str = MASTER_NAME

    @property
    def url(self) -> str:
        """The address of the group: every Sentinel, and the name of the master."""
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}"

    @property
    def master(self) -> RedisServer:
        """The master in the eyes of the first Sentinel that runs."""
        sentinel = next(sentinel for sentinel in self.sentinels if sentinel.running)
        _, port = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return next(node for node in self.nodes if node.port == int(port))

    @property
    def replicas(self) -> list[RedisServer]:
        """The nodes beside the master."""
        master = self.master
        return [node for node in self.nodes if node is not master]

    def kill_master(self) -> RedisServer:
        """Crash the master and return it; `wait_for_master(other_than=…)` gives the next."""
        master = self.master
        master.kill()
        return master

    def fail_over(self) -> RedisServer:
        """Have the Sentinels replace a healthy master, and return the new one."""
        old = self.master
        for _ in range(2):  # On a busy machine, Sentinels can give it up half-way.
            with contextlib.suppress(ResponseError):  # It is at it already.
                self.sentinels[0].call("SENTINEL", "FAILOVER", self.name)
            with contextlib.suppress(TimeoutError):
                return self.wait_for_master(other_than=old, within_s=10.0)
        return self.wait_for_master(other_than=old)

    def wait_for_master(
        self, *, other_than: RedisServer | None = None, within_s: float = 20.0
    ) -> RedisServer:
        """Wait until every running Sentinel names the same new master and it takes writes."""

        def is_known() -> bool:
            master = self.master
            return master is not other_than and self._agreed() and master.is_master()

        wait_until_answered(is_known, "the Sentinels agree on a new master", within_s=within_s)
        return self.master

    def heal(self, *, within_s: float = 20.0) -> None:
        """Bring everything back that a test killed, stopped or demoted."""
        for server in [*self.nodes, *self.sentinels]:
            server.heal()
        wait_until_answered(self._settle, "everybody sees everybody", within_s=within_s)

    def _settle(self) -> bool:
        """Put every node in its place and say whether nothing is left to do.

        A master that comes back is left alone by the Sentinels for ten seconds; no test waits so
        long for what it does not test.
        """
        if not self._agreed():
            return False
        master = self.master
        if not master.is_master():
            master.follow(None)
        for replica in self.replicas:
            if replica.info("replication").get("master_port") != str(master.port):
                replica.follow(master)
        return self._is_whole()

    def flush(self) -> None:
        """Remove every key, script and function."""
        self.master.flush()
        for replica in self.replicas:
            replica.flush_scripts()

    def _agreed(self) -> bool:
        named = {
            tuple(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name))
            for sentinel in self.sentinels
            if sentinel.running
        }
        return len(named) == 1

    def _is_whole(self) -> bool:
        if not all(replica.in_sync() for replica in self.replicas):
            return False
        for sentinel in self.sentinels:
            seen = _pairs(sentinel.call("SENTINEL", "MASTER", self.name))
            replicas = sentinel.call("SENTINEL", "REPLICAS", self.name)
            whole = (
                seen["flags"] == "master"
                and seen["num-other-sentinels"] == str(len(self.sentinels) - 1)
                and [_pairs(replica)["flags"] for replica in replicas] == ["slave", "slave"]
            )
            if not whole:
                return False
        return True


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextlib.contextmanager
def sentinel(flavour: str, *, source: str = "", **config: Setting) -> Iterator[SentinelGroup]:
    """A master, two replicas and three Sentinels; a dead master is replaced in about two seconds.

    With a `source` they connect to each other from that address, and not from the one of all other clients.
    """
    if source:
        config |= {"bind-source-addr": source, "replica-announce-ip": HOST, "protected-mode": "no"}
    with contextlib.ExitStack() as stack:
        ports = free_ports(6)
        nodes: list[RedisServer] = []
        for port in ports[:3]:
            folder = own_folder(stack)
            settings = common_settings(port, folder, config)
            if nodes:
                settings["replicaof"] = f"{HOST} {nodes[0].port}"
            node = RedisServer(flavour, folder, port=port, settings=settings.items())
            nodes.append(stack.enter_context(node))
        sentinels: list[Sentinel] = []
        for port in ports[3:]:
            folder = own_folder(stack)
            told = [
                f"monitor {MASTER_NAME} {HOST} {nodes[0].port} 2",
                f"down-after-milliseconds {MASTER_NAME} 1000",
                f"failover-timeout {MASTER_NAME} 5000",
                f"parallel-syncs {MASTER_NAME} 1",
            ]
            settings = {"port": port, "bind": HOST, "dir": str(folder), "sentinel": told}
            if source:
                settings |= {"bind-source-addr": source, "protected-mode": "no"}
                told.append(f"announce-ip {HOST}")
            watcher = Sentinel(flavour, folder, port=port, settings=settings.items())
            sentinels.append(stack.enter_context(watcher))
        group = SentinelGroup(nodes, sentinels)
        wait_until_answered(group._is_whole, "everybody sees everybody")
        yield group
