"""Limits that regions merge, on real servers: counts meet, whatever becomes of the link between two regions."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headgate import Request
from headgate.service.security.tokens import new_token
from tests.servers.link import Link
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.region_stores import store_place
from tests.service.resp_node import RespNode, resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.service.region_stores import StorePlace

LIMIT = 100
RULES = """
rules:
  - rule_id: api
    identifier: user_id
    rate: {limit}/{window}
    algorithm: {algorithm}
    consistency: merge
    when_cut_off: {when_cut_off}
"""
WITHIN_S = 30.0
ON_BOTH = pytest.mark.parametrize("store", ["redis", "etcd"])


@dataclass
class Region:
    """One node of a region, on its own store."""

    node: RespNode
    store: StorePlace
    way: Link
    """From it to the other region."""

    def admit(self, many: int, user: str = "u") -> int:
        """How many of so many requests pass."""

        async def hammer() -> int:
            limiter = self.node.node.limiter
            asked = [limiter.decide_request(Request(path="/", user_id=user)) for _ in range(many)]
            return sum(one.allowed for one in await asyncio.gather(*asked))

        return self.node.wait(hammer())

    def remaining(self, user: str = "u") -> int:
        """What is left of the limit here; looking takes nothing."""
        explained = self.node.wait(
            self.node.node.limiter.explain_request(Request(path="/", user_id=user))
        )
        return explained.answers[0].remaining

    def is_up(self) -> bool:
        """Whether the link to the other region works, in both directions."""
        exchange = self.node.node.exchange
        assert exchange is not None
        return not exchange.cut_off and all(link.up for link in exchange.links())

    def cut_off(self) -> bool:
        """Whether the node goes by that it cannot hear the other region."""
        exchange = self.node.node.exchange
        assert exchange is not None
        return exchange.cut_off


@contextmanager
def two_regions(folder: Path, store: str = "redis", **said: Any) -> Iterator[tuple[Region, Region]]:
    """Two regions that can hear each other; each has a node, and a server of this kind, and nothing else."""
    rules = folder / "rules.yaml"
    words = {"limit": LIMIT, "window": "day", "algorithm": "fixed_window", "when_cut_off": "limit"}
    rules.write_text(RULES.format(**(words | said)))
    ports = free_ports(2)
    with (
        store_place(store) as first,
        store_place(store) as second,
        Link(ports[1]) as to_us,
        Link(ports[0]) as to_eu,
        node_of("eu", first, ports[0], to_us, rules) as eu,
        node_of("us", second, ports[1], to_eu, rules) as us,
    ):
        regions = Region(eu, first, to_us), Region(us, second, to_eu)
        wait_until(lambda: all(one.is_up() for one in regions), "both hear", within_s=WITHIN_S)
        yield regions


def patient(url: str) -> str:
    """With a deadline that a busy machine keeps: a node that answers in the store's place would count by itself."""
    return f"{url}?deadline=1" if url.startswith("redis:") else url


def node_of(region: str, store: StorePlace, port: int, way: Link, rules: Path, **more: Any) -> Any:
    """A node of one of the two regions."""
    other = {"eu": "us", "us": "eu"}[region]
    return resp_node(
        url=patient(store.url),
        resp_port=port,
        region=region,
        regions=f"{other}=headgate://{HOST}:{way.port}",
        rules=str(rules),
        node_id=more.pop("node_id", region),
        **more,
    )


def meet(eu: Region, us: Region, used: int, limit: int = LIMIT) -> None:
    """Wait until both regions have counted exactly so much."""
    left = max(0, limit - used)
    found: list[int] = []

    def both_know() -> bool:
        found[:] = [eu.remaining(), us.remaining()]
        return found == [left, left]

    try:
        wait_until(both_know, f"both have {left} left", within_s=WITHIN_S)
    except TimeoutError:
        raise AssertionError(f"both should have {left} left, and have {found}") from None


