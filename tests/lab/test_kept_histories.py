"""Histories of real runs that the checker once judged wrong, cut down to what it was about."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.lab.history import load_history
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge

HOLD = {
    "slow-store-bucket": "some nodes missed a slow store while others had it, and a bucket flows for both of them",
}


@pytest.mark.parametrize("name", HOLD)
def test_a_history_that_kept_its_promise_holds(name: str) -> None:
    verdict = judge(Scene(load_history(Path(__file__).parent / "kept" / f"{name}.jsonl")))
    assert verdict.holds, (HOLD[name], verdict.findings)


def test_every_history_that_is_kept_is_judged() -> None:
    kept = {path.stem for path in (Path(__file__).parent / "kept").glob("*.jsonl")}
    assert kept == set(HOLD)
