"""Units are each given out once, whoever takes them, with and without a GIL."""

from __future__ import annotations

import threading
import time

import pytest

from headgate.guards import units
from headgate.guards.units import BLOCK, Units
from tests.unit.engines.threads import tiny_switch_interval


@pytest.fixture(params=["gil", "no gil"], autouse=True)
def _both_builds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "GIL_FOR_EVER", request.param == "gil")


def taken_one_by_one(held: Units) -> list[int]:
    """What each take returned, until there are no more; the block is renewed as hits do it."""
    remaining: list[int] = []
    while True:
        found = next(held.block, None)
        if found is None:
            found = held.take_several(1)
        if found is None:
            return remaining
        remaining.append(found)


def test_unused_units_have_nothing_to_take() -> None:
    held = Units(remaining=100)
    assert held.left == 0
    assert taken_one_by_one(held) == []


@pytest.mark.parametrize("size", [1, 2, BLOCK, BLOCK + 1, BLOCK + 2, 5 * BLOCK])
def test_each_take_says_what_remains_here_and_in_the_store(size: int) -> None:
    held = Units(remaining=1_000)
    held.hold(size)
    assert taken_one_by_one(held) == list(range(1_000 + size - 1, 999, -1))
    assert held.left == 0


@pytest.mark.parametrize("ones", [0, 1, 5, BLOCK + 7])
def test_several_units_are_taken_all_or_none(ones: int) -> None:
    held = Units(remaining=50)
    held.hold(2 * BLOCK)
    for _ in range(ones):
        if next(held.block, None) is None:
            held.take_several(1)
    left = 2 * BLOCK - ones
    assert held.take_several(left + 1) is None
    assert held.left == left
    assert held.take_several(10) == 50 + left - 10
    assert held.take_several(left - 10) == 50
    assert held.left == 0
    assert held.take_several(1) is None


def test_new_units_take_the_place_of_old_ones() -> None:
    held = Units(remaining=0)
    held.hold(BLOCK)
    held.take_several(1)
    old = held.block
    held.hold(3)
    assert next(old, None) is None
    assert held.left == 3
    assert held.empty() == 3
    assert taken_one_by_one(held) == []


def test_what_the_store_has_left_counts_from_the_next_block_on() -> None:
    held = Units(remaining=1_000)
    held.hold(BLOCK + 1)
    held.take_several(1)
    held.remaining = 10
    last_of_block = [next(held.block) for _ in range(BLOCK)][-1]
    assert last_of_block == 1_000
    held.hold(1)
    assert held.take_several(1) == 10


def hits(held: Units, lock: threading.Lock, cost: int) -> int:
    """Take `cost` units as hits do: single ones hold no lock."""
    if cost == 1 and next(held.block, None) is not None:
        return 1
    with lock:
        return 0 if held.take_several(cost) is None else cost


def test_threads_get_each_unit_once_while_others_empty_and_refill() -> None:
    held, lock, rounds, size = Units(remaining=0), threading.Lock(), 60, 700
    spent = [0] * 6
    given_back = 0
    over = threading.Event()

    def take(number: int, cost: int) -> None:
        while not over.is_set():
            spent[number] += hits(held, lock, cost)

    threads = [
        threading.Thread(target=take, args=(number, cost))
        for number, cost in enumerate([1, 1, 1, 1, 7, 7])
    ]
    with tiny_switch_interval():
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            with lock:
                given_back += held.empty()
                held.hold(size)
            while held.left > size // 2:  # Until the others have taken half of it.
                time.sleep(0)
        over.set()
        for thread in threads:
            thread.join()
    given_back += held.empty()
    assert sum(spent) + given_back == rounds * size
    assert sum(spent) > rounds * size // 3
