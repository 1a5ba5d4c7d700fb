"""The service's benchmark: what it reads from wrk, how its load grows, and that its peers are limiters."""

from __future__ import annotations

import pytest

from bench.service.__main__ import Outcome, targets_as_text
from bench.service.load import Slice, parse
from bench.service.peers.fastapi_memory import CheckRequest, decide
from bench.service.ramp import users_at

REPORT = """\
Running 2s test @ http://127.0.0.1:8080/check
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.02ms  400.00us  12.00ms   90.00%
  Latency Distribution
     50%  812.00us
     75%    1.20ms
     90%    2.00ms
     99%    1.50s
  120000 requests in 2.00s, 60.00MB read
  Socket errors: connect 0, read 2, write 0, timeout 1
  Non-2xx or 3xx responses: 5
Requests/sec:  60000.50
"""


def test_a_report_of_wrk_is_read_with_its_units_and_failures() -> None:
    assert parse(REPORT, cpu_seconds=1.2) == Slice(60_000.5, 0.812, 1_500.0, 8, 10.0)


def test_the_ratio_is_the_median_of_rounds() -> None:
    def slices(*rates: float) -> list[Slice]:
        return [Slice(rate, 0, 0, 0, 100 / rate) for rate in rates]

    outcome = Outcome(
        {"check, memory": {"headgate": slices(10, 90, 40), "FastAPI": slices(1, 10, 5)}}
        | {"check, Redis": {}, "batch of 100, memory": {}}
    )
    assert outcome.times("check, memory", "headgate", "FastAPI") == 9
    assert outcome.thrift("check, memory", "headgate", "FastAPI") == pytest.approx(9)
    assert outcome.times("check, memory", "headgate", "Go net/http") is None
    shown = targets_as_text(outcome)
    assert "met" in shown
    assert "not measured" in shown


@pytest.mark.parametrize(
    "share, users", [(0, 0), (1 / 6, 25), (1 / 3, 50), (0.5, 175), (2 / 3, 300), (1, 300)]
)
def test_users_come_in_two_ramps(share: float, users: int) -> None:
    assert users_at(share) == users


def test_the_fastapi_peer_limits() -> None:
    asked = CheckRequest(key="peer", limit=3, window=3600)
    assert [decide(asked).allowed for _ in range(5)] == [True] * 3 + [False] * 2
