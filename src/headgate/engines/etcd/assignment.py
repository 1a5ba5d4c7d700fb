"""Which node should own which shard: the same answer on every node that sees the same map.

A node keeps the shards that it holds, up to a fair share; the rest go by rendezvous hashing to nodes with room. So a
node that dies moves only its own shards, one that joins takes only what exceeds the fair share of others, and loads
differ by at most one shard. Moves under way do not change where the rest goes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import ClusterMap


def assign(cluster: ClusterMap, numbers: Sequence[int]) -> dict[int, str]:
    """The incarnation that each shard should belong to; empty if no node can own any."""
    nodes = sorted(member.incarnation for member in cluster.members.values() if member.address)
    if not nodes:
        return {}
    assigned: dict[int, str] = {}
    held: dict[str, list[int]] = {node: [] for node in nodes}
    for shard in numbers:
        holder = cluster.shard(shard).record.holder
        if holder in held:
            held[holder].append(shard)
    least, more = divmod(len(numbers), len(nodes))
    # Nodes that hold more than the minimum are the first to keep one more: that moves the fewest shards. Their load
    # does not matter otherwise, because it changes with every move.
    in_order = sorted(nodes, key=lambda node: (len(held[node]) <= least, node))
    room = {node: least + (place < more) for place, node in enumerate(in_order)}
    for node, own in held.items():
        own.sort(key=lambda shard: _score(node, shard), reverse=True)
        for shard in own[: room[node]]:
            assigned[shard] = node
        room[node] -= min(len(own), room[node])
    for shard in numbers:
        if shard not in assigned:
            node = max((one for one in nodes if room[one]), key=lambda one: _score(one, shard))
            assigned[shard] = node
            room[node] -= 1
    return assigned


def _score(node: str, shard: int) -> bytes:
    return blake2b(f"{node}/{shard}".encode(), digest_size=8).digest()
