"""The short part of `python -m bench.bounds`: hostile bodies in a small size, and thousands of new names."""

from __future__ import annotations

import sys

import pytest

from bench.bounds.calling import Calling
from bench.bounds.cost import ALLOWED_MS, Cost, costs_alone, sizes_for
from bench.bounds.hostile import BEGINNINGS, bodies_for
from bench.bounds.memory import LATE_MB, SCENARIOS, Growth, growth
from tests.servers.fixtures import installed
from tests.servers.redis import standalone

SMALL = 16_384
FEW = 20_000
FEWEST = ("new limits", "service: new limits", "service: new heads")
ON_REDIS = ("redis: new limits",)


@pytest.mark.slow
def test_no_body_costs_more_than_its_size_allows() -> None:
    """Slow, because there are hundreds of them."""
    found = costs_alone(SMALL)
    assert [cost.as_text() for cost in found if not cost.holds] == []
    assert all(200 <= cost.status < 500 for cost in found)
    assert len(found) > 300


def test_every_endpoint_that_reads_a_body_gets_hostile_ones() -> None:
    with Calling() as service:
        endpoints = list(service.endpoints())
        assert {endpoint.path for endpoint in endpoints} == set(BEGINNINGS)
        for endpoint in endpoints:
            assert service.ask(endpoint, b"{" + BEGINNINGS[endpoint.path] + b"}").status != 400
            for name, make in bodies_for(endpoint):
                assert 0.8 * SMALL < len(make(SMALL)) < 1.2 * SMALL, name


@pytest.mark.parametrize(
    "ms, holds",
    [
        ((10.0, 20.0, 40.0), True),
        ((1.0, 4.0, 16.0), True),  # Too little to be told from noise.
        ((3.0, 12.0, 48.0), False),  # Sixteen times as long for four times the size.
        ((30.0, 60.0, 120.0), False),
    ],
)
def test_excessive_time_or_growth_is_reported(
    ms: tuple[float, ...],
    holds: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    cost = Cost("POST /check", "a body", 200, (16_384, 32_768, 65_536), ms)
    assert cost.holds is holds
    assert ("TOO MUCH" in cost.as_text()) is not holds
    assert cost.ms_per_64_kb == ms[-1]
    assert ALLOWED_MS == 50


def test_batches_and_management_are_tried_in_their_own_sizes() -> None:
    with Calling() as service:
        sizes = {endpoint.path: sizes_for(endpoint)[-1] for endpoint in service.endpoints()}
    assert (sizes["/check"], sizes["/check/batch"], sizes["/api/explain"]) == (
        *(65_536, 1_048_576, 1_048_576),
    )


@pytest.mark.parametrize(
    "half, end, stays, holds",
    [
        (10.0, 10.5, False, True),
        (10.0, 20.0, False, False),
        (10.0, 20.0, True, True),
        (40.0, 80.0, True, False),
    ],
)
def test_unbounded_growth_is_reported(
    half: float,
    end: float,
    stays: bool,  # noqa: FBT001
    holds: bool,  # noqa: FBT001
) -> None:
    found = Growth("x", 10, half, end, 64, stays)
    assert found.holds is holds
    assert ("TOO MUCH" in found.as_text()) is not holds
    assert LATE_MB < 10


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
@pytest.mark.parametrize("name", [*FEWEST, *ON_REDIS])
def test_new_names_leave_little_behind(name: str) -> None:
    """Slow, because it takes many until a cache is full; `python -m bench.bounds` tries a million of each kind."""
    if name in ON_REDIS:
        with installed(), standalone("redis-7.0"):  # The measuring process starts its own.
            pass
    found = growth(name, FEW)
    assert found.holds, found.as_text()
    assert set(FEWEST) | set(ON_REDIS) < set(SCENARIOS)
