"""Nodes on real servers agree with their source in the end, whatever was done to it and whatever they slept through."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.rules.live.change_check import ChangeRefused
from headgate.rules.live.editing import Editor
from headgate.rules.live.following import LiveRules
from headgate.rules.sources.base import RuleStore
from headgate.rules.sources.opening import open_store
from tests.faults.followers import Follower, by_another_tool
from tests.servers.etcd import Etcd
from tests.servers.process import wait_until
from tests.servers.rule_stores import fresh_url
from tests.servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.heavy

SEED = int(os.environ.get("HEADGATE_SEED", "11"))
CHANGES = 120
NAMES = [f"rule-{at}" for at in range(8)]
NONE = b'{"rules": []}'
MALFORMED = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b'"rule"',
    b'{"rule_id": "rule-0", "identifier": "shoe_size"}',
]


@contextlib.contextmanager
def a_store(url: str) -> Iterator[RuleStore]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def document(name: str, limit: int) -> bytes:
    rule = {
        "rule_id": name,
        "identifier": "ip_address",
        "rate": f"{limit}/minute",
        "match": {"path_pattern": f"/{name}"},
    }
    return json.dumps(rule).encode()


def push(store: RuleStore, limits: dict[str, int], *, force: bool = False) -> None:
    data = b"[" + b",".join(document(name, limit) for name, limit in limits.items()) + b"]"
    Editor(store).push(data, "rules.json").make(author="ann", at=time.time(), force=force)


def limits_of(live: LiveRules) -> dict[str, int]:
    return {rule.rule_id: rule.limits[0].limit for rule in live.rules}


@pytest.fixture
def url(rules_url: str) -> str:
    with a_store(rules_url) as store:
        push(store, dict.fromkeys(NAMES, 10))
    return rules_url


@pytest.fixture
def live(url: str) -> Iterator[LiveRules]:
    live = LiveRules(open_store(url), recheck_seconds=600)
    wait_until(lambda: live.stale_seconds == 0, "it listens")
    yield live
    live.close()


class ConflictingWriter:
    """Changes rules with another tool: deletes them, raises them ten thousandfold, breaks them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rng = random.Random(SEED)
        self.limits: dict[str, int] = dict.fromkeys(NAMES, 10)
        """What the source holds; 0 stands for a malformed rule."""

    def write_garbage(self) -> None:
        name = self._rng.choice(NAMES)
        self._put(name, self._rng.choice([None, 0, 1, 10, 1_000, 100_000]))

    def end(self) -> None:
        """Mend what is malformed, and delete so many rules at once that a guard would object."""
        for name in NAMES[:1] + [name for name, limit in self.limits.items() if not limit]:
            self._put(name, 77)
        for name in NAMES[1:6]:
            self._put(name, None)

    def _put(self, name: str, limit: int | None) -> None:
        if limit is None:
            if self.limits.pop(name, None) is not None:
                by_another_tool(self._url, name, None)
            return
        bad = self._rng.choice(MALFORMED)
        by_another_tool(self._url, name, document(name, limit) if limit else bad)
        self.limits[name] = limit


def test_a_rule_that_is_deleted_while_all_are_read_spoils_no_later_read(
    zookeeper_server: ZooKeeper,
) -> None:
    url = fresh_url(zookeeper_server)
    with a_store(url) as store:
        push(store, dict.fromkeys(NAMES[:2], 10))
    with a_store(url) as store:
        reading: Any = store
        reading._require_connection()
        assert reading._fetch([NAMES[0], "deleted", NAMES[1]]) is None
        assert sorted(store.read().documents) == NAMES[:2]


