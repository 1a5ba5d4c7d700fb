"""Stepping aside while there is much to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headgate.rules import pacing
from headgate.rules.pacing import FEW, no_pause, pacer, release_gradually, with_pauses

if TYPE_CHECKING:
    import pytest


def test_it_rests_when_enough_has_been_done_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    rests: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        rests.append(seconds)
        now += 0.01

    monkeypatch.setattr(pacing, "perf_counter", lambda: now)
    monkeypatch.setattr(pacing, "sleep", sleep)
    pause = pacer(work_seconds=0.001, rest_seconds=0.0001)
    for _ in range(20):
        now += 0.000_3
        pause()
    assert rests == [0.0001] * 5  # After every fourth piece; what it slept is not counted as work.


def test_without_others_there_is_no_pause() -> None:
    began = time.perf_counter()
    for _ in range(1_000):
        no_pause()
    assert time.perf_counter() - began < 1


def test_small_things_share_a_pause() -> None:
    story: list[int | str] = []
    story.extend(with_pauses(range(2 * FEW + 1), lambda: story.append("pause")))
    few, more = range(FEW), range(FEW, 2 * FEW)
    assert story == ["pause", *few, "pause", *more, "pause", 2 * FEW]


def test_things_are_let_go_one_by_one() -> None:
    things = [object() for _ in range(10)]
    left: list[int] = []
    release_gradually(things, lambda: left.append(len(things)))
    assert left == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
