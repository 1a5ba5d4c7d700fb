"""The benchmark of rules runs and says what it promises to say; how fast anything is, no test can know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.harness import save
from bench.rules.scenarios import Settings, compiling, finding, hostile, reloading
from bench.rules.worlds import HOSTILE, WORLDS

if TYPE_CHECKING:
    from pathlib import Path

TINY = Settings(rounds=1, requests=5, compiles=1, reloads=1, sizes=(1, 5, 20), seed=7)


@pytest.mark.slow
def test_a_tiny_run_of_everything_has_its_whole_structure(tmp_path: Path) -> None:
    """Slow, because it decides for half a second, and then while new rules are taken over."""
    results = [finding(TINY), hostile(TINY), compiling(TINY), reloading(TINY)]
    save(tmp_path / "rules.json", {result.name: result.as_json() for result in results})
    found = json.loads((tmp_path / "rules.json").read_text())
    worlds = [world.name for world in WORLDS]
    assert list(found["finding"]) == list(found["compiling"]) == worlds
    assert list(found["finding"]["paths"]) == ["1 rules", "5 rules", "20 rules", "times", "met"]
    assert list(found["hostile"]) == list(HOSTILE)
    assert found["reloading"]["20 rules from a file, all changed"]["seconds"] > 0
    assert "promise" in results[0].as_text()
