"""Stepping aside while there is much to do."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pytest

from headgate.rules import pacing
from headgate.rules.pacing import FEW, MANY, let_go, pacer, spaced, uncollected, unhurried

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


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
        unhurried()
    assert time.perf_counter() - began < 1


def test_small_things_share_a_pause() -> None:
    story: list[int | str] = []
    story.extend(spaced(range(2 * FEW + 1), lambda: story.append("pause")))
    few, more = range(FEW), range(FEW, 2 * FEW)
    assert story == ["pause", *few, "pause", *more, "pause", 2 * FEW]


def test_things_are_let_go_one_by_one() -> None:
    things = [object() for _ in range(10)]
    left: list[int] = []
    let_go(things, lambda: left.append(len(things)))
    assert left == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.usefixtures("_thawed")
def test_what_is_much_is_kept_from_the_collector_for_good() -> None:
    gc.unfreeze()
    with uncollected():
        assert not gc.isenabled()
        much = [[number] for number in range(MANY + 1_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(much)


@pytest.mark.usefixtures("_thawed")
def test_what_is_little_is_left_to_the_collector() -> None:
    gc.unfreeze()
    gc.collect()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_thawed")
def test_a_collector_that_was_off_stays_off_also_after_an_error() -> None:
    gc.disable()
    with pytest.raises(RuntimeError), uncollected():
        raise RuntimeError
    assert not gc.isenabled()
