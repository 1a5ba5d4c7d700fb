"""A Cluster: masters that share the slots, a replica of each, and slots that move."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.servers.process import HOST, free_ports
from tests.servers.redis.server import (
    RedisServer,
    Setting,
    common_settings,
    own_folder,
    wait_until_answered,
)

SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class _Seen:
    """One line of CLUSTER NODES: a node as another one sees it."""

    id: str
    port: int
    flags: frozenset[str]
    master_id: str
    linked: bool
    slots: tuple[range, ...]
    moving: tuple[int, ...]  # Slots on their way to or from it; only a node itself tells.

    @classmethod
    def parse(cls, line: str) -> "_Seen":
        node_id, address, flags, master_id, _, _, _, link, *slots = line.split()
        ranges = [slot.split("-") for slot in slots if not slot.startswith("[")]
        moving = [slot[1:].split("-")[0] for slot in slots if slot.startswith("[")]
        return cls(
            id=node_id,
            port=int(address.partition("@")[0].rpartition(":")[2]),
            flags=frozenset(flags.split(",")),
            master_id=master_id,
            linked=link == "connected",
            slots=tuple(range(int(ends[0]), int(ends[-1]) + 1) for ends in ranges),
            moving=tuple(map(int, moving)),
        )


@dataclass(slots=True)
class Cluster:
    """Three masters that share the slots, and a replica of each."""

    nodes: list[RedisServer]
    _ids: dict[int, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of the Cluster: every node."""
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    @property
    def masters(self) -> list[RedisServer]:
        """The masters that run, in the order of `nodes`."""
        seen = {one.port for one in self._seen() if "master" in one.flags}
        return [node for node in self.nodes if node.running and node.port in seen]

    def slot(self, key: str | bytes) -> int:
        """The slot of a key."""
        return int(self._witness.call("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> RedisServer:
        """The node that owns a slot in the eyes of the first node that runs."""
        port = next(one.port for one in self._seen() if any(slot in part for part in one.slots))
        return self._at(port)

    def replica_of(self, master: RedisServer) -> RedisServer:
        """The replica of a master."""
        master_id = self.id_of(master)
        return self._at(next(one.port for one in self._seen() if one.master_id == master_id))

    def id_of(self, node: RedisServer) -> str:
        """The name by which the Cluster knows a node, running or not."""
        if node.port not in self._ids:
            self._ids[node.port] = node.call("CLUSTER", "MYID")
        return self._ids[node.port]

    def kill_owner(self, slot: int) -> RedisServer:
        """Crash the owner of a slot and return it; `wait_for_owner` gives the next."""
        owner = self.owner(slot)
        owner.kill()
        return owner

    def fail_over(self, slot: int) -> RedisServer:
        """Swap the owner of a slot and its replica, losing nothing; return the new owner."""
        old = self.owner(slot)
        self.replica_of(old).call("CLUSTER", "FAILOVER")
        return self.wait_for_owner(slot, other_than=old)

    def wait_for_owner(
        self, slot: int, *, other_than: RedisServer | None = None, within_s: float = 10.0
    ) -> RedisServer:
        """Wait until every running node sends a client for `slot` to the same new owner."""
        unwanted = other_than.port if other_than else None

        def is_known() -> bool:
            owners = {
                one.port
                for node in self.nodes
                if node.running
                for one in self._seen(node)
                if any(slot in part for part in one.slots)
            }
            return len(owners) == 1 and unwanted not in owners

        wait_until_answered(is_known, f"slot {slot} has a new owner", within_s=within_s)
        return self.owner(slot)

    def begin_move(self, slot: int, target: RedisServer) -> "SlotMove":
        """Start to move a slot to another master; the test says how far it goes, and when."""
        return SlotMove(self, slot, self.owner(slot), target)

    def move_slot(self, slot: int, target: RedisServer) -> None:
        """Move a slot with its keys to another master, while clients use it."""
        move = self.begin_move(slot, target)
        while move.move_keys(10):
            pass
        move.finish()

    def heal(self, *, within_s: float = 20.0) -> None:
        """Bring back everything that a test killed or stopped, and call off moves of slots."""
        for node in self.nodes:
            node.heal()
        wait_until_answered(self._is_whole, "the Cluster is whole", within_s=within_s)
        for node in self.masters:
            for slot in next(one.moving for one in self._seen(node) if "myself" in one.flags):
                node.call("CLUSTER", "SETSLOT", slot, "STABLE")

    def flush(self) -> None:
        """Remove every key, script and function."""
        for master in self.masters:
            master.flush()
            self.replica_of(master).flush_scripts()

    @property
    def _witness(self) -> RedisServer:
        return next(node for node in self.nodes if node.running)

    def _at(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == port)

    def _seen(self, by: RedisServer | None = None) -> list[_Seen]:
        lines = (by or self._witness).call("CLUSTER", "NODES").splitlines()
        return [_Seen.parse(line) for line in lines]

    def _is_whole(self) -> bool:
        return all(self._sees_all(node) for node in self.nodes)

    def _sees_all(self, node: RedisServer) -> bool:
        """Whether a node follows or is followed, and finds nobody missing and no slot unowned."""
        seen = self._seen(node)
        followed = {one.master_id for one in seen if "slave" in one.flags}
        masters = {one.id for one in seen if "master" in one.flags}
        return (
            len(seen) == len(self.nodes)
            and all(one.linked and not one.flags & _TROUBLE for one in seen)
            and sum(len(part) for one in seen for part in one.slots) == SLOTS
            and followed == masters
            and "cluster_state:ok" in node.call("CLUSTER", "INFO")
            and (node.is_master() or node.in_sync())
        )


_TROUBLE = frozenset({"fail", "fail?", "handshake", "noaddr"})


class SlotMove:
    """A slot on its way: clients get ASK from the source for the keys that have left it."""

    def __init__(
        self, cluster: Cluster, slot: int, source: RedisServer, target: RedisServer
    ) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = source
        self.target = target
        # In this order: a client sent on by the source must find the door open.
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))

    def move_keys(self, count: int) -> int:
        """Move up to `count` keys and return how many there were to move."""
        keys = self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if keys:
            target = (HOST, self.target.port, "", 0, 5_000)
            self.source.call("MIGRATE", *target, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Give the slot to the target; from now on the source answers MOVED."""
        owner = self.cluster.id_of(self.target)
        others = [node for node in self.cluster.masters if node not in {self.source, self.target}]
        # The target first: should this stop half-way, the slot has an owner all the same.
        for node in [self.target, self.source, *others]:
            node.call("CLUSTER", "SETSLOT", self.slot, "NODE", owner)


@contextlib.contextmanager
def cluster(flavour: str, **config: Setting) -> Iterator[Cluster]:
    """Three masters and a replica of each; a dead master is replaced in about two seconds."""
    with contextlib.ExitStack() as stack:
        nodes: list[RedisServer] = []
        for port in free_ports(6):
            folder = own_folder(stack)
            settings = common_settings(port, folder, config) | {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": 1000,
                "cluster-require-full-coverage": "no",
                "cluster-allow-replica-migration": "no",  # Who follows whom is for tests to know.
            }
            node = RedisServer(flavour, folder, port=port, settings=settings.items())
            nodes.append(stack.enter_context(node))
        group = Cluster(nodes)
        _join(group)
        wait_until_answered(group._is_whole, "the Cluster is whole")
        yield group


def _join(group: Cluster) -> None:
    """Do what `redis-cli --cluster create` does; not every flavour comes with one."""
    masters, replicas = group.nodes[:3], group.nodes[3:]
    bounds = [SLOTS * part // len(masters) for part in range(len(masters) + 1)]
    for epoch, (master, first, end) in enumerate(zip(masters, bounds, bounds[1:], strict=False), 1):
        master.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        master.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    # Everybody meets everybody at once, where gossip would take its time.
    for index, node in enumerate(group.nodes):
        for other in group.nodes[index + 1 :]:
            node.call("CLUSTER", "MEET", HOST, other.port)

    def all_met() -> bool:
        return all(
            len(seen) == len(group.nodes)
            and all(one.linked and not one.flags & _TROUBLE for one in seen)
            for seen in map(group._seen, group.nodes)
        )

    wait_until_answered(all_met, "the nodes have met")
    for replica, master in zip(replicas, masters, strict=True):
        replica.call("CLUSTER", "REPLICATE", group.id_of(master))
