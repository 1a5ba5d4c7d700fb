"""Who is there, and who owns what: the records under `/headgate/<cluster>/`.

    cfg               what all nodes must agree on: format, number of shards, the secret of the hash
    m/n/<incarnation> a node, with its lease: its address
    m/s/<shard>       a shard: who holds it, in which epoch, and what other journals its states are in
    j/<inc>/<number>  one commit of a node: see `entries`

An incarnation is a node from one join to its end, and is never used twice. A shard's epoch is raised by every claim,
and each row of a journal carries it: rows of an earlier tenure are told from those of this one. A released shard has no
holder; its last one is the last of its sources.
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
"""Of a cluster whose shards are on several etcd clusters: nodes that know nothing of that must not join."""
SECRET_BYTES: Final = 16
SEQUENCE_DIGITS: Final = 12


class Tenure(NamedTuple):
    """One node's time with a shard: whose journal, and which rows of it."""

    incarnation: str
    epoch: int


class ShardRecord(NamedTuple):
    """What etcd says about a shard."""

    holder: str = ""
    """The incarnation that owns it; empty if it was released."""
    epoch: int = 0
    sources: tuple[Tenure, ...] = ()
    """Where its states are, in the order in which they are to be read, besides the holder's own journal."""

    def claimed(self, incarnation: str) -> ShardRecord:
        """The record once that node has taken it over."""
        sources = self.sources
        if self.holder:
            sources = (*sources, Tenure(self.holder, self.epoch))
        return ShardRecord(incarnation, self.epoch + 1, sources)

    def imported(self) -> ShardRecord:
        """The record once all states are in the holder's journal."""
        return self._replace(sources=())

    def released(self) -> ShardRecord:
        """The record once the holder has let go."""
        return ShardRecord("", self.epoch, (*self.sources, Tenure(self.holder, self.epoch)))

    @property
    def names(self) -> set[str]:
        """Every incarnation whose journal is needed for this shard."""
        held = {self.holder} if self.holder else set()
        return held | {one.incarnation for one in self.sources}

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps([self.holder, self.epoch, self.sources]).encode()

    @classmethod
    def decode(cls, data: bytes) -> ShardRecord:
        """The inverse."""
        holder, epoch, sources = json.loads(data)
        return cls(holder, epoch, tuple(Tenure(*one) for one in sources))


class StoredShard(NamedTuple):
    """A shard's record, and when it was last changed: every write of it compares that."""

    record: ShardRecord
    changed: int


class Member(NamedTuple):
    """A node that is there."""

    incarnation: str
    address: str
    """Where other nodes reach it; empty if they cannot, so that it owns nothing."""
    created: int
    """The revision of its joining: the fence in all that it writes."""
    lease: int


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Members and shards at one revision."""

    revision: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    shards: Mapping[int, StoredShard] = field(default_factory=dict)

    def shard(self, number: int) -> StoredShard:
        """The record of a shard; an empty one if nobody has ever claimed it."""
        return self.shards.get(number, StoredShard(ShardRecord(), 0))

    def owner(self, number: int) -> Member | None:
        """The node that owns a shard, if it is there."""
        return self.members.get(self.shard(number).record.holder)

    def is_free(self, number: int) -> bool:
        """Whether it may be claimed: nobody holds it, or who does is gone."""
        holder = self.shard(number).record.holder
        return not holder or holder not in self.members

    @property
    def needed(self) -> set[str]:
        """Every incarnation whose journal some shard needs."""
        return set().union(*(one.record.names for one in self.shards.values()))


class ClusterSettings(NamedTuple):
    """What all nodes of a cluster agree on; written once."""

    shards: int
    secret: bytes
    part: int = 0
    """Which of several etcd clusters this one is, from 0."""
    parts: int = 1
    """How many there are."""

    @property
    def numbers(self) -> range:
        """The shards that are on this etcd cluster."""
        return range(self.part, self.shards, self.parts)

    def encode(self) -> bytes:
        """As it is stored."""
        told = {"format": FORMAT, "shards": self.shards, "secret": self.secret.hex()}
        if self.parts > 1:
            told |= {"format": SPREAD_FORMAT, "part": self.part, "parts": self.parts}
        return json.dumps(told).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterSettings:
        """The inverse; a `ConfigError` for what this version cannot read."""
        try:
            told = json.loads(data)
            version, shards = told["format"], int(told["shards"])
            secret = bytes.fromhex(told["secret"])
            part, parts = int(told.get("part", 0)), int(told.get("parts", 1))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError("etcd holds settings that are none of Headgate's") from error
        if version not in (FORMAT, SPREAD_FORMAT):
            raise ConfigError(
                f"the cluster's counts have format {version}, and this version reads {FORMAT}"
            )
        return cls(shards, secret, part, parts)

    def shard_of(self, key: str) -> int:
        """The shard of a key; nobody who lacks the secret can fill one on purpose."""
        digest = blake2b(key.encode(), key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.shards


class Paths:
    """Where a cluster keeps what."""

    def __init__(self, cluster: str) -> None:
        root = f"/headgate/{cluster}/"
        self.settings = f"{root}cfg"
        self.map = f"{root}m/"
        self.journals = f"{root}j/"

    def member(self, incarnation: str) -> str:
        """The key that a node's lease holds."""
        return f"{self.map}n/{incarnation}"

    def shard(self, number: int) -> str:
        """The key of a shard's record."""
        return f"{self.map}s/{number}"

    def journal(self, incarnation: str) -> str:
        """What the keys of a journal begin with."""
        return f"{self.journals}{incarnation}/"

    def entry(self, incarnation: str, sequence: int) -> str:
        """The key of one entry."""
        return f"{self.journal(incarnation)}{sequence:0{SEQUENCE_DIGITS}x}"


def member_value(address: str, lease: int) -> bytes:
    """What a node says about itself."""
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
