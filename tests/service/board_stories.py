"""What a board's store must do, as stories that run on any: `open_store` connects once more to the same board."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeAlias

from headgate.adaptive.control import AdaptiveControl
from headgate.adaptive.selector import BUCKET, WINDOW, Thresholds
from headgate.board import Ban, Board, KeyOverride, NodeIdentity, Report, Totals
from headgate.board.model import Block
from headgate.board.shared_lists import blocks_to_bytes, top_to_bytes
from headgate.board.sketch import TopKey
from headgate.board.store import BoardPush, ChoiceProposal, StoredChoice

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.board import BoardStore

    OpenStore: TypeAlias = Callable[[], BoardStore]

QUICK = Thresholds(dwell_us=1_000_000)


def board_on(
    store: BoardStore, name: str, report: Callable[[], Report] = Report, *, ttl: float = 30
) -> Board:
    identity = NodeIdentity(id=name, address=f"{name}:80", ttl_us=round(ttl * 1e6))
    return Board(store, identity, report=report, heartbeat_us=100_000)


def push_of(node: str, **fields: object) -> BoardPush:
    return BoardPush(node=node, identity=b"{}", forget_us=60_000_000, **fields)  # type: ignore[arg-type]


async def nodes_see_each_other_and_what_people_set(open_store: OpenStore) -> None:
    """Everything a board can do."""
    until_us = time.time_ns() // 1000 + 60_000_000
    lists = {
        "blocks": blocks_to_bytes([Block("blocked", until_us, "why")]),
        "top": top_to_bytes([TopKey("k", 3, 0)], 0),
    }
    a = board_on(open_store(), "a")
    b = board_on(open_store(), "b/0", lambda: Report(Totals(10, 4), lists))
    assert await b.beat(), b.problem
    assert await a.beat(), a.problem
    assert [(one.identity.id, one.state) for one in a.view.nodes] == [("a", "Up"), ("b/0", "Up")]
    assert a.view.nodes[1].identity.address == "b/0:80"
    assert a.view.totals == Totals(10, 4)
    assert await a.blocks() == [Block("blocked", until_us, "why")]
    assert await a.top(([], 0), 5) == [TopKey("k", 3, 0)]
    await a.keep("l", KeyOverride(key="ключ{}/", rate="5/minute", by="ann", reason="slow down"))
    await a.keep("b", Ban(key="bad"))
    await b.beat()
    assert b.view.limits["ключ{}/"].limit == 5
    assert b.view.key_limits == a.view.key_limits
    assert set(b.view.bans) == {"bad"}
    assert await b.remove("b", "bad") is True
    assert await b.remove("b", "bad") is False
    await a.beat()
    assert not a.view.bans
    await b.stop()
    await a.beat()
    assert [one.identity.id for one in a.view.nodes] == ["a"]
    assert a.view.totals == Totals(10, 4)
    assert await a.others("top") == {}
    await a.stop()


async def totals_do_not_fall_when_a_node_takes_the_place_of_another(open_store: OpenStore) -> None:
    seen = []
    a = board_on(open_store(), "a", lambda: Report(Totals(1_000, 10)), ttl=0.6)
    dies = board_on(open_store(), "b", lambda: Report(Totals(2_000, 20)), ttl=0.6)
    await dies.beat()
    await asyncio.sleep(1.1)  # Until it has counted a whole second.
    await dies.beat()
    store = open_store()
    b = board_on(store, "b", lambda: Report(Totals(16, 1)), ttl=0.6)
    began = time.monotonic()
    while time.monotonic() - began < 4.5:  # Four times the TTL, and more.
        await b.beat()
        await a.beat()
        seen.append(a.view.totals)
        await asyncio.sleep(0.25)  # Nodes beat every second; the clock is the store's.
    assert set(seen) == {Totals(3_016, 31)}
    pulled = await store.exchange(push_of("b", life=b._life))
    assert len(pulled.counts) == 2  # Of two nodes that live,
    assert pulled.gone == Totals(2_000, 20)  # and what is left of the third.
    await dies._store.aclose()
    await a.stop()
    await b.stop()


async def a_silent_node_is_down_and_then_gone(open_store: OpenStore) -> None:
    a, b = board_on(open_store(), "a", ttl=0.5), board_on(open_store(), "b", ttl=0.5)
    await b.beat()
    states = []
    began = time.monotonic()
    while "gone" not in states and time.monotonic() - began < 20:
        await a.beat()
        found = {one.identity.id: one.state for one in a.view.nodes}
        assert found["a"] == "Up"
        states.append(found.get("b", "gone"))
        await asyncio.sleep(0.1)  # The clock is the store's.
    assert list(dict.fromkeys(states)) == ["Up", "Down", "gone"]
    assert time.monotonic() - began >= 2.0  # Four times its TTL.
    await a.stop()
    await b._store.aclose()


async def a_node_that_starts_again_keeps_the_time_of_its_registration(
    open_store: OpenStore,
) -> None:
    first = board_on(open_store(), "a")
    await first.beat()
    (seen,) = first.view.nodes
    await first._store.aclose()  # It dies without leaving.
    again = board_on(open_store(), "a")
    await again.beat()
    (found,) = again.view.nodes
    assert found.registered_at_us == seen.registered_at_us
    assert found.last_seen_us > seen.last_seen_us
    await again.stop()


async def an_override_ends_in_the_store_and_everywhere(open_store: OpenStore) -> None:
    a, b = board_on(open_store(), "a"), board_on(open_store(), "b")
    await a.beat()
    until_us = a.now_us() + 300_000
    await a.keep("o", KeyOverride(key="k", rate="5/minute", until_us=until_us))
    await a.keep("b", Ban(key="stays"))
    await b.beat()
    assert set(b.view.overrides) == {"k"}
    await asyncio.sleep(0.45)  # It ends by the store's clock; with a heartbeat it is removed.
    for board in (a, b, a, b):
        await board.beat()
    assert not a.view.overrides
    assert not b.view.overrides
    store = open_store()
    kept = (await store.exchange(push_of("c"))).kept
    assert kept is not None
    assert set(kept) == {"b:stays"}
    await store.aclose()
    await a.stop()
    await b.stop()


async def what_has_not_changed_is_not_read_again(open_store: OpenStore) -> None:
    store = open_store()
    await store.change("b:k", b"{}", None)
    await store.agree(ChoiceProposal("rule", 0, StoredChoice(1, b"[]")))
    first = await store.exchange(push_of("a"))
    assert first.kept == {"b:k": b"{}"}
    assert first.agreed == {"rule": StoredChoice(1, b"[]")}
    again = await store.exchange(
        push_of("a", revision=first.revision, agreed_revision=first.agreed_revision)
    )
    assert (again.kept, again.agreed) == (None, None)
    assert (again.revision, again.agreed_revision) == (first.revision, first.agreed_revision)
    assert await store.change("b:k", None, None) == b"{}"
    third = await store.exchange(
        push_of("a", revision=first.revision, agreed_revision=first.agreed_revision)
    )
    assert (third.kept, third.agreed) == ({}, None)
    await store.aclose()


async def of_many_who_change_the_same_one_is_last_and_all_agree(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    boards = [board_on(store, f"n{at}") for at, store in enumerate(stores)]
    for board in boards:
        await board.beat()
    changes = [boards[at % 4].keep("b", Ban(key=f"k{at % 3}", reason=str(at))) for at in range(24)]
    await asyncio.gather(*changes)
    for board in boards:
        await board.beat()
    assert set(boards[0].view.bans) == {"k0", "k1", "k2"}
    assert all(board.view.bans == boards[0].view.bans for board in boards)
    proposals = [
        store.agree(ChoiceProposal("rule", 0, StoredChoice(1, str(at).encode())))
        for at, store in enumerate(stores)
    ]
    assert len({choice.blob for choice in await asyncio.gather(*proposals)}) == 1
    for board in boards:
        await board.stop()


class AdaptiveNode:
    """A board that carries choices, and a rule's traffic."""

    def __init__(self, store: BoardStore, name: str) -> None:
        self.control = AdaptiveControl(QUICK)
        self.count = self.control.scope("login")
        self.board = Board(
            store,
            NodeIdentity(id=name, address=""),
            report=lambda: Report(Totals(self.count.requests, self.count.denied)),
            control=self.control,
        )

    def known(self) -> tuple[int, str]:
        return self.control.agreement.known("login")[:2]


