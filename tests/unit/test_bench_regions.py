"""The benchmark of regions runs and says what it promises to say; how fast anything is, no test can know."""

from __future__ import annotations

import pytest

from bench.regions.__main__ import merging, shown
from tests.servers.fixtures import installed


@pytest.mark.parametrize("engine", ["memory", "Redis"])
def test_a_tiny_run_decides_everything_and_tells_the_other_region(engine: str) -> None:
    with installed():
        outcome = merging(engine, keys=5, rounds=1, turn=50)
    assert {name: len(rounds) for name, rounds in outcome.race.rounds.items()} == {
        "alone": 1,
        "merge": 1,
    }
    assert outcome.counted == 2 * 50 // 5  # The warm-up counts, too.
    assert outcome.sent_counters >= 5
    assert 20 < outcome.bytes_per_key < 500
    assert "bytes per changed key" in shown([outcome])
