"""Rules on real servers while the leader dies and a node is stopped past its session: nothing is lost.

`HEADGATE_RULE_CHANGES=2000` makes the long run; `-s` shows how long changes took to arrive.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.rules.live.editing import Editor
from headgate.rules.live.following import LiveRules
from headgate.rules.live.last_good import LastGood
from headgate.rules.sources.base import RuleStore, SourceError, VersionConflict
from headgate.rules.sources.etcd import EtcdStore
from headgate.rules.sources.opening import open_store
from tests.faults.followers import Follower, by_another_tool
from tests.servers.etcd import Etcd
from tests.servers.process import wait_until
from tests.servers.rule_stores import fresh_url
from tests.servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.heavy

CHANGES = int(os.environ.get("HEADGATE_RULE_CHANGES", "120"))
SEED = int(os.environ.get("HEADGATE_SEED", "7"))
SESSION_SECONDS = 2.0
FIRST = 100_000
"""The first limit; ten in a row are then near enough to each other for the guard."""


def limits_after(change: int) -> dict[str, int]:
    """What change number `change` leaves: it sets `counter` and one of ten other rules to its own number.

    A set that lacks one of the last ten changes, or has half of one, is then no set that this function gives.
    """
    others = {f"rule-{at % 10}": at for at in range(change - 9, change + 1)}
    return {"counter": change, **others}


def rules_with(limits: dict[str, int], description: str = "") -> bytes:
    rules = [
        {
            "rule_id": rule_id,
            "identifier": "ip_address",
            "rate": f"{limit}/minute",
            "description": description,
            "match": {"path_pattern": f"/{rule_id}"},
        }
        for rule_id, limit in limits.items()
    ]
    return json.dumps(rules).encode()


def alike(limit: int, count: int = 4) -> dict[str, int]:
    """Rules that all have one limit."""
    return {"counter": limit, **{f"rule-{at}": limit for at in range(count - 1)}}


def push(store: RuleStore, limits: dict[str, int], description: str = "") -> int:
    """Push until it is in, as a person would; returns the version."""
    deadline = time.monotonic() + 30
    while True:
        try:
            plan = Editor(store).push(rules_with(limits, description), "rules.json")
            if plan.changes_nothing:  # An earlier try got through after all.
                return plan.snapshot.version
            return plan.make(author="tester", at=time.time()).version
        except SourceError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # A store that is away may come back.


@contextlib.contextmanager
def a_store(url: str) -> Iterator[RuleStore]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.slow  # Leaders die, and a node sleeps past its session.
def test_three_nodes_follow_every_change_in_order_while_leaders_die_and_a_node_stops(
    rule_servers: ZooKeeper | Etcd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = f"?session_timeout={SESSION_SECONDS:g}" if isinstance(rule_servers, ZooKeeper) else ""
    url = fresh_url(rule_servers, options)
    made: dict[int, float] = {}
    versions = []
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(a_store(url))
        push(store, limits_after(FIRST))
        followers = [Follower(url, tmp_path, f"node-{at}") for at in range(3)]
        for follower in followers:
            stack.callback(follower.close)
        wait_until(lambda: all(one.lines() for one in followers), "they follow", within_s=20)
        trouble = Trouble(rule_servers, followers)
        for change in range(FIRST + 1, FIRST + CHANGES + 1):
            trouble.before(change - FIRST)
            versions.append(push(store, limits_after(change)))
            made[change] = time.monotonic()
        trouble.end()
        last = FIRST + CHANGES
        wait_until(lambda: all(one.has(last) for one in followers), "all is there", within_s=30)
        seen = [follower.lines() for follower in followers]
    assert versions == sorted(set(versions))
    for lines in seen:
        counters = [line["limits"]["counter"] for line in lines]
        assert counters == sorted(counters), "a node went back"
        assert [line["version"] for line in lines] == sorted(line["version"] for line in lines)
        for line in lines:
            assert line["limits"] == limits_after(line["limits"]["counter"]), "a change was lost"
    delays = sorted(_delay(seen[0], change, when) for change, when in made.items())
    with capsys.disabled():
        sys.stdout.write(
            f"\n{type(rule_servers).__name__}: {CHANGES} changes; node 1 used {len(seen[0])} sets, "
            f"node 2 (stopped) {len(seen[1])}, node 3 (restarted) {len(seen[2])}; until node 1 had a "
            f"change: p50 {1e3 * delays[len(delays) // 2]:.0f} ms, "
            f"p99 {1e3 * delays[int(len(delays) * 0.99)]:.0f} ms, max {1e3 * delays[-1]:.0f} ms\n"
        )
    assert delays[len(delays) // 2] < 1.0


class Trouble:
    """Two leaders die and come back, one node is stopped past its session, another is killed and started again."""

    def __init__(self, servers: ZooKeeper | Etcd, followers: list[Follower]) -> None:
        self._servers = servers
        self._stopped, self._restarted = followers[1:]
        self._resume_at = 0.0
        dice = random.Random(SEED)
        self._kill_at = {
            dice.randrange(part * CHANGES // 4, (part + 1) * CHANGES // 4) for part in (0, 2)
        }
        self._stop_at = dice.randrange(CHANGES // 4, CHANGES // 2)
        self._restart_at = dice.randrange(CHANGES // 4, CHANGES // 2)

    def before(self, change: int) -> None:
        if change in self._kill_at:
            self._servers.kill_leader()
        if change - 20 in self._kill_at:
            self._servers.heal()
        if change == self._stop_at:
            self._stopped.process.send_signal(signal.SIGSTOP)
            self._resume_at = time.monotonic() + 1.5 * SESSION_SECONDS
        if self._resume_at and time.monotonic() > self._resume_at:
            self._resume()
        if change == self._restart_at:
            self._restarted.restart()

    def end(self) -> None:
        if self._resume_at:
            # As long as it was to be silent.
            time.sleep(max(0.0, self._resume_at - time.monotonic()))
            self._resume()
        self._servers.heal()

    def _resume(self) -> None:
        self._stopped.process.send_signal(signal.SIGCONT)
        self._resume_at = 0.0


def _delay(lines: list[Any], change: int, when: float) -> float:
    """How long after the editor was told the node had it; less than nothing if the node was told first."""
    return float(next(line["at"] for line in lines if line["limits"]["counter"] >= change) - when)


@pytest.mark.slow  # Servers are stopped and come back.
def test_a_node_started_while_the_source_is_down_serves_the_last_good_set_and_catches_up(
    rule_servers: ZooKeeper | Etcd,
    tmp_path: Path,
) -> None:
    url = fresh_url(rule_servers, "?timeout=1")
    with a_store(url) as store:
        push(store, alike(10))
        copy = LastGood(tmp_path, url)
        LiveRules(open_store(url), last_good=copy).close()
    for node in rule_servers.nodes:
        node.kill()
    with pytest.raises(SourceError):
        LiveRules(open_store(url))
    live = LiveRules(open_store(url), last_good=copy)
    try:
        assert live.rules["counter"].limits[0].limit == 10
        assert live.problem is not None
        assert live.stale_seconds > 0
        rule_servers.heal()
        wait_until(lambda: live.stale_seconds == 0, "the source is found again", within_s=20)
        with a_store(url) as store:
            version = push(store, alike(11))
        wait_until(lambda: live.version >= version, "the change is followed", within_s=10)
        assert live.rules["counter"].limits[0].limit == 11
        assert live.problem is None
    finally:
        live.close()


@pytest.mark.slow  # Silence has to last for a while before it means something.
def test_a_server_that_hangs_is_left_for_another(
    rule_servers: ZooKeeper | Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open and nothing comes: that must not be taken for peace."""
    monkeypatch.setattr("headgate.rules.sources.etcd.store.HEARTBEAT", 0.2)
    monkeypatch.setattr("headgate.rules.sources.etcd.store.SILENCE", 0.6)
    is_zookeeper = isinstance(rule_servers, ZooKeeper)
    url = fresh_url(rule_servers, "?session_timeout=1" if is_zookeeper else "?timeout=1")
    live: LiveRules | None = None
    with a_store(url) as store:
        try:
            push(store, alike(10))
            live = LiveRules(open_store(url))
            wait_until(lambda: live.stale_seconds == 0, "it listens")
            port = _port_of(live)
            next(node for node in rule_servers.nodes if node.port == port).stop()
            version = push(store, alike(11))
            wait_until(lambda: live.version >= version, "the change came another way", within_s=15)
            wait_until(lambda: live.stale_seconds == 0, "it listens again", within_s=15)
            assert live.problem is None
        finally:
            rule_servers.heal()
            if live is not None:
                live.close()


