"""Files that are replaced as a whole: what killed processes leave, and that nobody removes what is being written."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate._atomic_file import PART, replace_file, write_part
from tests.servers.process import wait_until

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="leftovers are told by locks, which Windows lacks"
)

DYING = """
import os, sys, time
from pathlib import Path
from headgate import _atomic_file
os.fsync = lambda _: time.sleep(60)
_atomic_file.replace_file(Path(sys.argv[1]), b"never")
"""
SAVING = """
import sys
from pathlib import Path
from headgate._atomic_file import replace_file
path, name = Path(sys.argv[1]), sys.argv[2]
for number in range(300):
    replace_file(path, f"{name} {number}\\n".encode() * 2_000)
"""


def parts(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if one.name.endswith(PART)]


@pytest.fixture
def dying(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", DYING, str(tmp_path / "file")])
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_save_left_goes_with_the_next_one(
    tmp_path: Path, dying: "subprocess.Popen[bytes]"
) -> None:
    wait_until(lambda: len(parts(tmp_path)) == 1, "it is being saved")
    path = tmp_path / "file"
    replace_file(path, b"first")  # While the other is still at it.
    assert len(parts(tmp_path)) == 1
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    (tmp_path / ".file.original").write_bytes(b"somebody's own")
    (tmp_path / f".other.abc{PART}").write_bytes(b"beside another file")
    replace_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".file.original",
        f".other.abc{PART}",
        "file",
    ]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with write_part(tmp_path / "file", b"x"):
        assert len(parts(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "folder", b"x")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_those_who_save_at_once_do_not_remove_each_others_work(tmp_path: Path) -> None:
    path = tmp_path / "file"
    savers = [
        subprocess.Popen([sys.executable, "-c", SAVING, str(path), name], stderr=subprocess.PIPE)
        for name in "abcd"
    ]
    for saver in savers:
        _, said = saver.communicate(timeout=120)
        assert (saver.returncode, said) == (0, b"")
    assert len(set(path.read_text().splitlines())) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
