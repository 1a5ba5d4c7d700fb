"""Members and owners: the records under `/headgate/<cluster>/`.

    cfg               what all nodes must agree on: format, number of shards, the secret of the hash
    m/n/<incarnation> a node, with its lease: its address
    m/s/<shard>       a shard: its holder, its epoch, and the other journals that contain its states
    j/<inc>/<number>  one commit of a node: see `entries`

An incarnation is a node from one join to its end, and its name is never reused. Every claim raises a shard's epoch, and
each row of a journal carries it, to tell rows of an earlier tenure from current ones. A released shard has no holder;
its last holder is the last of its sources.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .transactions import Found

FORMAT: Final = 1
SPREAD_FORMAT: Final = 2
"""For clusters whose shards are on several etcd clusters: nodes that do not support it must not join."""
SECRET_BYTES: Final = 16
SEQUENCE_DIGITS: Final = 12


class Tenure(NamedTuple):
    """One node's time with a shard: the journal, and the epoch of its rows there."""

    incarnation: str
    epoch: int


class ShardRecord(NamedTuple):
    """A shard's record in etcd."""

    holder: str = ""
    """The incarnation that owns it; empty if it was released."""
    epoch: int = 0
    sources: tuple[Tenure, ...] = ()
    """The tenures that hold its states, in reading order, besides the holder's own journal."""

    def claimed(self, incarnation: str) -> ShardRecord:
        """The record after that node has claimed it."""
        sources = self.sources
        if self.holder:
            sources = (*sources, Tenure(self.holder, self.epoch))
        return ShardRecord(incarnation, self.epoch + 1, sources)

    def imported(self) -> ShardRecord:
        """The record after all states are in the holder's journal."""
        return self._replace(sources=())

    def released(self) -> ShardRecord:
        """The record after the holder has released it."""
        return ShardRecord("", self.epoch, (*self.sources, Tenure(self.holder, self.epoch)))

    @property
    def names(self) -> set[str]:
        """All incarnations whose journals this shard needs."""
        held = {self.holder} if self.holder else set()
        return held | {one.incarnation for one in self.sources}

    def encode(self) -> bytes:
        """Serialise it for etcd."""
        return json.dumps([self.holder, self.epoch, self.sources]).encode()

    @classmethod
    def decode(cls, data: bytes) -> ShardRecord:
        """The inverse."""
        holder, epoch, sources = json.loads(data)
        return cls(holder, epoch, tuple(Tenure(*one) for one in sources))


class StoredShard(NamedTuple):
    """A shard's record, and the revision of its last change, which every write compares."""

    record: ShardRecord
    changed: int


class Member(NamedTuple):
    """A live node."""

    incarnation: str
    address: str
    """Where other nodes reach it; empty if they cannot, so that it owns nothing."""
    created: int
    """The revision at which it joined: the fence in all of its writes."""
    lease: int


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Members and shards at one revision."""

    revision: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    shards: Mapping[int, StoredShard] = field(default_factory=dict)

    def shard(self, number: int) -> StoredShard:
        """The record of a shard; an empty one if it was never claimed."""
        return self.shards.get(number, StoredShard(ShardRecord(), 0))

    def owner(self, number: int) -> Member | None:
        """The node that owns a shard, if it is alive."""
        return self.members.get(self.shard(number).record.holder)

    def is_free(self, number: int) -> bool:
        """Whether it may be claimed: it has no holder, or the holder is gone."""
        holder = self.shard(number).record.holder
        return not holder or holder not in self.members

    @property
    def needed(self) -> set[str]:
        """All incarnations whose journals some shard needs."""
        return set().union(*(one.record.names for one in self.shards.values()))


class ClusterSettings(NamedTuple):
    """What all nodes of a cluster agree on; written once."""

    shards: int
    secret: bytes
    part: int = 0
    """The index of this etcd cluster among several, from 0."""
    parts: int = 1
    """The number of etcd clusters."""

    @property
    def numbers(self) -> range:
        """The shards on this etcd cluster."""
        return range(self.part, self.shards, self.parts)

    def encode(self) -> bytes:
        """Serialise it for etcd."""
        stored = {"format": FORMAT, "shards": self.shards, "secret": self.secret.hex()}
        if self.parts > 1:
            stored |= {"format": SPREAD_FORMAT, "part": self.part, "parts": self.parts}
        return json.dumps(stored).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterSettings:
        """The inverse; a `ConfigError` if this version cannot read it."""
        try:
            stored = json.loads(data)
            version, shards = stored["format"], int(stored["shards"])
            secret = bytes.fromhex(stored["secret"])
            part, parts = int(stored.get("part", 0)), int(stored.get("parts", 1))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError("etcd holds settings that are none of Headgate's") from error
        if version not in (FORMAT, SPREAD_FORMAT):
            raise ConfigError(
                f"the cluster's counts have format {version}, and this version reads {FORMAT}"
            )
        return cls(shards, secret, part, parts)

    def shard_of(self, key: str) -> int:
        """The shard of a key; without the secret, nobody can flood one shard on purpose."""
        digest = blake2b(key.encode(), key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.shards


class Paths:
    """The names of a cluster's keys in etcd."""

    def __init__(self, cluster: str) -> None:
        root = f"/headgate/{cluster}/"
        self.settings = f"{root}cfg"
        self.map = f"{root}m/"
        self.journals = f"{root}j/"

    def member(self, incarnation: str) -> str:
        """The key that is attached to a node's lease."""
        return f"{self.map}n/{incarnation}"

    def shard(self, number: int) -> str:
        """The key of a shard's record."""
        return f"{self.map}s/{number}"

    def journal(self, incarnation: str) -> str:
        """The prefix of a journal's keys."""
        return f"{self.journals}{incarnation}/"

    def entry(self, incarnation: str, sequence: int) -> str:
        """The key of one entry."""
        return f"{self.journal(incarnation)}{sequence:0{SEQUENCE_DIGITS}x}"


def member_value(address: str, lease: int) -> bytes:
    """A node's own record."""
    return json.dumps({"address": address, "lease": lease}).encode()


def read_map(paths: Paths, found: Found) -> ClusterMap:
    """Members and shards, from everything under `paths.map`."""
    members: dict[str, Member] = {}
    shards: dict[int, StoredShard] = {}
    for key, value, created, changed in found.items:
        kind, _, name = key[len(paths.map) :].partition("/")
        if kind == "n":
            said = json.loads(value)
            members[name] = Member(name, said["address"], created, int(said["lease"]))
        elif kind == "s":
            shards[int(name)] = StoredShard(ShardRecord.decode(value), changed)
    return ClusterMap(found.revision, members, shards)
