"""The board on etcd: what it costs, what is left behind, and services that need nothing else."""

from __future__ import annotations

import asyncio
import base64
import re
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from headgate.adaptive.selector import BACKOFF, WINDOW
from headgate.board import Ban, Board, NodeIdentity, Report, Totals
from headgate.board.etcd import LISTS_US
from headgate.board.shared_lists import top_to_bytes
from headgate.board.store import MAX_AGREED, ChoiceProposal, StoredChoice
from headgate.cli import main
from headgate.clock import ManualClock
from headgate.engines.etcd.transactions import Put
from tests.servers.etcd import Etcd, EtcdNode, etcd
from tests.servers.fixtures import installed
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.board_stories import AdaptiveNode, board_on, push_of
from tests.service.etcd_boards import etcd_store, new_board
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers() -> Iterator[Etcd]:
    with installed(), etcd(1) as started:
        yield started


@pytest.fixture
def url(servers: Etcd) -> str:
    servers.heal()
    return new_board(servers)


def calls(server: EtcdNode) -> dict[str, int]:
    """How often each method was called so far."""
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found = re.findall(
        r'^grpc_server_started_total\{grpc_method="(\w+)".*\} (\S+)$', text, re.MULTILINE
    )
    return {method: int(float(many)) for method, many in found}


def keys_of(server: EtcdNode, url: str) -> list[str]:
    """Everything that a board has left in etcd, without what all of it begins with."""
    prefix = f"/headgate/{url.rpartition('/')[2]}/b//"
    first, end = (base64.b64encode(one.encode()).decode() for one in (prefix, prefix[:-1] + "0"))
    found = server.call("/v3/kv/range", {"key": first, "range_end": end, "keys_only": True})
    return [
        base64.b64decode(one["key"]).decode().removeprefix(prefix) for one in found.get("kvs", ())
    ]


def test_a_beat_is_one_transaction(servers: Etcd, url: str) -> None:
    async def story() -> dict[str, int]:
        board = board_on(etcd_store(url), "a", lambda: Report(Totals(1, 0)))
        await board.beat()
        before = calls(servers.nodes[0])
        for _ in range(10):
            await board.beat()
        after = calls(servers.nodes[0])
        await board.stop()
        return {name: many - before[name] for name, many in after.items() if many != before[name]}

    assert asyncio.run(story()) == {"Txn": 10}


def test_nodes_that_have_left_leave_only_what_people_set_and_totals(
    servers: Etcd, url: str
) -> None:
    async def story() -> None:
        lists = {"top": top_to_bytes([], 0)}
        for name in ("a", "b", "c"):
            board = board_on(etcd_store(url), name, lambda: Report(Totals(1, 0), lists), ttl=0.3)
            await board.beat()
            await board.keep("b", Ban(key=f"by {name}"))
            if name != "b":  # That one dies.
                await board.stop()
        await asyncio.sleep(2.5)  # Four times the TTL, and a second that is told of.
        last = board_on(etcd_store(url), "last", ttl=0.3)
        for _ in range(3):
            await last.beat()
            await asyncio.sleep(0.15)  # A heartbeat removes what is over.
        assert last.view.totals == Totals(3, 0)
        await last.stop()

    asyncio.run(story())
    left = keys_of(servers.nodes[0], url)
    assert [name for name in left if name.startswith("kept/")] == [
        f"kept/b:by {name}" for name in ("a", "b", "c")
    ]
    rest = [name for name in left if not name.startswith(("kept/", "live/counts/"))]
    assert rest == ["live/gone", "live/revision/kept"]


def test_lists_are_written_at_most_every_few_seconds(url: str) -> None:
    async def story() -> list[bytes]:
        clock = ManualClock(1_800_000_000.0)
        store = etcd_store(url, clock=clock)
        seen = []
        for second in range(6):
            await store.exchange(push_of("a", lists={"top": b"%d" % second}))
            seen.append((await store.lists("top"))["a"])
            clock.advance(1)
        await store.aclose()
        return seen

    assert LISTS_US == 3_000_000
    assert asyncio.run(story()) == [b"0", b"0", b"0", b"3", b"3", b"3"]


def test_two_namespaces_are_two_boards(url: str) -> None:
    async def story() -> None:
        stores = [etcd_store(url, namespace) for namespace in ("one", "one/two")]
        boards = [Board(store, NodeIdentity(id="n", address="")) for store in stores]
        await boards[0].keep("b", Ban(key="k"))
        await boards[1].beat()
        assert not boards[1].view.bans
        for board in boards:
            await board.stop()

    asyncio.run(story())


def test_a_store_holds_choices_for_a_bounded_number_of_scopes(servers: Etcd, url: str) -> None:
    async def story() -> None:
        store = etcd_store(url)
        for number in range(MAX_AGREED):
            await store._client.transact([], [Put(f"{store._paths.agreed}rule {number}", b"1:[]")])
        assert await store.agree(ChoiceProposal("one more", 0, StoredChoice(1, b"[]")))
        await store.aclose()

    asyncio.run(story())
    left = [name for name in keys_of(servers.nodes[0], url) if name.startswith("agreed/")]
    assert left == ["agreed/one more"]


