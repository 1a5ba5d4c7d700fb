"""The short part of `python -m bench.cluster`: everybody counts rightly, and is compared with those it should be."""

from __future__ import annotations

import asyncio

import pytest

from bench.cluster.contenders import EXACT, MEMORY
from bench.cluster.owners import forwarded
from bench.cluster.scenarios import Settings, Slice, Target, judged, throughput, verified
from tests.servers.etcd import etcd
from tests.servers.fixtures import installed

SHORT = Settings(rounds=1, slice_s=0.05, kills=0)


@pytest.mark.slow
def test_everybody_counts_and_is_measured() -> None:
    with installed(), etcd(1) as servers:
        asyncio.run(verified(servers))
        targets = [Target(EXACT, MEMORY, 0.0)]
        found = asyncio.run(throughput(servers, SHORT, ("k",), 8, targets))
    assert [row[0] for row in found.rows] == [MEMORY, EXACT]
    assert found.verdicts[0][-1] == "met"
    assert f"{EXACT} / {MEMORY}" in found.as_text()


@pytest.mark.slow
def test_the_cpu_of_an_owner_is_measured() -> None:
    with installed(), etcd(1) as servers:
        found = forwarded(servers, SHORT)
    assert [row[0] for row in found.rows] == ["memory", "etcd, leased", "etcd, exact"]
    assert float(found.rows[0][2].replace(",", "")) > 0
    assert found.verdicts[0][:2] == ["memory, us a decision", "at most 5"]


def test_a_target_is_judged_round_by_round() -> None:
    mine = [Slice(10, 1, 1), Slice(30, 1, 1), Slice(20, 1, 1)]
    other = [Slice(5, 1, 1), Slice(60, 1, 1), Slice(10, 1, 1)]
    slices = {"mine": mine, "other": other}
    assert judged(Target("mine", "other", 2.0), slices)[1:] == ["2", "2.00", "met"]
    assert judged(Target("mine", "other", 2.1), slices)[-1] == "MISSED"
