"""The faults of the campaign, by their numbers: what is broken, for how long, and how it is mended.

Each is a function that is given a fleet and a generator of random numbers. It breaks something, waits, mends it, and
returns when it is mended; what it calls itself in the history, and how many nodes it cuts off, is said with it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from tests.faults.campaign.terms import USUAL
from tests.servers.network import OTHER_SIDE
from tests.servers.process import wait_until
from tests.servers.redis.server import wait_until_answered

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.faults.campaign.fleet import Fleet
    from tests.faults.campaign.terms import FaultTerms

MAX_LAG_S = 4
"""How long a master without its replicas takes writes where a split is tested: longer than it takes to replace it."""


@dataclass(frozen=True)
class RealFault:
    """One fault."""

    number: str
    words: str
    act: Callable[[Fleet, random.Random], dict[str, Any] | list[dict[str, Any]] | None]
    """Breaks and mends; returns what else is to be said of it: which node it was, how far a clock stepped. A list, if
    it is several faults."""
    topology: str = "standalone"
    kind: str = "store_down"
    nodes: int | None = None
    """How many nodes it cuts off; all of them if this is not said."""
    terms: FaultTerms = USUAL
    """What is asked of its runs besides the promise."""
    settings: tuple[tuple[str, Any], ...] = ()
    engine: str = ""
    """Options in the URL that nodes reach the store by."""
    by_name: bool = False
    """Whether that URL has a name in it that has to be looked up."""
    policy: str = "fallback"
    """Who answers when the store does not."""

    @property
    def needs(self) -> tuple[str, str, str, bool, str]:
        """What a fleet has to be like; faults that need the same can have the same one."""
        return self.topology, repr(self.settings), self.engine, self.by_name, self.policy


FAULTS: dict[str, RealFault] = {}


def fault(number: str, words: str, **more: Any) -> Callable[[Any], Any]:
    """Put a fault into the catalogue."""

    def put(act: Any) -> Any:
        FAULTS[number] = RealFault(number, words, act, **more)
        return act

    return put


def hold(seconds: float) -> None:
    time.sleep(seconds)  # So long the fault lasts.


# The store.


@fault("F1", "Redis killed, back without its state", kind="store_restart")
def killed_empty(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.kill()
    hold(rng.uniform(0.5, 2.0))
    fleet.store.start()


@fault("F2", "Redis killed, back from its append-only file (everysec, always)", kind="store_kept",
       settings=(("appendonly", "yes"),))  # fmt: skip
def killed_kept(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.config_set(appendfsync=rng.choice(("everysec", "always")))
    hold(0.1)
    fleet.store.kill()
    hold(rng.uniform(0.5, 1.5))
    fleet.store.start()


@fault("F3", "Redis stopped for 1 to 5 s")
def stopped(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.stop()
    hold(rng.choice((1.0, 2.0, 5.0)))
    fleet.store.resume()


@fault("F4", "Redis slow: 2, 20 and 200 ms more each way", kind="store_slow")
def slow(fleet: Fleet, rng: random.Random) -> None:
    for delay_s in rng.sample((0.002, 0.02, 0.2), 3):
        for link in fleet.links:
            link.delay_s = delay_s
        hold(0.7)
    for link in fleet.links:
        link.delay_s = 0.0


@fault("F5", "another client's script that does not end (BUSY)")
def busy(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.config_set(busy_reply_threshold=50)

    def spin() -> None:
        with contextlib.suppress(RedisError):
            fleet.store.call("EVAL", "while true do end", 0)

    spinner = threading.Thread(target=spin)
    spinner.start()
    hold(rng.uniform(1.0, 2.0))
    other = type(fleet.store.client)(host="127.0.0.1", port=fleet.store.port)
    other.execute_command("SCRIPT", "KILL")  # type: ignore[no-untyped-call] # It is.
    other.close()
    spinner.join()


@fault("F6", "DEBUG SLEEP for 1 to 3 s")
def asleep(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.call("DEBUG", "SLEEP", rng.choice((1, 2, 3)))


@fault("F7", "functions and scripts flushed, every 50 ms", kind="other")
def flushed(fleet: Fleet, rng: random.Random) -> None:
    for _ in range(rng.randint(10, 25)):
        fleet.store.flush_functions()
        fleet.store.flush_scripts()
        hold(0.05)


@fault("F8", "memory full, nothing may be evicted")
def out_of_memory(fleet: Fleet, rng: random.Random) -> None:
    fleet.store.config_set(maxmemory="1mb", maxmemory_policy="noeviction")
    hold(rng.uniform(1.0, 2.0))
    fleet.store.config_set(maxmemory="0")


@fault("F9", "keys are evicted that are in use (allkeys-lru)", kind="store_restart")
def evicted(fleet: Fleet, _: random.Random) -> None:
    """Once: what is evicted again and again is forgotten again and again, and nobody promises anything for that."""
    store = fleet.store
    before = int(store.info("stats")["evicted_keys"])
    store.config_set(maxmemory="8mb", maxmemory_policy="allkeys-lru")
    script = "for i = 1, 2000 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, ARGV[2]) end"
    part = 0
    while int(store.info("stats")["evicted_keys"]) - before < 5_000:
        store.call("EVAL", script, 0, part, "x" * 200)
        part += 1
    store.config_set(maxmemory="0", maxmemory_policy="noeviction")
    store.call(
        "EVAL",
        "for _, key in ipairs(redis.call('KEYS', 'filler:*')) do redis.call('DEL', key) end",
        0,
    )


@fault("F10", "Redis killed, back with 100,000 keys to load (LOADING)", kind="store_kept",
       settings=(("appendonly", "yes"),))  # fmt: skip
def loading(fleet: Fleet, rng: random.Random) -> None:
    script = (
        "for i = 1, 2000 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, i, 'EX', 600) end"
    )
    for part in range(50):
        fleet.store.call("EVAL", script, 0, part)
    fleet.store.kill()
    hold(rng.uniform(0.2, 0.5))
    fleet.store.start()


@fault("F11", "the disk is full: writes are refused (MISCONF)")
def disk_full(fleet: Fleet, rng: random.Random) -> None:
    store = fleet.store
    store.config_set(stop_writes_on_bgsave_error="yes", save="3600 1")
    folder = store.call("CONFIG", "GET", "dir")[1]
    blocked = Path(folder) / "dump.rdb"
    blocked.unlink(missing_ok=True)
    blocked.mkdir()  # The file cannot be put in the place of a folder, as it cannot on a full disk.
    store.call("BGSAVE")
    wait_until(
        lambda: store.info("persistence").get("rdb_last_bgsave_status") == "err", "saving fails"
    )
    hold(rng.uniform(1.0, 2.0))
    blocked.rmdir()
    store.call("BGSAVE")
    wait_until(
        lambda: store.info("persistence").get("rdb_last_bgsave_status") == "ok", "saving works"
    )


@fault("F20", "no connections left (maxclients), and all of them reset", kind="store_down")
def no_clients(fleet: Fleet, rng: random.Random) -> None:
    before = fleet.store.call("CONFIG", "GET", "maxclients")[1]
    fleet.store.config_set(maxclients=1)
    for link in fleet.links:
        link.reset()
    hold(rng.uniform(1.0, 2.0))
    fleet.store.config_set(maxclients=before)


# Sentinel and Cluster.


@fault(
    "F12",
    "a master that is demoted while nodes are connected (READONLY)",
    topology="sentinel",
    kind="failover",
)
def demoted(fleet: Fleet, _: random.Random) -> None:
    assert fleet.sentinels is not None
    old = fleet.sentinels.master
    fleet.sentinels.fail_over()
    # Until the Sentinels tell it, the old master takes writes, too, and those are lost.
    wait_until_answered(lambda: not old.is_master(), "the old master is one no more", within_s=30.0)


@fault("F13", "the master dies, and Sentinel replaces it", topology="sentinel", kind="failover")
def master_killed(fleet: Fleet, _: random.Random) -> None:
    assert fleet.sentinels is not None
    old = fleet.sentinels.kill_master()
    fleet.sentinels.wait_for_master(other_than=old, within_s=30.0)


@fault(
    "F14",
    "the master is cut off from Sentinels and replicas, and nodes are on both sides",
    topology="split sentinel",
    kind="failover",
    settings=(("min_replicas_to_write", 1), ("min_replicas_max_lag", MAX_LAG_S)),
)
def split(fleet: Fleet, rng: random.Random) -> None:
    """A new master is chosen while the old one still takes writes, for as long as its replicas may be late."""
    assert fleet.sentinels is not None
    assert fleet.network is not None
    old = fleet.sentinels.master
    fleet.network.cut(OTHER_SIDE, old.port)
    fleet.sentinels.wait_for_master(other_than=old, within_s=30.0)
    for line in rng.sample(old.call("CLIENT", "LIST", "TYPE", "normal").splitlines(), 2):
        address = dict(word.split("=", 1) for word in line.split())["addr"]
        with contextlib.suppress(RedisError):  # It has just ended, or was ours.
            old.call("CLIENT", "KILL", "ADDR", address)
    hold(rng.uniform(0.5, 2.0))
    fleet.network.mend()
    wait_until_answered(lambda: not old.is_master(), "the old master is one no more", within_s=30.0)


@fault(
    "F15",
    "one Sentinel of three dies, and then the master is demoted",
    topology="sentinel",
    kind="failover",
)
def sentinel_killed(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.sentinels is not None
    rng.choice(fleet.sentinels.sentinels[1:]).kill()
    demoted(fleet, rng)


@fault(
    "F16",
    "a master of a Cluster dies, and its replica takes over",
    topology="cluster",
    kind="failover",
)
def owner_killed(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.cluster is not None
    slot = rng.randrange(16_384)
    old = fleet.cluster.kill_owner(slot)
    fleet.cluster.wait_for_owner(slot, other_than=old, within_s=30.0)


@fault(
    "F18",
    "Cluster slots without a server: a master and its replica die",
    topology="cluster",
    kind="store_kept",
)
def uncovered(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.cluster is not None
    owner = fleet.cluster.owner(rng.randrange(16_384))
    replica = fleet.cluster.replica_of(owner)
    replica.stop()
    owner.stop()
    hold(rng.uniform(1.0, 2.0))
    fleet.cluster.heal()


# Last on a Cluster: a replica may not have heard of the moves, so one that takes over may claim slots that have gone.
@fault("F17", "slots move between masters of a Cluster", topology="cluster", kind="other")
def resharded(fleet: Fleet, rng: random.Random) -> None:
    assert fleet.cluster is not None
    for _ in range(20):
        slot = rng.randrange(16_384)
        owner = fleet.cluster.owner(slot)
        target = rng.choice([one for one in fleet.cluster.masters if one is not owner])
        fleet.cluster.move_slot(slot, target)


# The way between a node and the store.


@fault("F21", "connections reset, half closed, and torn into single bytes", kind="partition")
def torn(fleet: Fleet, rng: random.Random) -> None:
    for _ in range(6):
        link = rng.choice(fleet.links)
        match rng.randrange(3):
            case 0:
                link.reset()
            case 1:
                with contextlib.suppress(OSError):  # One of them has just ended by itself.
                    link.half_close()
            case _:
                link.slice_bytes = 1
        hold(0.25)
    for link in fleet.links:
        link.slice_bytes = 65_536


@fault(
    "F22", "one node cut off: both ways, one way, and coming and going", kind="partition", nodes=1
)
def cut_off(fleet: Fleet, rng: random.Random) -> dict[str, Any]:
    node = rng.choice(fleet.nodes)
    link = node.link
    assert link is not None
    match rng.randrange(3):
        case 0:
            link.blackhole()
            hold(rng.uniform(1.0, 2.0))
        case 1:
            link.drop_replies = True
            hold(rng.uniform(1.0, 2.0))
        case _:
            for _ in range(5):
                link.blackhole()
                hold(0.2)
                link.mend()
                hold(0.2)
    link.mend()
    return {"node": node.name}


@fault(
    "F41", "the name of the store cannot be looked up: failures, and no answer for seconds", kind="partition",
    by_name=True,
)  # fmt: skip
def unnamed(fleet: Fleet, rng: random.Random) -> None:
    for trouble in rng.sample(("fails", "silent"), 2):
        fleet.name_server.write_text(trouble)
        for link in fleet.links:
            link.reset()
        hold(1.0)
    fleet.name_server.write_text("")