@pytest.mark.parametrize(
    "store, algorithm",
    [
        *(("redis", "fixed_window"), ("redis", "sliding_window"), ("redis", "sliding_log")),
        ("etcd", "fixed_window"),
    ],
)
def test_each_region_counts_what_the_other_admits(
    tmp_path: Path, store: str, algorithm: str
) -> None:
    with two_regions(tmp_path, store, algorithm=algorithm) as (eu, us):
        assert (eu.admit(30), us.admit(25)) == (30, 25)
        meet(eu, us, 55)
        assert eu.admit(100) == 45
        meet(eu, us, 100)
        assert (eu.admit(5), us.admit(5)) == (0, 0)


@ON_BOTH
def test_a_cut_is_survived_and_counts_meet_when_it_heals(tmp_path: Path, store: str) -> None:
    """Cut off, each goes on by its own count: at most the limit in each. Then neither admits any more."""
    with two_regions(tmp_path, store) as (eu, us):
        assert (eu.admit(20), us.admit(20)) == (20, 20)
        meet(eu, us, 40)
        for one in (eu, us):
            one.way.refuse()
            one.way.reset()
        wait_until(lambda: eu.cut_off() and us.cut_off(), "both notice", within_s=WITHIN_S)
        alone = eu.admit(200), us.admit(50)
        assert alone == (60, 50)
        assert (eu.remaining(), us.remaining()) == (0, 10)
        for one in (eu, us):
            one.way.mend()
        wait_until(lambda: eu.is_up() and us.is_up(), "both hear again", within_s=WITHIN_S)
        meet(eu, us, 150)
        assert (eu.admit(5), us.admit(5)) == (0, 0)


@pytest.mark.heavy
def test_a_log_takes_what_it_missed_during_a_cut_at_its_own_time(tmp_path: Path) -> None:
    """Units leave one window, and at most a slice of it, after they were admitted; not after they were heard of."""
    window_s, slice_s = 20.0, 2.0
    with two_regions(tmp_path, algorithm="sliding_log", window="20s") as (eu, us):
        for one in (eu, us):
            one.way.refuse()
            one.way.reset()
        assert eu.admit(60) == 60
        admitted = time.monotonic()
        time.sleep(2 * slice_s)  # For so long nobody hears of it.
        for one in (eu, us):
            one.way.mend()
        wait_until(lambda: us.remaining() == 40, "it is heard of", within_s=WITHIN_S)
        explained = us.node.wait(
            us.node.node.limiter.explain_request(Request(path="/", user_id="u"))
        )
        left_s = explained.answers[0].reset_after
        passed_s = time.monotonic() - admitted
        assert window_s - passed_s - 0.5 < left_s <= window_s - passed_s + slice_s


def test_a_region_that_is_cut_off_uses_its_share_if_the_rule_says_so(
    tmp_path: Path,
) -> None:
    with two_regions(tmp_path, when_cut_off="share") as (eu, us):
        assert eu.admit(20) == 20
        meet(eu, us, 20)
        us.way.refuse()
        us.way.reset()
        wait_until(eu.cut_off, "it is noticed", within_s=WITHIN_S)
        assert eu.admit(100) == 30  # Of its share of 50.
        us.way.mend()
        wait_until(lambda: eu.is_up() and us.is_up(), "both hear again", within_s=WITHIN_S)
        meet(eu, us, 50)
        assert us.admit(100) == 50


@ON_BOTH
def test_messages_whose_reply_is_lost_are_repeated_and_charged_once(
    tmp_path: Path, store: str
) -> None:
    with two_regions(tmp_path, store) as (eu, us):
        for _ in range(5):
            for one in (eu, us):
                one.way.lose_replies(1, of=b"HG.REGION")
            assert (eu.admit(4), us.admit(3)) == (4, 3)
            lost = [one.way for one in (eu, us)]
            wait_until(
                lambda lost=lost: all(way.replies_lost for way in lost),  # type: ignore[misc]
                "replies are lost",
                within_s=WITHIN_S,
            )
        meet(eu, us, 35)


