"""The last good copy: what survives, and what is not believed."""

import logging
import os
import stat
from pathlib import Path

import pytest

from headgate.rules.live.last_good import LastGood, SavedRules, default_folder

KEPT = SavedRules(version=7, revision=3, documents={"a": b'{"rule_id": "a"}', "b\xff": b"\xff\x00"})


def test_a_saved_copy_is_read_back_unchanged(tmp_path: Path) -> None:
    copy = LastGood(tmp_path / "new" / "folder", "zookeeper://host/rules")
    assert copy.load() is None
    copy.save(KEPT)
    found = LastGood(tmp_path / "new" / "folder", "zookeeper://host/rules").load()
    assert found is not None
    assert (found.version, found.revision, found.documents) == (7, 3, KEPT.documents)
    assert stat.S_IMODE(copy.path.stat().st_mode) == 0o600
    assert [path.name for path in copy.path.parent.iterdir()] == [copy.path.name]


def test_a_save_is_durable_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content, and the name that it has now."""
    kinds = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kinds.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    LastGood(tmp_path, "here").save(KEPT)
    assert kinds == [stat.S_IFREG, stat.S_IFDIR]


def test_each_source_has_its_own_copy(tmp_path: Path) -> None:
    one, other = LastGood(tmp_path, "etcd://one/rules"), LastGood(tmp_path, "etcd://two/rules")
    one.save(KEPT)
    assert other.load() is None


@pytest.mark.parametrize("damage", [0, 20, 100, -1])
def test_a_torn_copy_is_ignored(
    tmp_path: Path, damage: int, caplog: pytest.LogCaptureFixture
) -> None:
    copy = LastGood(tmp_path, "here")
    copy.save(KEPT)
    content = bytearray(copy.path.read_bytes())
    content[damage] ^= 1
    copy.path.write_bytes(content)
    assert copy.load() is None
    assert "damaged or not from Headgate" in caplog.text
    copy.path.write_bytes(content[:50])
    assert copy.load() is None


def test_an_unwritable_folder_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    copy = LastGood(tmp_path / "file", "here")
    with caplog.at_level(logging.WARNING):
        copy.save(KEPT)
        copy.save(KEPT)
    assert len(caplog.records) == 1
    assert "this node will not start while here is unavailable" in caplog.text


def test_confirming_updates_the_time_of_the_copy(tmp_path: Path) -> None:
    copy = LastGood(tmp_path, "here")
    copy.save(KEPT)
    os.utime(copy.path, (1.0, 1.0))
    copy.confirm()
    found = copy.load()
    assert found is not None
    assert found.at > 1_000_000


def test_the_environment_decides_where_copies_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    monkeypatch.setenv("HEADGATE_STATE_DIR", "/own")
    assert default_folder() == Path("/own")
    monkeypatch.delenv("HEADGATE_STATE_DIR")
    assert default_folder() == Path("/xdg/headgate")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_folder() == Path("/home/ann/.local/state/headgate")
