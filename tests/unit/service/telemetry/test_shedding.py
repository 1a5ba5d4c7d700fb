"""Shedding: more is refused the longer the loop is late, and less when it is not."""

from __future__ import annotations

from headgate.service.telemetry.shedding import MOST, Shedding


def test_a_single_delay_refuses_nothing() -> None:
    shedding = Shedding(1.0)
    for late in (0.0, 60.0, 0.0, 5.0, 0.01):
        shedding.note(late)
        assert shedding.share == 0


def test_the_share_grows_to_a_bound_and_goes_away() -> None:
    shedding = Shedding(1.0)
    shares = []
    for _ in range(30):
        shedding.note(2.0)
        shares.append(shedding.share)
    assert shares == sorted(shares)
    assert shares[-1] == MOST
    refused = sum(shedding.refuses() for _ in range(2_000))
    assert 1_800 < refused < 2_000
    assert shedding.refused == refused
    for _ in range(30):
        shedding.note(0.5)
    assert shedding.share == 0


def test_without_a_bound_nothing_is_refused() -> None:
    shedding = Shedding(0)
    for _ in range(10):
        shedding.note(100)
    assert shedding.share == 0
