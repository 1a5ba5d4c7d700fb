"""Following rules: what is taken, what is refused, and what can be seen of it from outside."""

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from headgate.errors import UsageError
from headgate.rules.guard import GuardRefused
from headgate.rules.lastgood import Kept, LastGood
from headgate.rules.live import LiveRules
from headgate.rules.match import Rulebook
from headgate.rules.opening import FixedRules, open_rules
from headgate.rules.pacing import let_go
from headgate.rules.parse import parse_rules
from headgate.rules.problem import RulesError
from headgate.rules.sources.base import Snapshot, SourceError
from tests.servers.process import wait_until
from tests.unit.rules.sources.memory_tree import Crash, MemoryTree, Shared, an_edit, rule


class Flaky(MemoryTree):
    """A source that can be out of reach, or lag."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.away = False
        self.stuck: Snapshot | None = None
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
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


def ids(live: LiveRules) -> list[str]:
    return [each.rule_id for each in live.rules]


def test_a_change_is_followed_when_the_source_tells(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    assert (ids(live), live.version, live.revision) == (["a", "b", "c"], shared.version, 1)
    version = push(shared, {"d": rule("d")})
    source.notify()
    wait_until(lambda: live.version >= version, "the change is there")
    assert (ids(live), live.revision) == (["a", "b", "c", "d"], 2)
    assert told(live) == (None, 0.0)


def test_the_log_calls_rules_by_their_version(
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
        shared.put("rule", "d", b"{}")
        live.refresh()
        stays = f"memory are not in use, version {live.current.version} stays: "
        assert stays in caplog.text


def test_a_swap_is_one_step_and_old_rulebooks_stay_whole(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    before = live.current
    push(shared, {"d": rule("d")})
    live.refresh()
    assert live.current is not before
    assert [each.rule_id for each in before.rules] == ["a", "b", "c"]


def test_old_rules_go_one_by_one_and_none_is_left_for_the_end(
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
        let_go(things, pause)
        gone.append(old() is None)

    monkeypatch.setattr("headgate.rules.live.let_go", watched)
    push(shared, {"d": rule("d", rate="7/minute")})
    live.refresh()
    assert gone == [True]


def test_bad_rules_are_left_out_and_the_reason_is_shown(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    before = live.current
    shared.put("rule", "bad", b'{"rule_id": "bad", "identifier": "shoe_size", "rate": "1/s"}')
    live.refresh()
    assert live.current is before
    assert live.problem is not None
    assert "shoe_size" in live.problem
    assert live.stale_seconds > 0
    assert live.refused
    shared.put("rule", "bad", None)
    live.refresh()
    assert told(live) == (None, 0.0)
    assert not live.refused


def test_the_guard_holds_on_every_node_and_force_travels_with_the_revision(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    for name in ("a", "b"):
        shared.put("rule", name, None)  # By another tool.
    live.refresh()
    assert ids(live) == ["a", "b", "c"]
    assert live.problem == (
        "2 of 3 rules would be gone (a, b): if that is what you want, push them again with --force"
    )
    push(shared, {"c": rule("c", "11/minute")}, force=True)
    live.refresh()
    assert (ids(live), *told(live)) == (["c"], None, 0.0)


def test_force_is_not_lost_when_another_change_comes_on_top(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    push(shared, {"a": None, "b": None}, force=True)
    push(shared, {"d": rule("d")})
    live.refresh()
    assert (ids(live), *told(live)) == (["c", "d"], None, 0.0)
    shared.put("rule", "c", None)
    shared.put("rule", "d", None)
    live.refresh()
    assert ids(live) == ["c", "d"]
    assert live.problem is not None
    assert "no rule left" in live.problem


def test_a_limit_raised_a_hundredfold_is_refused_until_accepted(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    shared.put("rule", "a", json.dumps(rule("a", "1000/minute")).encode())
    live.refresh()
    assert live.rules["a"].limits[0].limit == 10
    assert live.problem is not None
    assert "limits would be raised 100-fold or more (a 100-fold)" in live.problem
    live.accept()
    assert live.rules["a"].limits[0].limit == 1000
    assert live.problem is None


def test_a_server_that_lags_is_not_believed(
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
        f"memory is at version {old.version}, and version {live.version} was seen" in live.problem
    )
    source.stuck = None
    live.refresh()
    assert live.problem is None


def test_a_node_starts_with_the_last_good_set_while_the_source_is_away(
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

    def save(self, kept: Kept) -> None:
        if kept.version > 1_000:
            raise Crash
        super().save(kept)


def test_a_set_is_kept_before_anybody_uses_it(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules], tmp_path: Path
) -> None:
    """Who dies in between starts again with what it had; never with less than it has used."""
    live = follow(source, last_good=Dying(tmp_path, "memory"))
    shared.version = 1_000
    push(shared, {"d": rule("d")})
    with pytest.raises(Crash):
        live.refresh()
    assert ids(live) == ["a", "b", "c"]


def test_a_copy_that_could_not_be_kept_is_tried_again_and_an_older_one_is_not_confirmed(
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
    kept = copy.load()
    assert kept is not None
    assert kept.version == live.version


def test_a_node_that_starts_again_does_not_go_back_to_an_older_version(
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


def test_without_a_copy_a_source_that_is_away_is_an_error(source: Flaky) -> None:
    source.away = True
    with pytest.raises(SourceError, match="memory cannot be reached"):
        LiveRules(source)


def test_an_empty_source_is_an_error_at_the_start() -> None:
    with pytest.raises(SourceError, match="memory has no rules yet; put some there with 'headgate"):
        LiveRules(Flaky(Shared()))
    shared = Shared()
    shared.put("rule", "a", json.dumps(rule("a", enabled=False)).encode())
    with pytest.raises(GuardRefused, match="no rule left that is switched on"):
        LiveRules(Flaky(shared))


def test_a_source_that_stays_away_is_asked_ever_less_often(
    source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    source.away = True
    source.reads = 0
    source.notify()
    time.sleep(1.0)
    assert 2 <= source.reads <= 8
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


def test_subscribers_hear_of_every_swap_and_can_leave(
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


def test_a_set_that_is_written_anew_without_a_difference_is_no_swap(
    shared: Shared, source: Flaky, follow: Callable[..., LiveRules]
) -> None:
    live = follow(source)
    before, version = live.current, live.version
    data = shared.nodes["rule", "a"].data
    shared.put("rule", "a", data)
    live.refresh()
    assert live.current is before
    assert live.version == version + 1


def test_many_threads_read_while_rules_change(
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
def test_a_forked_child_follows_the_source_by_itself(tmp_path: Path) -> None:
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


def test_a_rule_set_stays_as_it_is() -> None:
    rules = parse_rules(json.dumps(rule("a"))).rules
    for fixed in (open_rules(rules), open_rules(Rulebook(rules))):
        assert isinstance(fixed, FixedRules)
        assert fixed.rules is rules
        assert (fixed.problem, fixed.stale_seconds) == (None, 0.0)
        fixed.close()


def test_what_are_no_rules_is_an_error() -> None:
    with pytest.raises(UsageError, match="rules are a file, a URL, a RuleSet or a Rulebook, not 7"):
        open_rules(7)  # type: ignore[arg-type]


def test_a_bad_file_at_the_start_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - rule_id: a\n")
    with pytest.raises(RulesError, match=r"rules\.yaml:2: rules\[0\]"):
        open_rules(path)


def test_a_file_has_a_copy_only_where_a_folder_is_named(
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