@pytest.mark.slow  # A node sleeps past its session, and a leader dies.
def test_all_nodes_end_with_what_the_source_holds(
    rule_servers: ZooKeeper | Etcd, tmp_path: Path
) -> None:
    """One is stopped past its session, one is started again, one dozes off time and again, and the leader dies."""
    session = "?session_timeout=2" if isinstance(rule_servers, ZooKeeper) else ""
    url = fresh_url(rule_servers)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(a_store(url))
        push(store, dict.fromkeys(NAMES, 10))
        followers = [Follower(url + session, tmp_path, f"node-{at}") for at in range(4)]
        for follower in followers:
            stack.callback(follower.close)
        wait_until(lambda: all(one.lines() for one in followers), "they follow", within_s=20)
        writer = ConflictingWriter(url)
        began = time.monotonic()
        followers[1].process.send_signal(signal.SIGSTOP)
        for change in range(CHANGES):
            if change == CHANGES // 4:
                rule_servers.kill_leader()
                rule_servers.heal()
            if change == CHANGES // 3:
                followers[2].restart()
            if change % 20 in {5, 15}:
                doze = signal.SIGSTOP if change % 20 == 5 else signal.SIGCONT
                followers[3].process.send_signal(doze)
            writer.write_garbage()
        time.sleep(max(0.0, 4.0 - (time.monotonic() - began)))  # Past every session.
        writer.end()
        followers[1].process.send_signal(signal.SIGCONT)
        documents = store.read().documents
        assert {name: document(name, limit) for name, limit in writer.limits.items()} == documents
        for follower in followers:
            wait_until(
                lambda one=follower: one.lines()[-1]["limits"] == writer.limits,  # type: ignore[misc]
                f"a node has {writer.limits}",
                within_s=90,
            )
        assert "looks like a mistake" in followers[1].lines()[-1]["alarm"]


def test_a_malformed_rule_keeps_its_previous_version_while_others_update(
    url: str, live: LiveRules
) -> None:
    for limit, bad in enumerate(MALFORMED, 11):
        by_another_tool(url, "rule-0", bad)
        by_another_tool(url, "rule-1", document("rule-1", limit))
        wait_until(lambda limit=limit: limits_of(live)["rule-1"] == limit, "it goes on")  # type: ignore[misc]
        assert limits_of(live)["rule-0"] == 10
        assert "'rule-0' stays as it was: " in (live.alarm or "")
    with a_store(url) as store:
        Editor(store).set_fields("rule-2", {"rate": "12/minute"}).make(author="ann", at=1.0)
    wait_until(lambda: limits_of(live)["rule-2"] == 12, "it goes on")
    by_another_tool(url, "rule-0", document("rule-0", 12))
    wait_until(lambda: limits_of(live)["rule-0"] == 12, "it is mended")
    wait_until(lambda: live.alarm is None, "all is well")
    assert (live.problem, live.stale_seconds) == (None, 0.0)


def test_a_source_whose_root_is_gone_is_lost_and_found_again(url: str, live: LiveRules) -> None:
    for name in [*NAMES, ""]:
        by_another_tool(url, name, None)
    wait_until(lambda: "has lost its rules" in (live.alarm or ""), "it was noticed")
    assert limits_of(live)["rule-7"] == 10
    with a_store(url) as store:
        push(store, dict.fromkeys(NAMES, 12), force=True)
    wait_until(lambda: limits_of(live) == dict.fromkeys(NAMES, 12), "they were pushed again")
    wait_until(lambda: live.alarm is None, "all is well")


def test_an_empty_source_is_followed_once_it_is_confirmed_as_intended(
    url: str, live: LiveRules
) -> None:
    for name in NAMES:
        by_another_tool(url, name, None)
    wait_until(lambda: "has lost its rules" in (live.alarm or ""), "it was noticed")
    assert limits_of(live)["rule-7"] == 10
    with a_store(url) as store:
        plan = Editor(store).push(NONE, "none.json")
        with pytest.raises(ChangeRefused, match="--allow-empty"):
            plan.make(author="ann", at=1.0, force=True)
        plan.make(author="ann", at=1.0, allow_empty=True)
    wait_until(lambda: not limits_of(live), "it is meant")
    assert (live.alarm, live.problem) == (None, None)
    newcomer = LiveRules(open_store(url))
    newcomer.close()
    assert not limits_of(newcomer)
