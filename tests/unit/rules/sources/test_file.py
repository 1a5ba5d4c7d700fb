"""Rules in a file: how changes are noticed, and how they are made."""

import contextlib
import errno
import itertools
import json
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from headgate.rules.format.problems import RulesError
from headgate.rules.live.change_check import ChangeRefused
from headgate.rules.live.editing import Editor
from headgate.rules.live.following import LiveRules
from headgate.rules.live.opening import open_rules
from headgate.rules.sources.base import Edit, RuleStore, SourceError, VersionConflict
from headgate.rules.sources.file import FileStore
from headgate.rules.sources.opening import open_store
from tests.servers.process import wait_until
from tests.unit.rules.sources.memory_tree import rule


def written(limit: int, *ids: str) -> str:
    return json.dumps([rule(rule_id, f"{limit}/minute") for rule_id in ids or ("a", "b", "c")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(written(10))
    return path


@pytest.fixture
def live(path: Path) -> Iterator[LiveRules]:
    live = open_rules(path)
    assert isinstance(live, LiveRules)
    yield live
    live.close()


@pytest.fixture
def store(path: Path) -> RuleStore:
    return open_store(path)


def limit_of(live: LiveRules) -> int:
    return live.rules["a"].limits[0].limit


def by_rename(path: Path, text: str) -> None:
    part = path.with_name("part")
    part.write_text(text)
    part.replace(path)


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def by_moving_away_first(path: Path, text: str) -> None:
    """As some editors do: the old file becomes the backup, a new one takes its name."""
    path.rename(path.with_name("rules.yaml~"))
    path.write_text(text)


def by_deleting_first(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("write", [by_rename, in_place, by_moving_away_first, by_deleting_first])
def test_a_new_content_is_noticed_however_it_came(
    path: Path, live: LiveRules, write: Callable[[Path, str], None]
) -> None:
    for limit in (11, 12):
        before = live.version
        write(path, written(limit))
        wait_until(lambda limit=limit: limit_of(live) == limit, "it was noticed")  # type: ignore[misc]
        assert live.version > before
    assert live.problem is None


def test_a_link_that_is_swapped_is_noticed_and_so_is_a_change_where_it_leads(
    tmp_path: Path,
) -> None:
    """As Kubernetes does it: `rules.yaml` leads through `..data`, which is swapped as a whole."""
    for name, limit in (("one", 10), ("two", 11)):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "rules.yaml").write_text(written(limit))
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "..data").symlink_to(tmp_path / "elsewhere" / "one")
    (mount / "rules.yaml").symlink_to("..data/rules.yaml")
    live = open_rules(mount / "rules.yaml")
    assert isinstance(live, LiveRules)
    try:
        assert limit_of(live) == 10
        (mount / "..new").symlink_to(tmp_path / "elsewhere" / "two")
        (mount / "..new").rename(mount / "..data")
        wait_until(lambda: limit_of(live) == 11, "the swap was noticed")
        by_rename(tmp_path / "elsewhere" / "two" / "rules.yaml", written(12))
        wait_until(lambda: limit_of(live) == 12, "the change where it leads was noticed")
    finally:
        live.close()


def test_a_bad_file_keeps_the_old_set_and_shows_the_reason(path: Path, live: LiveRules) -> None:
    by_rename(path, "rules:\n  - rule_id: a\n    identifier: shoe_size\n    rate: 1/s\n")
    wait_until(lambda: live.problem is not None, "it was noticed")
    assert limit_of(live) == 10
    assert live.problem is not None
    assert "rules.yaml:3" in live.problem
    assert live.stale_seconds > 0
    by_rename(path, written(11))
    wait_until(lambda: live.problem is None, "it was mended")
    assert (limit_of(live), live.stale_seconds) == (11, 0.0)


def test_a_file_that_goes_keeps_the_old_set_until_it_is_back(path: Path, live: LiveRules) -> None:
    path.unlink()
    wait_until(lambda: live.problem is not None, "it was noticed")
    assert limit_of(live) == 10
    path.write_text(written(11))
    wait_until(lambda: live.problem is None and limit_of(live) == 11, "it is back")


def test_an_older_file_that_is_put_back_is_a_newer_version(path: Path, live: LiveRules) -> None:
    first = live.version
    by_rename(path, written(11))
    wait_until(lambda: limit_of(live) == 11, "it was noticed")
    second = live.version
    by_rename(path, written(10))
    os.utime(path, (1.0, 1.0))
    wait_until(lambda: limit_of(live) == 10, "it was noticed")
    assert first < second < live.version


def test_a_file_is_followed_whatever_is_in_it_and_what_looks_like_a_mistake_raises_an_alarm(
    path: Path, live: LiveRules, store: RuleStore
) -> None:
    by_rename(path, written(11, "a"))
    wait_until(lambda: live.alarm is not None, "it was suspected")
    assert (limit_of(live), live.problem) == (11, None)
    assert "2 of 3 rules are gone (b, c)" in (live.alarm or "")
    Editor(store).push(path.read_bytes(), "rules.yaml").make(author="ann", at=1.0, force=True)
    wait_until(lambda: live.alarm is None, "somebody meant it")
    assert limit_of(live) == 11


@pytest.mark.parametrize("begin", [in_place, by_deleting_first])
def test_a_file_counts_once_it_is_whole(
    path: Path, live: LiveRules, begin: Callable[[Path, str], None]
) -> None:
    """200 rules, written piece by piece: none of the sets in between may ever be used."""
    seen: list[int] = []
    live.subscribe(lambda now: seen.append(len(now.rules)))
    for limit in (11, 12):
        lines = [_line(f"r{at:03d}", limit) for at in range(200)]
        begin(path, "")
        with path.open("w") as file:
            for at, line in enumerate(lines):
                file.write(line)
                if at % 10 == 0:
                    file.flush()
                    time.sleep(0.05)  # A slow writer.
        wait_until(lambda: len(live.rules) == 200, "it is there")
        wait_until(lambda limit=limit: live.rules["r199"].limits[0].limit == limit, "it is new")  # type: ignore[misc]
    assert seen == [200, 200]
    assert live.problem is None


def _line(name: str, limit: int) -> str:
    match = {"path_pattern": f"/{name}"}
    return f"- {json.dumps(rule(name, f'{limit}/minute', match=match))}\n"


def test_a_node_that_starts_waits_for_a_file_to_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("")

    def write() -> None:
        with path.open("w") as file:
            for at in range(20):
                file.write(_line(f"r{at}", 10))
                file.flush()
                time.sleep(0.02)  # A slow writer.

    writer = threading.Thread(target=write)
    writer.start()
    live = open_rules(path)
    try:
        assert len(live.rules) == 20
    finally:
        writer.join()
        live.close()


def test_what_was_renamed_into_place_or_pushed_counts_at_once(
    path: Path, live: LiveRules, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.rules.sources.whole_file.REST_SECONDS", 60.0)
    part = path.with_name("part")
    part.write_text(written(11))
    time.sleep(0.02)  # Times of files are as coarse as the kernel's ticks.
    part.replace(path)
    wait_until(lambda: limit_of(live) == 11, "it was renamed")
    Editor(store).push(written(12).encode(), "rules.yaml").make(author="ann", at=1.0)
    wait_until(lambda: limit_of(live) == 12, "it was pushed")


def test_a_file_that_keeps_changing_is_reported_and_followed_once_it_rests(
    path: Path, live: LiveRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.rules.sources.whole_file.PATIENCE_SECONDS", 0.5)
    for limit in itertools.count(11):
        in_place(path, written(limit))
        time.sleep(0.02)  # A slow writer.
        if live.problem is not None:
            break
    assert "rules.yaml is being written to; write to another file and rename it" in str(
        live.problem
    )
    assert limit_of(live) == 10
    wait_until(lambda: limit_of(live) == limit, "it is at rest")
    assert live.problem is None


@pytest.mark.parametrize("text", ["rules: []", "[]", ""])
def test_a_file_that_lost_its_rules_is_not_followed_unless_deliberate(
    path: Path, live: LiveRules, store: RuleStore, text: str
) -> None:
    in_place(path, text)
    wait_until(lambda: live.alarm is not None, "it was noticed")
    assert limit_of(live) == 10
    plan = Editor(store).push(b"rules: []", "none.yaml")
    with pytest.raises(ChangeRefused, match="--allow-empty"):
        plan.make(author="ann", at=1.0, force=True)
    plan.make(author="ann", at=1.0, allow_empty=True)
    wait_until(lambda: not len(live.rules), "it is meant")
    assert (live.problem, live.alarm) == (None, None)


def test_a_file_that_is_gone_raises_an_alarm(path: Path, live: LiveRules) -> None:
    path.unlink()
    wait_until(lambda: live.alarm is not None, "it was noticed")
    assert "no such file" in (live.alarm or "")
    assert limit_of(live) == 10


def test_an_edit_is_in_the_history_with_the_rule_before_and_after(store: RuleStore) -> None:
    plan = Editor(store).set_fields("a", {"rate": "11/minute"})
    entry = plan.make(author="ann@host", at=12.5, note="for the sale")
    assert entry.revision == 1
    (kept,) = open_store_again(store).history()
    assert (kept.author, kept.at, kept.note, kept.action) == (
        "ann@host",
        12.5,
        "for the sale",
        "set",
    )
    (change,) = kept.changes
    assert change.before is not None
    assert change.after is not None
    assert (json.loads(change.before)["rate"], json.loads(change.after)["rate"]) == (
        "10/minute",
        "11/minute",
    )


def open_store_again(store: RuleStore) -> RuleStore:
    return open_store(str(store))


def test_of_two_editors_one_wins_and_the_other_gets_a_conflict(
    path: Path, store: RuleStore
) -> None:
    anns = Editor(store).push(written(11).encode(), "a.json")
    bobs = Editor(store).push(written(12).encode(), "b.json")
    anns.make(author="ann@host", at=0.0)
    with pytest.raises(
        VersionConflict, match=r"ann@host was first: revision 1 \(push of a, b, c\)"
    ):
        bobs.make(author="bob@host", at=1.0)
    assert path.read_text() == written(11)
    assert len(store.history()) == 1


def test_a_file_changed_by_hand_meanwhile_is_a_conflict_too(path: Path, store: RuleStore) -> None:
    plan = Editor(store).push(written(11).encode(), "a.json")
    by_rename(path, written(12))
    with pytest.raises(VersionConflict, match="changed meanwhile, not through Headgate"):
        plan.make(author="ann", at=0.0)
    assert path.read_text() == written(12)


def test_many_editors_at_once_lose_no_change(path: Path) -> None:
    """Each repeats until it wins; then every change is in the file and in the history."""

    def add(name: str) -> None:
        store = open_store(path)
        while True:
            try:
                Editor(store).set([rule(name)]).make(author=name, at=time.time())
            except VersionConflict:
                continue
            return

    threads = [threading.Thread(target=add, args=(f"new-{at}",)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = open_store(path)
    assert set(store.rules_in(store.read())) == {"a", "b", "c", *(f"new-{at}" for at in range(8))}
    assert [entry.revision for entry in store.history()] == list(range(8, 0, -1))


def test_a_bad_push_changes_nothing(path: Path, store: RuleStore) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(RulesError):
        Editor(store).push(b"rules: [{rule_id: a}]", "bad.yaml")
    with pytest.raises(ChangeRefused):
        Editor(store).push(written(10, "x").encode(), "x.json").make(author="ann", at=0.0)
    assert path.read_text() == written(10)
    assert sorted(path.parent.iterdir()) == before


def test_going_back_restores_the_very_bytes(path: Path, store: RuleStore) -> None:
    commented = "# mine\n- rule_id: a  # first\n  identifier: ip_address\n  rate: 10/minute\n"
    path.write_text(commented)
    Editor(store).set([rule("b"), rule("c")]).make(author="ann", at=0.0)
    Editor(store).delete(["a"]).make(author="ann", at=1.0)
    assert "# first" not in path.read_text()
    Editor(store).rollback(0).make(author="ann", at=2.0)
    assert path.read_text() == commented
    Editor(store).rollback().make(author="ann", at=3.0)
    assert "# first" not in path.read_text()
    assert [entry.action for entry in store.history()] == ["rollback", "rollback", "delete", "set"]


def test_a_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text(written(10))
    real.chmod(0o640)
    link = tmp_path / "rules.yaml"
    link.symlink_to(real)
    Editor(open_store(link)).set_fields("a", {"rate": "11/minute"}).make(author="ann", at=0.0)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "11/minute" in real.read_text()


def test_the_history_forgets_the_oldest_changes(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.rules.sources.file.KEPT_ENTRIES", 4)
    for limit in range(11, 18):
        Editor(store).push(written(limit).encode(), "x.json").make(author="ann", at=0.0)
    assert [entry.revision for entry in store.history()] == [7, 6, 5, 4]
    assert len((path.parent / "rules.yaml.history").read_bytes().splitlines()) == 4


def test_a_torn_line_in_the_history_is_passed_over(path: Path, store: RuleStore) -> None:
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    with (path.parent / "rules.yaml.history").open("a") as history:
        history.write('{"revision": 2, "auth\n')
    Editor(store).push(written(12).encode(), "x.json").make(author="ann", at=0.0)
    assert [entry.revision for entry in store.history()] == [2, 1]


@contextlib.contextmanager
def full_disk_after(file: Path, more: int) -> Iterator[None]:
    """No file may grow further than `more` bytes beyond this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("more", [0, 100])
def test_a_full_disk_leaves_the_history_as_it_was_and_the_next_change_is_in_it(
    path: Path, store: RuleStore, more: int
) -> None:
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    history = path.parent / "rules.yaml.history"
    before = history.read_bytes()
    plan = Editor(store).push(written(12).encode(), "x.json")
    with (
        full_disk_after(history, more),
        pytest.raises(SourceError, match=r"rules.yaml.history: File too large; nothing was writ"),
    ):
        plan.make(author="ann", at=0.0)
    assert (path.read_text(), history.read_bytes()) == (written(11), before)
    Editor(store).push(written(13).encode(), "x.json").make(author="ann", at=0.0)
    assert [entry.revision for entry in store.history()] == [2, 1]


def test_a_change_behind_half_a_line_is_in_the_history_and_so_is_that_it_was_forced(
    path: Path, store: RuleStore
) -> None:
    """Half a line is what a process leaves that dies while it writes one."""
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    with (path.parent / "rules.yaml.history").open("a") as history:
        history.write('{"revision": 2, "auth')
    Editor(store).push(written(12, "a").encode(), "x.json").make(author="ann", at=0.0, force=True)
    assert [(entry.revision, entry.forced) for entry in store.history()] == [(2, True), (1, False)]
    head = store.read().head
    assert head is not None
    assert (head.revision, head.forced) == (2, 2)


def test_a_history_that_cannot_be_shortened_does_not_make_a_change_fail(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.rules.sources.file.KEPT_ENTRIES", 2)
    for limit in (11, 12):
        Editor(store).push(written(limit).encode(), "x.json").make(author="ann", at=0.0)
    plan = Editor(store).push(written(13).encode(), "x.json")
    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "_shorten", failing(errno.ENOSPC))
        assert plan.make(author="ann", at=0.0).revision == 3
    assert path.read_text() == written(13)
    Editor(store).push(written(14).encode(), "x.json").make(author="ann", at=0.0)
    assert [entry.revision for entry in store.history()] == [4, 3]


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def synced_folders(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> list[str]:
    """The folders that are flushed to the disk from now on; with `code` that fails."""
    real = os.fsync
    found: list[str] = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            if code:
                failing(code)()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_change_that_the_disk_does_not_confirm_is_reported_as_made(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    plan = Editor(store).push(written(12).encode(), "x.json")
    with monkeypatch.context() as patch:
        synced_folders(patch, errno.EIO)
        with pytest.raises(SourceError, match="was changed, but the disk does not confirm it"):
            plan.make(author="ann", at=0.0)
    assert path.read_text() == written(12)
    assert [entry.revision for entry in store.history()] == [2, 1]


def test_a_file_system_that_cannot_sync_folders_is_no_error(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced_folders(monkeypatch, errno.EINVAL)
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    assert path.read_text() == written(11)


def test_an_interrupted_change_that_was_made_is_in_the_history(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Editor(store).push(written(11).encode(), "x.json")
    real = os.replace

    def interrupted(source: Path, target: Path) -> None:
        real(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.make(author="ann", at=0.0)
    assert path.read_text() == written(11)
    assert [entry.revision for entry in store.history()] == [1]


def test_a_first_history_is_on_the_disk_before_the_change_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies beside the link, and the rules somewhere else: two folders are flushed."""
    for name in ("real", "links"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "rules.yaml").write_text(written(10))
    link = tmp_path / "links" / "rules.yaml"
    link.symlink_to(tmp_path / "real" / "rules.yaml")
    found = synced_folders(monkeypatch)
    Editor(open_store(link)).set_fields("a", {"rate": "11/minute"}).make(author="ann", at=0.0)
    assert found == [str(tmp_path / "links"), str(tmp_path / "real")]


def test_the_history_is_as_private_as_the_rules(path: Path, store: RuleStore) -> None:
    path.chmod(0o600)
    Editor(store).push(written(11).encode(), "x.json").make(author="ann", at=0.0)
    history = path.parent / "rules.yaml.history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_of_two_editors_who_know_the_file_by_two_names_one_wins(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "rules.yaml"
    link.symlink_to(path)
    bobs = Editor(open_store(link)).push(written(12).encode(), "b.json")
    told: list[Exception] = []

    def bob() -> None:
        try:
            bobs.make(author="bob", at=0.0)
        except VersionConflict as error:
            told.append(error)

    thread = threading.Thread(target=bob)
    text = FileStore._text

    def slowly(store: FileStore, edit: Edit, before: bytes) -> tuple[bytes, str]:
        if edit.author == "ann":  # She has seen that the file is as it was; now bob comes.
            thread.start()
            thread.join(0.5)
        return text(store, edit, before)

    monkeypatch.setattr(FileStore, "_text", slowly)
    Editor(open_store(path)).push(written(11).encode(), "a.json").make(author="ann", at=0.0)
    thread.join()
    assert path.read_text() == written(11)
    assert len(told) == 1


def dies_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """End this process at its n-th step: instead of a flush or a rename, or half-way through a write."""
    steps = itertools.count(1)

    def instead(function: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> object:
            if next(steps) == step:
                os._exit(9)
            return function(*args)

        return run

    def half(file: FileIO, data: bytes) -> None:
        if next(steps) == step:
            file.write(data[: len(data) // 2])
            os._exit(9)
        file.write(data)

    for name in ("fsync", "replace"):
        patch.setattr(os, name, instead(getattr(os, name)))
    for module in ("rules.sources.file", "_atomic_file"):
        patch.setattr(f"headgate.{module}.write_all", half)


@pytest.mark.parametrize("step", range(1, 16))
def test_wherever_an_editor_dies_the_file_is_whole_and_every_change_in_it_is_in_the_history(
    path: Path, store: RuleStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("headgate.rules.sources.file.KEPT_ENTRIES", 2)
    for limit in (11, 12):
        Editor(store).push(written(limit).encode(), "x.json").make(author="ann", at=0.0)
    child = os.fork()
    if child == 0:
        try:
            dies_at(step, monkeypatch)
            Editor(store).push(written(13).encode(), "x.json").make(author="ann", at=0.0)
            os._exit(0)
        finally:  # Whatever went wrong: a child must never go on as a second test run.
            os._exit(1)
    died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    assert died is (step <= STEPS)
    assert path.read_text() in (written(12), written(13))
    if path.read_text() == written(13):
        head = store.read().head
        assert head is not None
        assert head.revision == 3
    assert died or path.read_text() == written(13)
    Editor(store).push(written(14).encode(), "x.json").make(author="ann", at=0.0)
    newest, before, *_ = store.history()
    assert path.read_text() == written(14)
    assert newest.revision == before.revision + 1
    assert newest.revision in (3, 4)


STEPS = 10
"""How many steps a change takes that also shortens the history."""


def test_an_unwritable_folder_is_reported_and_nothing_changes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "missing" / "rules.yaml")
    with pytest.raises(SourceError, match="No such file or directory; nothing was written"):
        Editor(store).push(written(10).encode(), "x.json").make(author="ann", at=0.0)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_a_path_that_is_not_a_file_is_reported(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "rules.yaml"
    make(path)
    with pytest.raises(SourceError, match="rules must be in a regular file"):
        open_store(path).read()