def _port_of(live: LiveRules) -> int:
    """Of the server that a node listens to."""
    source: Any = live._source
    if isinstance(source, EtcdStore):
        return int(source._client._in_order()[0].host.rpartition(":")[2])
    return int(source._client._connection._socket.getpeername()[1])


def test_of_two_editors_one_wins_and_the_other_gets_a_conflict(rules_url: str) -> None:
    with a_store(rules_url) as ann, a_store(rules_url) as bob:
        push(ann, alike(10))
        anns = Editor(ann).push(rules_with(alike(11)), "a.json")
        bobs = Editor(bob).push(rules_with(alike(12)), "b.json")
        anns.make(author="ann@one", at=time.time())
        with pytest.raises(VersionConflict, match="ann@one was first: revision 2"):
            bobs.make(author="bob@two", at=time.time())
        assert [entry.author for entry in bob.history()] == ["ann@one", "tester"]
        assert b"11/minute" in bob.read().documents["counter"]


def test_a_push_of_more_than_one_transaction_holds_is_followed_as_one(rules_url: str) -> None:
    """1.4 MB: nobody may see some of the old and some of the new limits."""
    description = "x" * 2_000
    with a_store(rules_url) as store:
        push(store, alike(10, 700), description)
        live = LiveRules(open_store(rules_url))
        try:
            seen: list[set[int]] = []
            live.subscribe(lambda now: seen.append({each.limits[0].limit for each in now.rules}))
            version = push(store, alike(11, 700), description)
            wait_until(lambda: live.version >= version and bool(seen), "it is there", within_s=30)
        finally:
            live.close()
        assert seen == [{11}]


