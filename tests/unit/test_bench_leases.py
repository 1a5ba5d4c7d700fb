"""The benchmark of leases runs and says what it promises to say; how fast anything is, no test can know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.harness import save
from bench.leases.scenarios import ALGORITHMS, Settings, everything
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer

TINY = Settings(rounds=1, hits=300, leased_repeat=2, keys=20, callers=4, seed=7)


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_a_tiny_run_of_everything_has_its_whole_structure(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    results = list(everything(redis_server, TINY))
    save(tmp_path / "leases.json", {result.name: result.as_json() for result in results})
    found = json.loads((tmp_path / "leases.json").read_text())
    assert list(found) == [f"{name}_{keys}" for keys in (20, 1) for name in ALGORITHMS]
    assert all(one["notes"]["taken"] > 0 for one in found.values())
    assert "at least 6" in results[-1].as_text()
