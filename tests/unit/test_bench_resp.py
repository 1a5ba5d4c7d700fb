"""The benchmark of the Redis protocol: what it reads, and that both scripts are buckets."""

from __future__ import annotations

import pytest

from bench.resp.__main__ import Load, parse, times
from bench.resp.contenders import NODE, OWN_SCRIPT, redis_server, verify
from tests.servers.fixtures import installed

CSV = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"CL.THROTTLE key","92506.94","8.493","0.288","5.935","19.647","26.559","43.647"
"""


def test_what_redis_benchmark_prints_is_read() -> None:
    assert parse(CSV, cpu_us=6.5) == Load(92_506.94, 5.935, 26.559, 6.5)


def test_the_ratio_is_the_median_of_rounds() -> None:
    def loads(*rates: float) -> list[Load]:
        return [Load(rate, 0, 0, 100 / rate) for rate in rates]

    found = {NODE: loads(10, 90, 40), OWN_SCRIPT: loads(1, 10, 5)}
    by_rate, by_cpu = times(found, NODE, OWN_SCRIPT)
    assert by_rate == pytest.approx(9)
    assert by_cpu == pytest.approx(9)


@pytest.mark.slow
def test_both_scripts_count_a_bucket() -> None:
    with installed(), redis_server() as scripts:
        for script in scripts:
            verify(script)
        assert len(scripts) == 2
