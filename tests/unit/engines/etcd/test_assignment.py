"""Who should own which shard: fair, the same everywhere, and with as few moves as there can be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies

from headgate.engines.etcd.assignment import assign
from headgate.engines.etcd.records import ClusterMap, Member, ShardRecord, StoredShard

SHARDS = 64


def cluster(nodes: list[str], held: dict[int, str]) -> ClusterMap:
    members = {name: Member(name, f"{name}:1", number, number) for number, name in enumerate(nodes)}
    shards = {number: StoredShard(ShardRecord(name, 1), 1) for number, name in held.items()}
    return ClusterMap(1, members, shards)


def test_without_reachable_nodes_nothing_is_assigned() -> None:
    member = Member("a", "", 1, 1)
    assert assign(ClusterMap(1, {"a": member}), range(SHARDS)) == {}


@given(
    strategies.lists(strategies.sampled_from("abcdefghij"), min_size=1, unique=True),
    strategies.dictionaries(
        strategies.integers(0, SHARDS - 1), strategies.sampled_from("abcdefghijxyz")
    ),
)
def test_loads_differ_by_one_at_most_and_holders_keep_their_shards(
    nodes: list[str], held: dict[int, str]
) -> None:
    assigned = assign(cluster(nodes, held), range(SHARDS))
    loads = Counter(assigned.values())
    assert sorted(assigned) == list(range(SHARDS))
    assert max(loads.values()) - min(loads[name] for name in nodes) <= 1
    for name in nodes:
        own = [number for number, holder in held.items() if holder == name]
        kept = [number for number in own if assigned[number] == name]
        assert len(kept) >= min(len(own), SHARDS // len(nodes))


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_a_death_moves_only_what_the_dead_held(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    before = assign(cluster(nodes, {}), range(SHARDS))
    after = assign(cluster(nodes[1:], before), range(SHARDS))
    assert all(after[number] == name for number, name in before.items() if name != "n0")


def test_what_was_assigned_stays_assigned() -> None:
    nodes = ["a", "b", "c"]
    first = assign(cluster(nodes, {}), range(SHARDS))
    assert assign(cluster(nodes, first), range(SHARDS)) == first


@given(strategies.data())
def test_moves_under_way_do_not_change_where_the_rest_goes(data: strategies.DataObject) -> None:
    """Whichever moves are done already, and whichever shards are free meanwhile."""
    nodes = data.draw(strategies.lists(strategies.sampled_from("abcde"), min_size=1, unique=True))
    held = data.draw(
        strategies.dictionaries(strategies.integers(0, 15), strategies.sampled_from("abcdex"))
    )
    wanted = assign(cluster(nodes, held), range(16))
    moves = [number for number in range(16) if held.get(number, "") != wanted[number]]
    if moves:
        done = data.draw(strategies.sets(strategies.sampled_from(moves)))
        free = data.draw(strategies.sets(strategies.sampled_from(moves)))
        held |= dict.fromkeys(free, "") | {number: wanted[number] for number in done}
    assert assign(cluster(nodes, held), range(16)) == wanted