async def choices_are_compared_and_set(open_store: OpenStore) -> None:
    """And what an exchange brings of them."""
    a, b = AdaptiveNode(open_store(), "a"), AdaptiveNode(open_store(), "b")
    store = a.board._store
    one, two = StoredChoice(1, b'["x:{}"]'), StoredChoice(2, b"[2]")
    assert await store.agree(ChoiceProposal("правило", 0, one)) == one
    assert await store.agree(ChoiceProposal("правило", 0, two)) == one  # Somebody was faster.
    assert await store.agree(ChoiceProposal("правило", 1, two)) == two
    assert await store.agree(ChoiceProposal("другое", 7, two)) == StoredChoice()
    await a.board.beat()
    await b.board.beat()
    assert b.control.agreement.known("правило").epoch == 2
    await asyncio.sleep(1.1)  # Until there is a second to tell of.
    a.count.requests += 50
    await asyncio.sleep(1.1)  # And until it is over.
    await a.board.beat()
    b.count.requests += 1
    await asyncio.sleep(1.1)  # Buckets of others are read a second late.
    await b.board.beat()
    assert b.control.rates["login"].req_per_sec >= 5
    assert b.known()[1] in {WINDOW, BUCKET}
    await a.board.stop()
    await b.board.stop()


STORIES = (
    nodes_see_each_other_and_what_people_set,
    totals_do_not_fall_when_a_node_takes_the_place_of_another,
    a_silent_node_is_down_and_then_gone,
    a_node_that_starts_again_keeps_the_time_of_its_registration,
    an_override_ends_in_the_store_and_everywhere,
    what_has_not_changed_is_not_read_again,
    of_many_who_change_the_same_one_is_last_and_all_agree,
    choices_are_compared_and_set,
)
