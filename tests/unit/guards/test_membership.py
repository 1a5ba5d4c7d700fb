"""Membership: the largest of the last hour, never below what was said, and on disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headgate import UsageError
from headgate.guards.membership import Membership
from headgate.guards.shares import Fleet

if TYPE_CHECKING:
    from pathlib import Path


class Now:
    """A clock for membership."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


def test_it_is_the_largest_of_the_last_hour() -> None:
    now = Now()
    members = Membership(me="a", now=now)
    members.saw(["a", "b", "c"])
    members.saw(["a"])
    assert members.fleet() == Fleet(3, ("a", "b", "c"), "a")
    now.seconds += 3_000
    members.saw(["a", "b"])
    assert members.fleet().nodes == 3
    now.seconds += 600
    assert members.fleet() == Fleet(2, ("a", "b"), "a")


def test_it_is_never_below_the_configured_number() -> None:
    members = Membership(5, me="a")
    assert members.fleet() == Fleet(5, (), "a")
    members.saw(["a", "b"])
    assert members.fleet() == Fleet(5, ("a", "b"), "a")
    members.saw("abcdefg")
    assert members.fleet().nodes == 7


def test_without_a_configured_number_it_is_unknown() -> None:
    assert Membership().fleet() == Fleet(1, known=False)


def test_a_restart_remembers(tmp_path: Path) -> None:
    now, path = Now(), tmp_path / "state" / "members.json"
    Membership(me="a", path=path, now=now).saw(["a", "b"])
    assert Membership(me="a", path=path, now=now).fleet().nodes == 2
    now.seconds += 7_200
    assert not Membership(me="a", path=path, now=now).fleet().known


@pytest.mark.parametrize("content", ["", "[]", '{"largest": 3}', '{"largest": {"x": []}}', "\x00"])
def test_a_file_that_cannot_be_read_is_left_out_with_a_warning(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "members.json"
    path.write_text(content)
    members = Membership(path=path)
    assert not members.fleet().known
    assert "cannot read which nodes" in caplog.text
    members.saw(["a"])
    assert Membership(path=path).fleet().known


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    members = Membership(path=tmp_path / "file" / "members.json")
    members.saw(["a", "b"])
    members.saw(["a", "b", "c"])
    assert members.fleet().nodes == 3
    assert caplog.text.count("cannot write which nodes") == 1


@pytest.mark.parametrize("nodes", [0, -1, True, 1.5, "3"])
def test_a_number_of_nodes_is_a_number_from_one(nodes: object) -> None:
    with pytest.raises(UsageError, match="nodes"):
        Membership(nodes)  # type: ignore[arg-type]


def test_of_equally_large_memberships_the_latest_counts() -> None:
    members = Membership(me="c")
    members.saw(["a", "b"])
    members.saw(["b", "c"])
    assert members.fleet() == Fleet(2, ("b", "c"), "c")


def test_the_last_of_several_periods_counts_if_there_were_as_many() -> None:
    now = Now()
    members = Membership(me="c", now=now)
    members.saw(["a", "b"])
    now.seconds += 300
    members.saw(["b", "c"])
    assert members.fleet().members == ("b", "c")


def test_a_node_that_was_not_seen_with_the_others_counts_too() -> None:
    members = Membership(me="new")
    assert members.fleet().nodes == 1
    members.saw(["a", "b"])
    assert members.fleet() == Fleet(3, ("a", "b"), "new")


def test_processes_that_share_a_file_do_not_lose_what_another_saw(tmp_path: Path) -> None:
    now, path = Now(), tmp_path / "members.json"
    one, other = (Membership(me=me, path=path, now=now) for me in "ab")
    one.saw(["a", "b", "c"])
    other.saw(["a", "b"])
    assert other.fleet().nodes == 3
    assert Membership(me="a", path=path, now=now).fleet().nodes == 3


def test_a_file_that_is_named_later_adds_to_what_is_known(tmp_path: Path) -> None:
    now, path = Now(), tmp_path / "members.json"
    Membership(me="a", path=path, now=now).saw(["a", "b", "c"])
    members = Membership(now=now)
    members.rename("a")
    members.keep_in(path)
    assert members.fleet() == Fleet(3, ("a", "b", "c"), "a")


def test_it_is_safe_to_read_while_members_change() -> None:
    now = Now()
    members = Membership(me="0", now=now)
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            now.seconds += 300
            members.saw(map(str, range(int(now.seconds) % 7)))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(2_000):
            assert members.fleet().nodes <= 8
    finally:
        over.set()
        thread.join()
