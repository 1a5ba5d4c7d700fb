"""Following rules: what is taken, what is refused, and what can be seen of it from outside."""

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.errors import UsageError
from headgate.rules.format.parse import parse_rules
from headgate.rules.format.problems import RulesError
from headgate.rules.live.change_check import ChangeRefused
from headgate.rules.live.editing import Editor
from headgate.rules.live.following import FIRST_PAUSE, LiveRules
from headgate.rules.live.last_good import LastGood, SavedRules
from headgate.rules.live.opening import FixedRules, open_rules
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.pacing import release_gradually
from headgate.rules.sources.base import Snapshot, SourceError
from tests.servers.process import wait_until
from tests.unit.rules.sources.memory_tree import Crash, MemoryTree, Shared, an_edit, rule


class Flaky(MemoryTree):
    """A source that can be out of reach, or lag."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.away = False
        self.stuck: Snapshot | None = None
        self.moments: list[float] = []

    def read(self) -> Snapshot:
        self.moments.append(time.monotonic())
        if self.away:
            raise SourceError("memory cannot be reached")
        return self.stuck or super().read()


@pytest.fixture
def shared() -> Shared:
    shared = Shared()
    push(shared, {"a": rule("a"), "b": rule("b"), "c": rule("c")})
    return shared


@pytest.fixture
def source(shared: Shared) -> Flaky:
    return Flaky(shared)


@pytest.fixture
def follow() -> Iterator[Callable[..., LiveRules]]:
    opened: list[LiveRules] = []

    def start(source: Flaky, last_good: LastGood | None = None) -> LiveRules:
        live = LiveRules(source, last_good=last_good)
        opened.append(live)
        return live

    yield start
    for live in opened:
        live.close()


def push(
    shared: Shared, wanted: Mapping[str, dict[str, object] | None], *, force: bool = False
) -> int:
    """Change rules as an editor does; returns the version."""
    store = MemoryTree(shared)
    snapshot = store.read_for_edit()
    return store.commit(an_edit(store, snapshot, wanted, forced=force), snapshot).version


def told(live: LiveRules) -> tuple[str | None, float]:
    return live.problem, live.stale_seconds


def is_refused(live: LiveRules) -> bool:
    return live.refused


def alarm_of(live: LiveRules) -> str | None:
    return live.alarm


def ids(live: LiveRules) -> list[str]:
    return [each.rule_id for each in live.rules]


def test_a_change_is_applied_when_the_source_notifies(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    assert (ids(live), live.version, live.revision) == (["a", "b", "c"], shared.version, 1)
    version = push(shared, {"d": rule("d")})
    source.notify()
    wait_until(lambda: live.version >= version, "the change is there")
    assert (ids(live), live.revision) == (["a", "b", "c", "d"], 2)
    assert told(live) == (None, 0.0)


def test_the_log_names_rules_by_version(
    shared: Shared,
    source: Flaky,
    follow: Callable[..., LiveRules],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one that the command line, the service and the metrics show; not where their source stands."""
    live = follow(source)
    with caplog.at_level(logging.INFO, "headgate.rules"):
        push(shared, {"d": rule("d")})
        live.refresh()
        assert f"rules of memory: version {live.current.version}, 1 added" in caplog.text
        shared.put("head", "", b"{}")
        live.refresh()
        stays = f"memory are not in use, version {live.current.version} stays: "
        assert stays in caplog.text


