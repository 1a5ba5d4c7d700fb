"""Several boards on one store, on one clock that stands still: what each node knows, exactly."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.algorithms import SlidingWindow, TokenBucket
from headgate.board import Ban, Board, KeyOverride, MemoryStore, NodeIdentity, Report, Totals
from headgate.board.model import Block
from headgate.board.shared_lists import blocks_to_bytes, top_to_bytes
from headgate.board.sketch import TopKey
from headgate.board.store import BoardPull, BoardPush
from headgate.clock import ManualClock
from headgate.errors import ConfigError, EngineError, UsageError

SECOND_US = 1_000_000


class Node:
    """A board with counts that a test sets."""

    def __init__(self, store: MemoryStore, clock: ManualClock, name: str) -> None:
        self.report = Report()
        identity = NodeIdentity(id=name, address=f"{name}:8080")
        self.board = Board(store, identity, report=lambda: self.report, clock=clock)

    def count(self, requests: int, denied: int = 0) -> None:
        totals = self.report.totals
        self.report = self.report._replace(
            totals=Totals(totals.requests + requests, totals.denied + denied)
        )

    def beat(self) -> bool:
        return asyncio.run(self.board.beat())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.05)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def a(store: MemoryStore, clock: ManualClock) -> Node:
    return Node(store, clock, "a")


@pytest.fixture
def b(store: MemoryStore, clock: ManualClock) -> Node:
    return Node(store, clock, "b")


def states(node: Node) -> dict[str, str]:
    return {seen.identity.id: seen.state for seen in node.board.view.nodes}


def test_a_silent_node_is_down_after_its_ttl_and_gone_after_four(
    a: Node, b: Node, clock: ManualClock
) -> None:
    b.beat()
    registered_us = clock.now_us()
    seen = {}
    for _ in range(125):
        a.beat()
        seen[(clock.now_us() - registered_us) // SECOND_US] = states(a).get("b", "gone")
        clock.advance(1)
    assert {seen[second] for second in range(31)} == {"Up"}
    assert {seen[second] for second in range(31, 121)} == {"Down"}
    assert {seen[second] for second in range(121, 125)} == {"gone"}


def test_a_heartbeat_keeps_the_time_of_registration(a: Node, clock: ManualClock) -> None:
    a.beat()
    first_us = clock.now_us()
    clock.advance(45)
    a.beat()
    (seen,) = a.board.view.nodes
    assert (seen.registered_at_us, seen.last_seen_us) == (first_us, first_us + 45 * SECOND_US)


def test_a_node_is_registered_from_its_start(a: Node, clock: ManualClock) -> None:
    (seen,) = a.board.view.nodes
    assert (seen.registered_at_us, seen.last_seen_us) == (clock.now_us(), clock.now_us())


def test_expired_entries_are_not_shown_before_the_next_beat(a: Node, clock: ManualClock) -> None:
    a.beat()
    ban = Ban(key="k", until_us=clock.now_us() + SECOND_US // 2)
    asyncio.run(a.board.keep("b", ban))
    assert a.board.view_now().bans == {"k": ban}
    clock.advance(0.5)
    assert a.board.view_now().bans == {}


def test_a_heartbeat_that_is_longer_than_the_ttl_is_refused(store: MemoryStore) -> None:
    identity = NodeIdentity(id="a", address="", ttl_us=10 * SECOND_US)
    with pytest.raises(UsageError, match="every 10 s is too slow"):
        Board(store, identity)


def test_traffic_of_all_nodes_is_added_by_the_second(a: Node, b: Node, clock: ManualClock) -> None:
    for node in (a, b):
        node.beat()
    for many in (3, 5):
        a.count(many, denied=1)
        b.count(10)
        clock.advance(1)
        for node in (a, b):
            node.beat()
    a.beat()
    assert [one.requests for one in a.board.view.seconds] == [0] * 8 + [13, 15]
    assert [one.denied for one in a.board.view.seconds] == [0] * 8 + [1, 1]
    assert a.board.view.totals == Totals(28, 2)


def test_a_late_reading_is_spread_over_the_seconds_it_covers(a: Node, clock: ManualClock) -> None:
    a.beat()
    a.count(9)
    clock.advance(3)
    a.beat()
    assert [one.requests for one in a.board.view.seconds][-3:] == [3, 3, 3]


def test_totals_of_a_node_that_left_stay_counted(a: Node, b: Node) -> None:
    b.count(7, denied=2)
    b.beat()
    asyncio.run(b.board.stop())
    a.count(1)
    a.beat()
    assert states(a) == {"a": "Up"}
    assert a.board.view.totals == Totals(8, 2)


def test_a_setting_applies_here_at_once_and_elsewhere_with_the_next_beat(a: Node, b: Node) -> None:
    b.beat()
    asyncio.run(a.board.keep("l", KeyOverride(key="k", rate="5/minute")))
    assert a.board.view.limits["k"] == SlidingWindow(5, 60 * SECOND_US)
    assert not b.board.view.limits
    b.beat()
    assert b.board.view.limits["k"] == SlidingWindow(5, 60 * SECOND_US)


def test_an_override_wins_over_a_permanent_limit_until_it_ends(a: Node, clock: ManualClock) -> None:
    until_us = clock.now_us() + 3 * SECOND_US
    asyncio.run(a.board.keep("l", KeyOverride(key="k", rate="5/minute")))
    override = KeyOverride(key="k", rate="50/minute burst 9", until_us=until_us)
    asyncio.run(a.board.keep("o", override))
    assert dict(a.board.view.limits) == {"k": TokenBucket(50, 60 * SECOND_US, 9)}
    clock.advance(3)
    a.beat()
    assert dict(a.board.view.limits) == {"k": SlidingWindow(5, 60 * SECOND_US)}
    assert not a.board.view.overrides


def test_an_override_of_a_rule_is_stored_apart_and_ends_by_itself(
    a: Node, b: Node, clock: ManualClock
) -> None:
    until_us = clock.now_us() + 3 * SECOND_US
    rule = "per-user: 50 % / day"  # Names of rules may hold anything.
    override = KeyOverride(key="a:b", rate="50/minute", until_us=until_us, rule=rule)
    asyncio.run(a.board.keep("o", override))
    b.beat()
    for node in (a, b):
        assert node.board.view.rule_overrides == {rule: {"a:b": override}}
        assert node.board.view.rule_limits == {rule: {"a:b": SlidingWindow(50, 60 * SECOND_US)}}
        assert not node.board.view.limits
    assert not asyncio.run(a.board.remove("o", "a:b"))
    clock.advance(3)
    a.beat()
    assert not a.board.view.rule_limits
    asyncio.run(a.board.keep("o", replace(override, until_us=clock.now_us() + SECOND_US)))
    assert asyncio.run(a.board.remove("o", "a:b", rule))
    assert not a.board.view.rule_limits


def test_bans_end_by_themselves_unless_they_were_set_to_stay(a: Node, clock: ManualClock) -> None:
    asyncio.run(a.board.keep("b", Ban(key="short", until_us=clock.now_us() + SECOND_US)))
    asyncio.run(a.board.keep("b", Ban(key="long", reason="spam", by="ann")))
    assert set(a.board.view.bans) == {"short", "long"}
    clock.advance(86_400)
    a.beat()
    assert list(a.board.view.bans.values()) == [Ban(key="long", reason="spam", by="ann")]


def test_removing_says_whether_there_was_anything(a: Node) -> None:
    asyncio.run(a.board.keep("b", Ban(key="k")))
    assert asyncio.run(a.board.remove("b", "k")) is True
    assert asyncio.run(a.board.remove("b", "k")) is False
    assert not a.board.view.bans


def test_entries_that_cannot_be_read_are_left_out(a: Node, store: MemoryStore) -> None:
    asyncio.run(store.change("b:later", b'{"until_us":null,"new_field":1}', None))
    asyncio.run(store.change("b:torn", b"{", None))
    asyncio.run(store.change("l:odd", b'{"rate":"5/fortnight"}', None))
    asyncio.run(store.change("z:unknown", b"{}", None))
    a.beat()
    assert set(a.board.view.bans) == {"later"}
    assert not a.board.view.limits


def test_the_number_of_settings_is_bounded(a: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.board.board.MAX_KEPT", 2)
    for key in ("x", "y", "y"):
        asyncio.run(a.board.keep("b", Ban(key=key)))
    with pytest.raises(UsageError, match="write a rule instead"):
        asyncio.run(a.board.keep("b", Ban(key="z")))


@pytest.mark.parametrize(
    "words",
    [
        {"key": "", "rate": "5/minute"},
        {"key": "k", "rate": "5 fish"},
        {"key": "k", "rate": "1/second; 9/minute"},
        {"key": "k", "rate": "5/minute", "reason": "x" * 501},
        {"key": "\ud800", "rate": "5/minute"},
    ],
    ids=["empty key", "no rate", "two rates", "long reason", "no text"],
)
def test_entries_that_make_no_sense_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        KeyOverride(**words)  # type: ignore[arg-type]


def test_other_nodes_blocks_are_shown_until_they_end(a: Node, b: Node, clock: ManualClock) -> None:
    until_us = clock.now_us() + SECOND_US
    b.report = Report(lists={"blocks": blocks_to_bytes([Block("k", until_us, "why")])})
    b.beat()
    assert asyncio.run(a.board.blocks()) == [Block("k", until_us, "why")]
    assert asyncio.run(b.board.blocks()) == []  # It knows its own better.
    clock.advance(1)
    assert asyncio.run(a.board.blocks()) == []


def test_top_keys_are_merged_over_nodes(a: Node, b: Node) -> None:
    b.report = Report(lists={"top": top_to_bytes([TopKey("k", 5, 0), TopKey("l", 2, 1)], 1)})
    b.beat()
    top = asyncio.run(a.board.top(([TopKey("k", 10, 0), TopKey("m", 4, 0)], 0), 2))
    assert top == [TopKey("k", 15, 0), TopKey("m", 5, 1)]


class Unreachable(MemoryStore):
    """A store that can be cut off."""

    away = False

    async def exchange(self, push: BoardPush) -> BoardPull:
        if self.away:
            raise EngineError("gone fishing", transient=True)
        return await super().exchange(push)


def test_an_outage_of_the_store_is_logged_once_and_so_is_its_end(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Unreachable(clock=clock)
    node = Node(store, clock, "a")
    store.away = True
    assert [node.beat(), node.beat(), node.board.reachable] == [False, False, False]
    store.away = False
    assert [node.beat(), node.beat(), node.board.reachable] == [True, True, True]
    assert caplog.messages == ["the board does not answer: gone fishing", "the board answers again"]


def test_during_an_outage_the_last_view_stays_with_the_problem(clock: ManualClock) -> None:
    store = Unreachable(clock=clock)
    a, b = Node(store, clock, "a"), Node(store, clock, "b")
    asyncio.run(a.board.keep("b", Ban(key="k", until_us=clock.now_us() + 4 * SECOND_US)))
    b.beat()
    a.beat()
    store.away = True
    for _ in range(3):
        a.count(2)
        clock.advance(1)
        assert a.beat() is False
    assert (a.board.problem, a.board.stale_seconds) == ("gone fishing", 3.0)
    assert states(a) == {"a": "Up", "b": "Up"}
    assert set(a.board.view.bans) == {"k"}
    clock.advance(1)
    a.beat()
    assert not a.board.view.bans  # It ends here, too.
    store.away = False
    clock.advance(1)
    assert a.beat() is True
    assert (a.board.problem, a.board.stale_seconds) == (None, 0.0)
    assert [one.requests for one in a.board.view.seconds] == [0] * 5 + [2, 2, 2, 0, 0]


def test_a_node_that_the_store_has_forgotten_comes_back_with_the_next_beat(
    a: Node, b: Node, store: MemoryStore
) -> None:
    a.beat()
    asyncio.run(store.leave("a"))
    a.beat()
    a.beat()
    b.beat()
    assert states(b) == {"a": "Up", "b": "Up"}


def test_a_change_during_a_beat_is_not_undone_by_it(clock: ManualClock) -> None:
    """The answer of an exchange that began before the change does not know of it."""

    class Slow(MemoryStore):
        async def exchange(self, push: BoardPush) -> BoardPull:
            pulled = await super().exchange(push)
            await board.keep("b", Ban(key="k"))
            return pulled

    store = Slow(clock=clock)
    board = Board(store, NodeIdentity(id="a", address=""), clock=clock)
    asyncio.run(store.change("b:other", b"{}", None))
    asyncio.run(board.beat())
    assert set(board.view.bans) == {"k"}


def test_settings_survive_a_restart_with_a_file(tmp_path: Path, clock: ManualClock) -> None:
    file = tmp_path / "board.json"
    first = Node(MemoryStore(clock=clock, file=file), clock, "a")
    asyncio.run(first.board.keep("l", KeyOverride(key="k", rate="5/minute", by="ann", reason="é")))
    asyncio.run(first.board.keep("b", Ban(key="gone", until_us=clock.now_us() + SECOND_US)))
    clock.advance(2)
    second = Node(MemoryStore(clock=clock, file=file), clock, "a")
    second.beat()
    assert second.board.view.key_limits == first.board.view.key_limits
    assert not second.board.view.bans


def test_the_file_of_settings_is_readable_by_its_owner_only(
    tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "board.json"
    file.write_text('{"format": 1, "kept": {}}')
    file.chmod(0o644)
    node = Node(MemoryStore(clock=clock, file=file), clock, "a")
    asyncio.run(node.board.keep("b", Ban(key="k")))
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_torn_file_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text('{"kept": [')
    with pytest.raises(ConfigError, match=r"board\.json is not a valid board"):
        MemoryStore(file=file)


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    node = Node(MemoryStore(clock=clock, file=folder / "board.json"), clock, "a")
    shutil.rmtree(folder)
    with pytest.raises(EngineError, match="cannot be written"):
        asyncio.run(node.board.keep("b", Ban(key="k")))
    assert not node.board.view.bans


def test_a_file_that_can_never_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written to .*/missing/board\.json"):
        MemoryStore(file=tmp_path / "missing" / "board.json")


def test_a_started_board_beats_once_a_second_until_it_is_stopped(
    store: MemoryStore, clock: ManualClock
) -> None:
    async def story() -> tuple[int, int]:
        beats, start_us = 0, clock.now_us()

        def report() -> Report:
            nonlocal beats
            beats += 1
            return Report()

        board = Board(store, NodeIdentity(id="a", address=""), report=report, clock=clock)
        await board.start()
        for _ in range(20):  # Sleeping moves the clock to the next second.
            await asyncio.sleep(0)
        passed_s = (clock.now_us() - start_us) // SECOND_US
        await board.stop()
        return beats, passed_s

    beats, passed_s = asyncio.run(story())
    assert passed_s > 3
    assert beats in (passed_s + 2, passed_s + 3)  # At the start, in between, and at the end.


@pytest.mark.parametrize("politely", [True, False])
def test_totals_and_rates_do_not_fall_when_a_node_ends_and_another_takes_its_place(
    store: MemoryStore, clock: ManualClock, a: Node, b: Node, *, politely: bool
) -> None:
    for node in (a, b):
        node.beat()
    for node in (a, b):
        node.count(1_500, 100)
    clock.advance(1)
    for node in (b, a):
        node.beat()
    before = a.board.view
    assert before.totals == Totals(3_000, 200)
    if politely:
        asyncio.run(b.board.stop())
    again = Node(store, clock, "b")
    again.beat()
    again.count(16)
    clock.advance(1)
    again.beat()
    a.beat()
    assert a.board.view.totals == Totals(3_016, 200)
    assert sum(one.requests for one in a.board.view.seconds) == 3_016
    for _ in range(30):  # Until what the first one counted is added up with that of others.
        clock.advance(10)
        again.beat()
        a.beat()
        assert a.board.view.totals == Totals(3_016, 200)
    assert len(store._counts) == 2