def test_a_change_made_with_another_tool_is_noticed(rules_url: str) -> None:
    with a_store(rules_url) as store:
        push(store, alike(10))
        live = LiveRules(open_store(rules_url))
        try:
            wait_until(lambda: live.stale_seconds == 0, "it listens")
            by_another_tool(rules_url, "extra", rules_with({"extra": 10})[1:-1])
            wait_until(lambda: "extra" in live.current.by_id, "it was noticed")
            by_another_tool(rules_url, "extra", rules_with({"extra": 9})[1:-1])
            wait_until(lambda: live.rules["extra"].limits[0].limit == 9, "it was noticed")
            by_another_tool(rules_url, "extra", None)
            wait_until(lambda: "extra" not in live.current.by_id, "it was noticed")
            assert live.problem is None
        finally:
            live.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_follows_by_itself_and_leaves_its_parent_alone(rules_url: str) -> None:
    with a_store(rules_url) as store:
        push(store, alike(10))
        live = LiveRules(open_store(rules_url))
        try:
            wait_until(lambda: live.stale_seconds == 0, "it listens")
            child = os.fork()
            if not child:
                code = 1
                try:
                    wait_until(lambda: live.rules["counter"].limits[0].limit == 11, "it follows")
                    live.close()
                    code = 0
                finally:
                    os._exit(code)
            time.sleep(0.2)  # For the child to find its own way.
            for limit in (11, 12):
                version = push(store, alike(limit))
                wait_until(lambda version=version: live.version >= version, "it goes on")  # type: ignore[misc]
                if limit == 11:
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            live.close()


def test_a_rule_that_is_too_large_for_the_server_is_refused_before_writing(rules_url: str) -> None:
    with a_store(rules_url) as store:
        push(store, alike(10))
        version = store.read().version
        big = json.loads(rules_with(alike(10)))
        big[1]["description"] = "x" * 1_600_000
        from headgate.rules.sources.base import Edit, RuleChange  # noqa: PLC0415 - below the parser's own bound

        change = RuleChange(rule_id="rule-0", name="rule-0", before=None, after=json.dumps(big[1]))
        edit = Edit(action="set", author="tester", at=0.0, changes=(change,))
        with pytest.raises(
            SourceError, match=r"'rule-0' has 1,600,\d+ bytes and .* at most; nothing"
        ):
            store.commit(edit, store.read_for_edit())
        assert store.read().version == version
