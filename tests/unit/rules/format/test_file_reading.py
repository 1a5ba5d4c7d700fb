"""Rules files that are none, that are too large, or that change while they are read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.rules.format.document import MAX_BYTES
from headgate.rules.format.file_reading import read_file


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_bytes(b"rules: []\n" * 100_000)
    assert read_file(file) == b"rules: []\n" * 100_000
    assert read_file(str(file)) == read_file(file)


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Mounted configuration is a link that is changed in one step."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "rules.yaml").write_bytes(b"rules: []")
    (tmp_path / "rules.yaml").symlink_to(Path("..data") / "rules.yaml")
    assert read_file(tmp_path / "rules.yaml") == b"rules: []"


def test_a_hundred_megabytes_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    with file.open("wb") as opened:
        opened.truncate(100_000_000)
    monkeypatch.delattr(os, "read")
    with pytest.raises(
        ConfigError, match=f"has at least 100000000 bytes, but the limit is {MAX_BYTES}"
    ):
        read_file(file)


def test_an_endless_file_that_claims_to_be_empty_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.touch()
    monkeypatch.setattr(os, "read", lambda _, size: b"\0" * min(size, 65_536))
    with pytest.raises(ConfigError, match=f"has at least {MAX_BYTES + 1} bytes"):
        read_file(file)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is a pipe; rules must be in a regular file"):
        read_file(pipe)


@pytest.mark.parametrize("path, kind", [("/dev/zero", "a device"), ("/", "a directory")])
def test_a_file_that_is_not_regular_is_refused(path: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path} is {kind}; rules must be in a regular file"):
        read_file(path)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("missing.yaml", "no such file or directory"),
        ("nul\0.yaml", "embedded null byte"),
        ("a" * 300, "file name too long"),
        ("rules.yaml/below", "not a directory"),
    ],
)
def test_an_unreadable_file_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "rules.yaml").touch()
    with pytest.raises(ConfigError, match=f"cannot be read: {reason}; check the path"):
        read_file(tmp_path / name)


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="too many levels of symbolic links"):
        read_file(tmp_path / "loop")


def test_missing_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, whom nothing is forbidden; so the system's answer is played."""

    def forbidden(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "rules.yaml"
    file.touch(stat.S_IWUSR)
    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(ConfigError, match="cannot be read: permission denied; check the path"):
        read_file(file)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_bytes(b"old" * 1_000)
    really_read = os.read

    def read_slowly(opened: int, size: int) -> bytes:
        other = tmp_path / "new"
        other.write_bytes(b"new" * 1_000)
        other.replace(file)
        return really_read(opened, min(size, 100))

    monkeypatch.setattr(os, "read", read_slowly)
    assert read_file(file) == b"old" * 1_000


def test_a_file_that_is_written_to_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_bytes(b"first")
    really_read = os.read
    reads = 0

    def read_and_write(opened: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        part = really_read(opened, size)
        if reads == 1:
            file.write_bytes(b"second one")
        return part

    monkeypatch.setattr(os, "read", read_and_write)
    assert read_file(file) == b"second one"


def test_a_file_that_never_stands_still_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_bytes(b"")
    really_read = os.read

    def read_and_append(opened: int, size: int) -> bytes:
        part = really_read(opened, size)
        with file.open("ab") as more:
            more.write(b"x" if not part else b"")
        return part

    monkeypatch.setattr(os, "read", read_and_append)
    with pytest.raises(ConfigError, match="was written to while it was read; write to another"):
        read_file(file)