def test_the_board_outlives_etcd_and_what_people_set_survives(servers: Etcd, url: str) -> None:
    async def story() -> None:
        (server,) = servers.nodes
        board = board_on(etcd_store(url), "a", lambda: Report(Totals(5, 0)))
        assert await board.beat()
        await board.keep("b", Ban(key="k"))
        server.kill()
        assert not await board.beat()
        assert board.problem is not None
        assert not board.reachable
        assert set(board.view.bans) == {"k"}
        server.restart()
        servers.wait_until_whole()
        ends = time.monotonic() + 20
        while not await board.beat():
            assert time.monotonic() < ends, board.problem
        assert [one.identity.id for one in board.view.nodes] == ["a"]
        assert set(board.view.bans) == {"k"}
        assert board.view.totals == Totals(5, 0)
        await board.stop()

    asyncio.run(story())


async def until(what: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it took too long"
        await asyncio.sleep(0.02)  # Nodes beat by the real clock.


def test_three_nodes_agree_on_an_algorithm_also_when_etcd_was_killed(
    servers: Etcd, url: str
) -> None:
    async def story() -> None:
        nodes = [AdaptiveNode(etcd_store(url), f"node {at}") for at in range(3)]
        for node in nodes:
            await node.board.start()

        async def load() -> None:
            while True:
                nodes[0].count.requests += 20
                nodes[0].count.denied += 19
                await asyncio.sleep(0.1)  # The load of a tenth of a second.

        abuse = asyncio.create_task(load())
        await until(lambda: {node.known()[1] for node in nodes} == {BACKOFF}, 30)
        assert len({node.known() for node in nodes}) == 1
        servers.nodes[0].kill()
        await asyncio.sleep(1.5)  # While it is away, everybody keeps what there was.
        assert {node.known()[1] for node in nodes} == {BACKOFF}
        servers.nodes[0].restart()
        abuse.cancel()
        await until(lambda: {node.known()[1] for node in nodes} == {WINDOW}, 60)
        await until(lambda: len({node.known() for node in nodes}) == 1, 20)
        for node in nodes:
            await node.board.stop()

    asyncio.run(story())


def plain(answer: tuple[int, dict[str, str], Any]) -> Any:
    status, _, body = answer
    assert status < 300, body
    return body


@pytest.mark.heavy
def test_services_on_etcd_share_bans_limits_and_the_algorithm_without_a_redis(
    servers: Etcd, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = f"etcd://{servers.hosts}/services?shards=4&deadline=5"

    def node(port: int) -> tuple[str, ...]:
        quick = ("--set", "heartbeat=0.5", "--set", "node_ttl=3")
        return ("--engine", engine, "--resp-port", str(port), *quick)

    def up(one: Service) -> list[str]:
        return [
            row["id"]
            for row in plain(one.ask("GET", "/api/nodes"))["nodes"]
            if row["state"] == "Up"
        ]

    first_port, second_port = free_ports(2)
    with service(*node(first_port)) as first, service(*node(second_port)) as second:
        wait_until(lambda: len(up(first)) == 2 == len(up(second)), "both see both", within_s=30)
        plain(first.ask("PUT", "/api/bans/bad", {"reason": "spam"}))
        plain(first.ask("PUT", "/api/limits/vip", {"limit": 7, "window": 60}))
        plain(first.ask("PUT", "/api/choice/*", {"algorithm": "token_bucket"}))
        wait_until(lambda: not second.check("bad")["allowed"], "the ban is known", within_s=10)
        wait_until(lambda: second.check("vip", cost=0)["limit"] == 7, "the limit is", within_s=10)
        wait_until(
            lambda: (
                plain(second.ask("GET", "/api/choice"))["overall"]["algorithm"] == "token_bucket"
            ),
            "the algorithm is",
            within_s=10,
        )
        for _ in range(5):
            first.check("counted")
        wait_until(
            lambda: plain(second.ask("GET", "/api/traffic"))["total_requests"] >= 5,
            "traffic is known",
            within_s=10,
        )
        shards_are_shown(first, capsys)
        second.kill()
        wait_until(lambda: len(up(first)) == 1, "one is down", within_s=20)
        wait_until(
            lambda: (
                plain(first.ask("GET", "/api/nodes"))["free_shards"] == 0
                and plain(first.ask("GET", "/health"))["store"] == {"kind": "etcd", "state": "up"}
            ),
            "the other one decides everything",
            within_s=20,
        )


def shards_are_shown(one: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Who owns how many, and how commits go: over HTTP and as a command."""

    def owned() -> list[int]:
        rows = plain(one.ask("GET", "/api/nodes"))["nodes"]
        return [row["shards"]["owned"] for row in rows if row["shards"]]

    wait_until(lambda: owned() == [2, 2], "both tell what they own", within_s=30)
    for number in range(40):
        one.check(f"key{number}")
    wait_until(lambda: commit_times(one)[0] is not None, "commits are timed", within_s=10)
    p50_us, p99_us = commit_times(one)
    assert 0 < p50_us <= p99_us
    assert main(["status", "--url", f"http://{HOST}:{one.port}"]) == 0
    told = capsys.readouterr().out
    assert "store     etcd, connected: 4 shards on 2 nodes\n" in told
    assert "COMMIT P50 / P99" in told
    assert re.search(r"Up .* 2  \d+\.\d / \d+\.\d ms +\d+, \d+\.\d ms\n", told)


def commit_times(one: Service) -> tuple[int, int]:
    rows = plain(one.ask("GET", "/api/nodes"))["nodes"]
    own = next(row["shards"] for row in rows if row["address"].endswith(f":{one.port}"))
    return own["commit_p50_us"], own["commit_p99_us"]
