import asyncio
import hashlib
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import ManualClock
from headgate.errors import ConfigError, EngineError
from headgate.service.security.audit import (
    AuditedChange,
    AuditLog,
    read_entries,
    sealed,
    verify_file,
)
from headgate.service.security.auth import Caller

ANN = Caller("ann", "operator", "127.0.0.1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def write(path: Path, *keys: str) -> None:
    log = AuditLog(path, node="n1", clock=ManualClock())
    for key in keys:
        asyncio.run(
            log.note(
                ANN, AuditedChange(action="ban.put", target=key, after={"x": 1}, reason="spam")
            )
        )
    log.close()


def test_a_line_says_who_did_what_when_from_where_and_why(path: Path) -> None:
    write(path, "k")
    _, entry = read_entries(path)
    digest = entry.pop("hash")
    line = path.read_bytes().splitlines()[1]
    assert digest == hashlib.sha256(line[: line.rindex(b',"hash"')] + b"}").hexdigest()
    assert len(entry.pop("prev")) == 64
    assert entry == {
        "seq": 2,
        "at": "2027-01-15T08:00:00.000Z",
        "node": "n1",
        "who": "ann",
        "role": "operator",
        "from": "127.0.0.1",
        "action": "ban.put",
        "target": "k",
        "before": None,
        "after": {"x": 1},
        "reason": "spam",
    }


def test_a_restart_continues_the_chain(path: Path) -> None:
    write(path, "a")
    write(path, "b")
    verdict = verify_file(path)
    assert verdict.ok
    assert verdict.entries == 4
    actions = [(entry["action"], entry["target"]) for entry in read_entries(path)]
    assert actions == [
        ("chain.open", "n1"),
        ("ban.put", "a"),
        ("chain.open", "n1"),
        ("ban.put", "b"),
    ]


REWRITTEN = {
    "changed": (b'"reason":"spam"', b'"reason":"fine"'),
    "a name twice": (b'"who":"ann"', b'"who":"bob","who":"ann"'),
    "a space": (b'"who":', b'"who": '),
    "another order": (b'"node":"n1","who":"ann"', b'"who":"ann","node":"n1"'),
    "another escape": (b'"who":"ann"', b'"who":"\\u0061nn"'),
    "a carriage return": (b"\n", b"\r\n"),
    "behind the hash": (b"}\n", b',"x":1}\n'),
}


def tampered(path: Path, how: str) -> list[int]:
    lines = path.read_bytes().splitlines(keepends=True)
    if how in REWRITTEN:
        lines[2] = lines[2].replace(*REWRITTEN[how])
    elif how == "changed with a new hash":
        entry = json.loads(lines[2])
        entry["reason"] = "fine"
        del entry["hash"]
        lines[2], _ = sealed(entry)
    elif how == "removed":
        del lines[2]
    elif how == "moved":
        lines[2], lines[3] = lines[3], lines[2]
    elif how == "added":
        lines.insert(2, lines[2])
    elif how == "garbage":
        lines[2] = b"\xff\xfe{{{\n"
    elif how == "first removed":
        del lines[0]
    elif how == "torn":
        lines[-1] = lines[-1][:-20]
    path.write_bytes(b"".join(lines))
    return [found.line for found in verify_file(path).breaks]


@pytest.mark.parametrize(
    "how, lines",
    [
        ("changed", [3]),
        ("changed with a new hash", [4]),
        ("a name twice", [3]),
        ("a space", [3]),
        ("another order", [3]),
        ("another escape", [3]),
        ("a carriage return", [3]),
        ("behind the hash", [3]),
        ("removed", [3]),
        ("moved", [3, 4, 5]),
        ("added", [4]),
        ("garbage", [3, 4]),
        ("first removed", [1]),
        ("torn", [6]),
    ],
)
def test_tampering_is_found_where_it_was_done_and_nowhere_else(
    path: Path, how: str, lines: list[int]
) -> None:
    write(path, *"abcde")
    assert verify_file(path).ok
    assert tampered(path, how) == lines


def test_a_log_that_was_tampered_with_is_not_continued(path: Path) -> None:
    write(path, "a", "b", "c")
    tampered(path, "removed")
    with pytest.raises(ConfigError, match="broken at line 3"):
        AuditLog(path, node="n1")


def test_half_a_line_is_cut_off_and_noted(path: Path) -> None:
    write(path, "a")
    with path.open("ab") as file:
        file.write(b'{"seq":3,"at":"20')
    assert not verify_file(path).ok
    write(path)
    assert verify_file(path).ok
    entries = list(read_entries(path))
    assert [entry["action"] for entry in entries] == [
        "chain.open",
        "ban.put",
        "chain.repair",
        "chain.open",
    ]
    assert entries[2]["before"] == "17 bytes"


def test_two_processes_do_not_share_a_chain(path: Path) -> None:
    first = AuditLog(path, node="n1")
    with pytest.raises(ConfigError, match="another process"):
        AuditLog(path, node="n2")
    first.close()


def test_a_change_that_fails_is_noted_as_failed(path: Path) -> None:
    async def story() -> None:
        log = AuditLog(path, node="n1")
        with pytest.raises(RuntimeError):
            async with log.change(ANN, AuditedChange(action="ban.put", target="k")):
                raise RuntimeError("no store")
        log.close()

    asyncio.run(story())
    assert [entry["action"] for entry in read_entries(path)] == [
        "chain.open",
        "ban.put",
        "ban.put.failed",
    ]


def test_concurrent_changes_make_one_chain(path: Path) -> None:
    async def story() -> None:
        log = AuditLog(path, node="n1")
        notes = (log.note(ANN, AuditedChange(action="x", target=str(i))) for i in range(50))
        await asyncio.gather(*notes)
        log.close()

    asyncio.run(story())
    assert verify_file(path).entries == 51
    assert verify_file(path).ok


def test_a_full_disk_refuses_the_change_and_keeps_the_chain_whole(path: Path) -> None:
    log = AuditLog(path, node="n1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    try:
        with pytest.raises(EngineError, match="cannot be written"):
            asyncio.run(log.note(ANN, AuditedChange(action="x", target="lost")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    asyncio.run(log.note(ANN, AuditedChange(action="x", target="kept")))
    log.close()
    assert verify_file(path).ok
    assert [entry["target"] for entry in read_entries(path)] == ["n1", "kept"]


def test_a_path_that_is_not_a_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a file"):
        AuditLog("/dev/zero", node="n1")


def test_without_a_file_the_newest_entries_are_kept() -> None:
    log = AuditLog(None, node="n1")
    for key in "abc":
        asyncio.run(log.note(ANN, AuditedChange(action="x", target=key)))
    assert [entry["target"] for entry in log.recent(2)] == ["c", "b"]
    assert [entry["target"] for entry in log.recent(9, before=3)] == ["a", "n1"]


def test_entries_can_be_read_while_others_are_written(path: Path) -> None:
    log = AuditLog(path, node="n1")

    class WritesWhenLookedAt(dict[str, Any]):
        """Stands for the thread that writes while somebody reads."""

        def __getitem__(self, name: str) -> Any:
            log._recent.append({"seq": 99})
            return super().__getitem__(name)

    log._recent.append(WritesWhenLookedAt(seq=2))
    assert [entry["seq"] for entry in log.recent(10, before=50)] == [2, 1]
    log.close()


def test_an_empty_file_is_not_a_valid_chain(path: Path) -> None:
    path.touch()
    (found,) = verify_file(path).breaks
    assert "the log is empty" in found.message


def test_the_log_of_the_service_contains_every_head(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headgate.service")
    log = AuditLog(path, node="n1")
    asyncio.run(log.note(ANN, AuditedChange(action="x", target="y")))
    log.close()
    told = [(one.__dict__["entry"], one.__dict__["head"]) for one in caplog.records]
    assert told == [(entry["seq"], entry["hash"]) for entry in read_entries(path)]
