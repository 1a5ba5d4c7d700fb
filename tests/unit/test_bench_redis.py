"""The benchmark on a real server runs and says what it promises to say; how fast anything is, no test can know."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness import save
from bench.redis import targets
from bench.redis.__main__ import promises_as_text, weights_as_text
from bench.redis.contenders import ENTRIES, OURS, PEERS, THREE_CHARGES, Times, percentile
from bench.redis.cores import FLAVOUR
from bench.redis.plot import draw
from bench.redis.scenarios import SERVER, Bench, Settings
from tests.servers.fixtures import installed
from tests.servers.redis import RedisServer

TINY = Settings(
    rounds=2,
    hits={1: 4, 64: 128, 512: 256},
    keys=50,
    denied_hits=20,
    denied_repeat=2,
    weighed_keys=200,
    seed=7,
)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([7], 99) == 7
    assert percentile(list(range(1, 101)), 50) == 50
    assert percentile(list(range(1, 101)), 99) == 99


def test_the_warm_up_is_not_counted() -> None:
    times = Times()
    for took_ns in ([900, 900], [3, 1, 2]):
        times.took_ns.extend(took_ns)
        times.settle()
    assert (times.p50_ns, times.p99_ns, times.took_ns) == ([2], [3], [])


@pytest.mark.slow
def test_a_tiny_run_of_everything_has_its_whole_structure(
    redis_servers: Callable[[str], RedisServer], tmp_path: Path
) -> None:
    """Slow, because it opens thousands of connections for the peers, as many as checks are under way."""
    with installed():
        server = redis_servers(FLAVOUR)
    with Bench(server, TINY) as bench:
        bench.verify_all()
        results = list(bench.everything())
        weights = bench.weights()
    by_name = {result.name: result for result in results}
    assert len(by_name) == len(results) == 6
    assert server.call("DBSIZE") == 0

    for callers in TINY.hits:
        result = by_name[f"allowed_{callers}"]
        servers = {SERVER + name for name in OURS} if callers in targets.CEILING_SHARE else set()
        assert set(result.race.rounds) == {*ENTRIES, *servers}
        assert result.best_peer in PEERS
        assert {one.algorithm for one in result.promises} == set(OURS)
        assert all(name in result.as_text() for name in ENTRIES)
    assert len(by_name["allowed_512"].promises) == 3 * len(OURS)
    assert len(by_name["denied_64"].promises) == len(OURS)
    assert set(by_name["three_charges_64"].race.rounds) == set(THREE_CHARGES)
    assert all(row.p99_us is not None for row in by_name["plain_1"].rows)

    assert set(weights) == set(ENTRIES)
    assert all(weight > 50 for weight in weights.values())
    assert "limits moving" in weights_as_text(weights, TINY.weighed_keys)
    promises = [one for result in results for one in result.promises]
    assert all(one.scenario in promises_as_text(promises) for one in promises)

    save(tmp_path / "r.json", {result.name: result.as_json() for result in results})
    saved = json.loads((tmp_path / "r.json").read_text())
    assert all(len(ns) == TINY.rounds for ns in saved["allowed_1"]["rounds_ns"].values())
    draw(results, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