def test_a_swap_is_atomic_and_old_rulebooks_stay_intact(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    before = live.current
    push(shared, {"d": rule("d")})
    live.refresh()
    assert live.current is not before
    assert [each.rule_id for each in before.rules] == ["a", "b", "c"]


def test_old_rules_are_released_gradually_and_completely(
    monkeypatch: pytest.MonkeyPatch,
    shared: Shared,
    source: Flaky,
    follow: Callable[..., LiveRules],
) -> None:
    push(shared, {"d": rule("d", description="in no other test, so that no other holds it")})
    live = follow(source)
    old = weakref.ref(live.rules["d"])
    gone: list[bool] = []

    def watched(things: list[object], pause: Callable[[], None]) -> None:
        release_gradually(things, pause)
        gone.append(old() is None)

    monkeypatch.setattr("headgate.rules.live.following.release_gradually", watched)
    push(shared, {"d": rule("d", rate="7/minute")})
    live.refresh()
    assert gone == [True]


BAD = b'{"rule_id": "b", "identifier": "shoe_size", "rate": "1/s"}'


def test_an_invalid_rule_keeps_its_previous_version_while_others_update(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    shared.put("rule", "b", BAD)
    shared.put("rule", "new", b"{")
    push(shared, {"a": rule("a", "11/minute"), "c": None, "d": rule("d")})
    live.refresh()
    assert {each.rule_id: each.limits[0].limit for each in live.rules} == {
        "a": 11,
        "b": 10,
        "d": 10,
    }
    assert live.problem is not None
    assert "'b' stays as it was: b:1: identifier: " in live.problem
    assert "'new' is left out: new:1: " in live.problem
    assert live.alarm == live.problem
    assert live.refused
    assert live.stale_seconds > 0
    assert live.version == shared.version
    shared.put("rule", "b", json.dumps(rule("b", "12/minute")).encode())
    shared.put("rule", "new", None)
    live.refresh()
    assert live.rules["b"].limits[0].limit == 12
    assert told(live) == (None, 0.0)
    assert alarm_of(live) is None
    assert not is_refused(live)


def test_an_invalid_rule_keeps_its_previous_version_after_a_restart(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    copy = LastGood(tmp_path, "memory")
    follow(source, last_good=copy).close()
    shared.put("rule", "b", BAD)
    push(shared, {"a": rule("a", "11/minute")})
    for _ in range(2):
        live = follow(source, last_good=copy)
        assert {each.rule_id: each.limits[0].limit for each in live.rules} == {
            "a": 11,
            "b": 10,
            "c": 10,
        }
        assert live.problem is not None
        live.close()
    shared.put("rule", "b", None)
    assert ids(follow(source, last_good=copy)) == ["a", "c"]


def test_a_node_without_a_saved_copy_starts_with_the_valid_rules(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    shared.put("rule", "b", BAD)
    live = follow(source)
    assert ids(live) == ["a", "c"]
    assert live.problem is not None
    assert live.problem.startswith("'b' is left out: b:1: identifier")
    for name in "ac":
        shared.put("rule", name, BAD)
    with pytest.raises(RulesError, match="shoe_size"):
        LiveRules(Flaky(shared))


def test_of_two_documents_with_one_id_the_first_valid_one_wins(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    shared.put("rule", "a", b"{")
    shared.put("rule", "b", json.dumps(rule("a", "12/minute")).encode())
    live.refresh()
    assert {each.rule_id: each.limits[0].limit for each in live.rules} == {"a": 12, "c": 10}
    shared.put("rule", "a", json.dumps(rule("a", "13/minute")).encode())
    live.refresh()
    assert live.rules["a"].limits[0].limit == 13
    assert live.problem is not None
    assert "'b' is left out: b: rule_id: the id 'a' is already in a" in live.problem


def test_rules_beyond_the_maximum_are_left_out_and_the_others_apply(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    for at in range(127):
        document = json.dumps(rule(f"many-{at:03d}")).encode()
        shared.put("rule", f"many-{at:03d}", document)
    live.refresh()
    assert len(live.rules) == 128
    assert "many-124" in live.current.by_id
    assert "many-125" not in live.current.by_id
    assert live.problem is not None
    assert "'many-125' is left out" in live.problem
    shared.put("rule", "a", None)
    live.refresh()
    assert len(live.rules) == 128
    assert "many-125" in live.current.by_id


def test_a_node_follows_its_source_and_raises_an_alarm_on_suspicious_changes(
    shared: Shared,
    source: Flaky,
    follow: Callable[..., LiveRules],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What looks like a mistake is one for people to mend; nodes that each kept what they had would not agree."""
    live = follow(source)
    for name in ("a", "b"):
        shared.put("rule", name, None)  # By another tool.
    live.refresh()
    said = "a change that looks like a mistake was applied: 2 of 3 rules are gone (a, b)"
    assert (ids(live), live.alarm, *told(live)) == (["c"], said, None, 0.0)
    assert not live.refused
    assert (
        "looks like a mistake was applied, and was not forced: 2 of 3 rules are gone" in caplog.text
    )
    shared.put("rule", "c", json.dumps(rule("c", "1000/minute")).encode())
    live.refresh()
    assert live.rules["c"].limits[0].limit == 1000
    assert live.alarm is not None
    assert "limits are raised 100-fold or more (c 100-fold)" in live.alarm
    push(shared, {"d": rule("d")})
    live.refresh()
    assert ids(live) == ["c", "d"]
    assert "c 100-fold" in str(alarm_of(live))  # For an hour, lest nobody sees it.
    monkeypatch.setattr("headgate.rules.live.following.ALARM_SECONDS", 0.0)
    assert alarm_of(live) is None


def test_a_forced_push_clears_the_alarm_even_later(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    push(shared, {"a": None, "b": None}, force=True)
    push(shared, {"d": rule("d")})
    live.refresh()
    assert (ids(live), live.alarm, *told(live)) == (["c", "d"], None, None, 0.0)
    shared.put("rule", "c", json.dumps(rule("c", "1000/minute")).encode())
    live.refresh()
    assert live.alarm is not None
    push(shared, {}, force=True)  # "Yes, that is meant."
    live.refresh()
    assert (ids(live), *told(live)) == (["c", "d"], None, 0.0)
    assert alarm_of(live) is None


def test_two_nodes_agree_even_if_one_missed_changes(
    shared: Shared, follow: Callable[..., LiveRules]
) -> None:
    push(shared, {name: rule(name) for name in "defgh"})
    awake, asleep = follow(Flaky(shared)), follow(Flaky(shared))
    for name in "abcde":
        shared.put("rule", name, None)
        awake.refresh()
    asleep.refresh()
    assert ids(awake) == ids(asleep) == ["f", "g", "h"]
    assert awake.alarm is None
    assert asleep.alarm is not None


def test_a_source_that_lost_its_rules_is_not_followed_until_an_empty_push(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    copy = LastGood(tmp_path, "memory")
    live = follow(source, last_good=copy)
    for name in "abc":
        shared.put("rule", name, None)
    live.refresh()
    assert ids(live) == ["a", "b", "c"]
    assert live.problem == live.alarm
    assert live.problem is not None
    assert "memory has lost its rules, and the last 3 stay in use: push them again" in live.problem
    assert live.refused
    live.close()
    again = follow(source, last_good=copy)
    assert ids(again) == ["a", "b", "c"]
    assert "lost its rules" in (again.alarm or "")
    with pytest.raises(SourceError, match="has no rules yet"):
        LiveRules(Flaky(shared))
    plan = Editor(MemoryTree(shared)).push(b'{"rules": []}', "none.json")
    assert plan.changes_nothing
    with pytest.raises(ChangeRefused, match=r"no rule is left.*--allow-empty"):
        plan.make(author="ann", at=0.0, force=True)
    plan.make(author="ann", at=0.0, allow_empty=True)
    again.refresh()
    assert (ids(again), again.alarm, *told(again)) == ([], None, None, 0.0)
    assert ids(follow(Flaky(shared))) == []
    push(shared, {"d": rule("d")})
    again.refresh()
    shared.put("rule", "d", None)
    again.refresh()
    assert ids(again) == ["d"]
    assert "lost its rules" in (again.alarm or "")


def test_a_lagging_server_is_ignored(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    old = source.read()
    push(shared, {"d": rule("d")})
    live = follow(source)
    assert ids(live) == ["a", "b", "c", "d"]
    source.stuck = old
    live.refresh()
    assert ids(live) == ["a", "b", "c", "d"]
    assert live.problem is not None
    assert (
        f"memory is at version {old.version}, but version {live.version} was seen" in live.problem
    )
    source.stuck = None
    live.refresh()
    assert live.problem is None


def test_a_node_starts_with_the_last_good_rules_while_the_source_is_unreachable(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    copy = LastGood(tmp_path, "memory")
    first = follow(source, last_good=copy)
    version = first.version
    first.close()
    os.utime(copy.path, (time.time() - 100, time.time() - 100))
    source.away = True
    live = follow(source, last_good=copy)
    assert (ids(live), live.version) == (["a", "b", "c"], version)
    assert live.problem == "memory cannot be reached"
    assert not live.refused
    assert 99 < live.stale_seconds < 200
    source.away = False
    push(shared, {"d": rule("d")})
    wait_until(lambda: "d" in ids(live), "it finds the source by itself")
    assert told(live) == (None, 0.0)


class Dying(LastGood):
    """A copy that is being written when the process dies."""

    def save(self, saved: SavedRules) -> None:
        if saved.version > 1_000:
            raise Crash
        super().save(saved)


def test_rules_are_saved_before_they_are_used(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    """Who dies in between starts again with what it had; never with less than it has used."""
    live = follow(source, last_good=Dying(tmp_path, "memory"))
    shared.version = 1_000
    push(shared, {"d": rule("d")})
    with pytest.raises(Crash):
        live.refresh()
    assert ids(live) == ["a", "b", "c"]


def test_a_failed_save_is_retried_and_an_older_copy_is_not_confirmed(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    copy = LastGood(tmp_path / "state", "memory")
    live = follow(source, last_good=copy)
    copy.path.parent.rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")
    push(shared, {"d": rule("d")})
    live.refresh()
    assert ids(live) == ["a", "b", "c", "d"]
    (tmp_path / "state").unlink()
    (tmp_path / "away").rename(tmp_path / "state")
    live.refresh()
    saved = copy.load()
    assert saved is not None
    assert saved.version == live.version


def test_a_restarted_node_does_not_go_back_to_an_older_version(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    copy = LastGood(tmp_path, "memory")
    old = source.read()
    push(shared, {"d": rule("d")})
    follow(source, last_good=copy).close()
    source.stuck = old
    live = follow(source, last_good=copy)
    assert ids(live) == ["a", "b", "c", "d"]
    assert live.problem is not None
    assert f"remove {copy.path}" in live.problem


def test_an_unreachable_source_without_a_saved_copy_is_an_error(source: Flaky) -> None:
    source.away = True
    with pytest.raises(SourceError, match="memory cannot be reached"):
        LiveRules(source)


def test_an_empty_source_at_startup_is_an_error() -> None:
    with pytest.raises(SourceError, match="memory has no rules yet; push some with 'headgate"):
        LiveRules(Flaky(Shared()))
    shared = Shared()
    shared.put("rule", "a", json.dumps(rule("a", enabled=False)).encode())
    live = LiveRules(Flaky(shared))
    assert (ids(live), live.problem) == (["a"], None)
    assert "no enabled rule is left, so nothing is limited" in (live.alarm or "")
    live.close()


def test_an_unreachable_source_is_polled_with_growing_delays(
    source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    source.away = True
    source.moments.clear()
    source.notify()
    wait_until(lambda: len(source.moments) > 3, "it was asked again and again")
    pauses = [after - before for before, after in pairwise(source.moments[:4])]
    least = [FIRST_PAUSE * factor for factor in (0.5, 1, 2)]  # Half of what it doubles each time.
    assert all(pause >= bound for pause, bound in zip(pauses, least, strict=True))
    assert live.problem == "memory cannot be reached"


def test_the_same_problem_is_logged_once(
    shared: Shared,
    source: Flaky,
    follow: Callable[..., LiveRules],
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = follow(source)
    shared.put("rule", "bad", b"{}")
    with caplog.at_level(logging.WARNING, "headgate.rules"):
        for _ in range(3):
            live.refresh()
    assert len(caplog.records) == 1


def test_subscribers_are_notified_of_every_swap_and_can_unsubscribe(
    shared: Shared,
    source: Flaky,
    follow: Callable[..., LiveRules],
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = follow(source)
    heard: list[int] = []

    def fails(_live: LiveRules) -> None:
        raise ZeroDivisionError

    live.subscribe(fails)
    leave = live.subscribe(lambda now: heard.append(now.revision))
    push(shared, {"d": rule("d")})
    live.refresh()
    leave()
    push(shared, {"e": rule("e")})
    live.refresh()
    assert heard == [2]
    assert "a subscriber of rules failed" in caplog.text


def test_rewriting_identical_rules_is_not_a_swap(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    before, version = live.current, live.version
    data = shared.nodes["rule", "a"].data
    shared.put("rule", "a", data)
    live.refresh()
    assert live.current is before
    assert live.version == version + 1


def test_concurrent_readers_see_only_pushed_rule_sets_in_order(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    """Each sees sets that somebody pushed, in order, and none of them twice in between."""
    live = follow(source)
    done = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        last = 0
        while not done.is_set():
            limits = {each.limits[0].limit for each in live.current.rules}
            if len(limits) != 1 or max(limits) < last:
                wrong.append(f"{limits} after {last}")
            last = max(limits)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for limit in range(11, 61):
        push(shared, {name: rule(name, f"{limit}/minute") for name in "abc"})
        live.refresh()
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_follows_the_source_on_its_own(tmp_path: Path) -> None:
    """A file, because parent and child share it."""
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps([rule("a")]))
    live = open_rules(path)
    try:
        child = os.fork()
        if not child:
            code = 1
            try:
                path.write_text(json.dumps([rule("a", "11/minute")]))
                wait_until(lambda: live.rules["a"].limits[0].limit == 11, "the child follows")
                live.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        wait_until(lambda: live.rules["a"].limits[0].limit == 11, "the parent follows too")
    finally:
        live.close()


def test_a_rule_set_given_directly_never_changes() -> None:
    rules = parse_rules(json.dumps(rule("a"))).rules
    for fixed in (open_rules(rules), open_rules(Rulebook(rules))):
        assert isinstance(fixed, FixedRules)
        assert fixed.rules is rules
        assert (fixed.problem, fixed.stale_seconds) == (None, 0.0)
        fixed.close()


def test_an_argument_that_is_not_rules_is_an_error() -> None:
    with pytest.raises(
        UsageError, match="rules must be a file, a URL, a RuleSet or a Rulebook, not 7"
    ):
        open_rules(7)  # type: ignore[arg-type]


def test_an_invalid_file_at_startup_is_an_error_with_a_line_number(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - rule_id: a\n")
    with pytest.raises(RulesError, match=r"rules\.yaml:2: rules\[0\]"):
        open_rules(path)


def test_rules_from_a_file_are_saved_only_if_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps(rule("a")))
    state = tmp_path / "state"
    monkeypatch.setenv("HEADGATE_STATE_DIR", "")
    open_rules(path).close()
    assert not state.exists()
    open_rules(path, state_dir=state).close()
    path.unlink()
    live = open_rules(path, state_dir=state)
    assert [each.rule_id for each in live.rules] == ["a"]
    assert live.problem is not None
    assert "no such file" in live.problem
    live.close()