@ON_BOTH
def test_a_store_that_was_emptied_learns_from_the_other_region_what_it_had_admitted(
    tmp_path: Path, store: str
) -> None:
    with two_regions(tmp_path, store) as (eu, us):
        if store == "redis":  # As if much had been admitted before.
            (meta,) = eu.store.call("KEYS", "*regions:meta")
            eu.store.call("HINCRBY", meta, "changes", 1_000)
        assert (eu.admit(30), us.admit(20)) == (30, 20)
        meet(eu, us, 50)
        eu.store.empty()
        eu.admit(1, "another")  # An engine on etcd notices when it writes.
        meet(eu, us, 50)
        assert eu.admit(100) == 50
        meet(eu, us, 100)
        assert eu.admit(5, "new") == 5
        wait_until(lambda: us.remaining("new") == 95, "the other hears", within_s=WITHIN_S)


@ON_BOTH
def test_another_node_takes_over_when_the_shipper_is_gone(tmp_path: Path, store: str) -> None:
    with two_regions(tmp_path, store) as (eu, us):
        (port,) = free_ports(1)
        rules = tmp_path / "rules.yaml"
        with node_of("eu", eu.store, port, eu.way, rules, node_id="second") as second:
            first = eu.node.node.exchange
            other = second.node.exchange
            assert first is not None
            assert other is not None
            assert (first.shippers[0].leads, other.shippers[0].leads) == (True, False)

            async def die() -> None:
                for task in first._tasks:
                    task.cancel()

            eu.node.wait(die())
            after = Region(second, eu.store, eu.way)
            assert after.admit(10) == 10
            wait_until(lambda: other.shippers[0].leads, "the other one tells", within_s=WITHIN_S)
            meet(after, us, 10)


def test_regions_need_an_operators_token_and_others_are_refused(tmp_path: Path) -> None:
    shown, kept = new_token("regions", "operator", now=datetime.now(UTC))
    wrong, checker = new_token("someone", "checker", now=datetime.now(UTC))
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        RULES.format(limit=10, window="day", algorithm="fixed_window", when_cut_off="limit")
    )
    rows = [f"sha256:{one.role}:{one.name}:{one.sha256}" for one in (kept, checker)]
    ports = free_ports(2)

    def one(region: str, port: int, other: str, to: int, token: str) -> Any:
        urls = f"{other}=headgate://:{token}@{HOST}:{to}"
        said = {"region": region, "regions": urls, "rules": str(rules), "tokens": ",".join(rows)}
        return resp_node(resp_port=port, check_needs_token=True, **said)

    with (
        one("eu", ports[0], "us", ports[1], shown) as eu,
        one("us", ports[1], "eu", ports[0], wrong) as us,
    ):
        to_us, to_eu = eu.node.exchange, us.node.exchange
        assert to_us is not None
        assert to_eu is not None
        wait_until(
            lambda: bool(to_us.shippers[0].link.sent_messages), "eu tells", within_s=WITHIN_S
        )
        wait_until(lambda: to_eu.shippers[0].problem is not None, "us may not", within_s=WITHIN_S)
        assert "NOPERM" in str(to_eu.shippers[0].problem)
        assert to_us.shippers[0].problem is None


def test_hammered_from_both_sides_the_limit_is_exceeded_by_no_more_than_the_lag_explains(
    tmp_path: Path,
) -> None:
    """Both regions ask as fast as they can until they are denied for good."""
    limit = 20_000
    with two_regions(tmp_path, limit=limit) as (eu, us), ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(_until_denied, (eu, us)))
        admitted = sum(one.admitted for one in runs)
        meet(eu, us, admitted, limit)
    over = admitted - limit
    # What one region can admit while the other does not know of it, at its own highest rate.
    explained = max(one.fastest * one.lag_seconds for one in runs)
    assert 0 <= over <= min(limit, explained), runs


class Run(NamedTuple):
    """What became of a region that was hammered."""

    admitted: int
    fastest: float
    """Units a second, in the fastest part."""
    lag_seconds: float
    """How old the other region's knowledge was at worst."""


def _until_denied(region: Region) -> Run:
    exchange = region.node.node.exchange
    assert exchange is not None
    admitted, fastest, lag = 0, 0.0, 0.0
    while True:
        began = time.monotonic()
        found = region.admit(200)
        admitted += found
        fastest = max(fastest, found / (time.monotonic() - began))
        lag = max(lag, *(link.lag_seconds or 0.0 for link in exchange.links()))
        if not found:
            return Run(admitted, fastest, lag)
