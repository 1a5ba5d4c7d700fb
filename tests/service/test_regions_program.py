"""Programs that merge a limit with other regions: they count in the store of their region, and its nodes tell."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate import AsyncLimiter, ConfigError, Limiter, Regions, UsageError
from headgate.regions.program import ProgramRegions
from tests.servers.process import wait_until
from tests.service.test_regions_merge import WITHIN_S, Region, two_regions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.limiter import KeyLimit

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "regions.md"
EU = Regions("eu", {"eu": 1, "us": 1})
US = Regions("us", {"eu": 1, "us": 1})


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Region, Region]]:
    with two_regions(tmp_path_factory.mktemp("program")) as both:
        yield both


def merged(limiter: Limiter, key: str) -> KeyLimit:
    return limiter.limit(key, "100/day", algorithm="fixed_window", consistency="merge")


def charged_for(region: Region, other: str) -> int:
    """What a region has charged for another one so far."""
    exchange = region.node.node.exchange
    assert exchange is not None
    return exchange.charged_units[other]


def test_programs_in_two_regions_count_what_the_other_admits(
    regions: tuple[Region, Region],
) -> None:
    """One with threads, one with asyncio; no rule of a service is about their key."""
    eu, us = regions

    async def ask_us(units: int, until: int) -> None:
        async with AsyncLimiter(us.store.url, regions=US) as limiter:
            limit = limiter.limit("k", "100/day", algorithm="fixed_window", consistency="merge")
            for _ in range(units):
                assert await limit.hit()
            ends = time.monotonic() + WITHIN_S
            while (await limit.stats()).remaining != until:
                assert time.monotonic() < ends

    with Limiter(eu.store.url, regions=EU) as limiter:
        limit = merged(limiter, "k")
        assert all(limit.hit() for _ in range(30))
        asyncio.run(ask_us(25, 45))
        wait_until(lambda: limit.stats().remaining == 45, "eu hears of us", within_s=WITHIN_S)


def test_admissions_of_the_documented_program_reach_other_regions(
    regions: tuple[Region, Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = regions
    page = PAGE.read_text()
    (program,) = re.findall(r"<!-- skip: next -->\n\n```python\n(.*?)```", page, re.DOTALL)
    before = charged_for(us, "eu")
    monkeypatch.setenv("REDIS_URL", eu.store.url)
    exec(program, {})  # noqa: S102 - it is a page of ours
    wait_until(lambda: charged_for(us, "eu") == before + 1, "us hears", within_s=WITHIN_S)


def test_every_unit_of_many_threads_is_reported_once(regions: tuple[Region, Region]) -> None:
    eu, us = regions
    before = charged_for(us, "eu")
    with (
        Limiter(f"{eu.store.url}?deadline=10", regions=EU) as limiter,
        ThreadPoolExecutor(8) as pool,
    ):
        limits = [
            limiter.limit(f"t{n}", "1000/day", algorithm="sliding_window", consistency="merge")
            for n in range(4)
        ]
        admitted = sum(pool.map(lambda n: bool(limits[n % 4].hit()), range(2_000)))
        assert admitted == 2_000
    wait_until(
        lambda: charged_for(us, "eu") == before + admitted, "us hears of all", within_s=WITHIN_S
    )


PROGRAM = """
import os, sys
from headgate import Limiter, Regions
limiter = Limiter(sys.argv[1], regions=Regions("eu", {"eu": 1, "us": 1}))
limit = limiter.limit("forked", "100/day", algorithm="fixed_window", consistency="merge")
for _ in range(3):
    assert limit.hit()
child = os.fork()
for _ in range(5 if child else 4):
    assert limit.hit()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_and_its_parent_each_report_their_own_admissions(
    regions: tuple[Region, Region],
) -> None:
    eu, us = regions
    before = charged_for(us, "eu")
    subprocess.run([sys.executable, "-c", PROGRAM, eu.store.url], check=True, timeout=60)
    wait_until(lambda: charged_for(us, "eu") == before + 12, "us hears of both", within_s=WITHIN_S)


def test_an_emptied_store_learns_what_a_program_had_admitted(
    regions: tuple[Region, Region],
) -> None:
    eu, _ = regions
    with Limiter(eu.store.url, regions=EU) as limiter:
        limit = merged(limiter, "emptied")
        assert all(limit.hit() for _ in range(20))
        eu.store.empty()
        wait_until(lambda: limit.stats().remaining == 80, "it is charged again", within_s=WITHIN_S)


def test_a_mode_that_a_program_cannot_keep_is_refused_when_the_limit_is_made() -> None:
    with Limiter(regions=EU) as limiter:
        with pytest.raises(UsageError, match="the Redis or Valkey that the nodes of this region"):
            merged(limiter, "k")
        with pytest.raises(UsageError, match="escrow takes nodes that give each other rights"):
            limiter.limit("k", "9/day", algorithm="fixed_window", consistency="escrow")
    with Limiter("redis://127.0.0.1:1", regions=EU) as limiter:
        merged(limiter, "k")
        with pytest.raises(UsageError, match="escrow takes nodes that give each other rights"):
            limiter.limit("k", "9/day", algorithm="fixed_window", consistency="escrow")
    on_etcd = Regions("eu", {"eu": 1, "us": 1}, board="etcd://127.0.0.1:1")
    with (
        Limiter("redis://127.0.0.1:1", regions=on_etcd) as limiter,
        pytest.raises(ConfigError, match="board in Redis or Valkey"),
    ):
        merged(limiter, "k")
    secret = "redis://127.0.0.1:1?hash_keys=true&secret=0123456789abcdef"  # noqa: S105
    with Limiter(secret, regions=EU) as limiter:
        limiter.limit("k", "9/day", algorithm="fixed_window", consistency="split")
        with pytest.raises(ConfigError, match="hash_keys keeps keys out of the store"):
            merged(limiter, "k")


def test_a_warning_is_logged_when_no_node_reports_to_other_regions(
    regions: tuple[Region, Region],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    eu, _ = regions
    monkeypatch.setattr("headgate.regions.program.SILENT_S", 0.3)
    with Limiter(eu.store.url, regions=EU, namespace="nobody") as limiter:
        merged(limiter, "k").hit()
        wait_until(
            lambda: "no node of region eu sends what is admitted here" in caplog.text,
            "it is said",
            within_s=WITHIN_S,
        )
        assert isinstance(limiter._region_program, ProgramRegions)
