"""`headgate lab verify`: what it says, what it draws, and its exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from headgate.cli import main

if TYPE_CHECKING:
    from pathlib import Path

HEADER: dict[str, Any] = {
    "format": "headgate-history",
    "version": 1,
    "engine": "redis",
    "mode": "exact",
    "title": "Two & more <limits>",
    "limits": {"api": {"algorithm": "fixed_window", "limit": 2, "window_us": 1_000_000}},
}
RESTART = {"fault": "store_restart", "t0": 300, "t1": 350, "heal": 350, "name": "F1"}


def check(at: int, outcome: str = "allow", key: str = "ann", **more: Any) -> dict[str, Any]:
    return {"f": "check", "key": key, "t0": at, "t1": at + 20, "type": outcome, **more}


GOOD = [
    HEADER,
    check(100),
    check(200),
    check(250, "deny"),
    RESTART,
    check(400),
    check(500),
    check(600, "deny"),
]


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(records: list[Any]) -> str:
        path = tmp_path / "history.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
        return str(path)

    return write


def test_a_promise_that_holds(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(GOOD)
    assert main(["lab", "verify", path]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.splitlines() == [
        f"{path}: 6 operations on 1 key in 520 µs, 1 fault",
        "promise of redis exact: nothing over; a restart without AOF: L once; a failover: what was not replicated",
        "",
        "  answers         4 allowed, 2 denied",
        "  by              6 engine",
        "  over the limit  2         units, the most in any span",
        "  bound           2         units over the limit that faults and mode may add",
        "  over the bound  0         units beyond what the promise allows: must be 0",
        "  false denials   0         denied while there was certainly room",
        "  lost            0         decisions that were acknowledged, then lost",
        "  duplicates      0         versions that were used twice",
        "  replayed        0         answers compared with the algorithm's",
        "  not replayed    0         answers with receipts that could not be compared",
        "  took            20 µs usually, 99 % at most 20 µs, the slowest 20 µs",
        "",
        "the promise holds",
    ]


def test_a_promise_that_is_broken(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The same answers, without the fault that would explain them."""
    path = written([one for one in GOOD if one is not RESTART])
    assert main(["lab", "verify", path]) == 1
    out = capsys.readouterr().out
    assert out.endswith(
        "over-admission: 1\n"
        "  line 6, 0.000420 s, key 'ann': 4 units in 1.000000 s, 2 more than the limit plus what faults may add\n"
        "the promise is broken\n"
    )


def test_a_false_denial_is_a_broken_promise_where_the_mode_does_not_allow_it(
    written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [check(100), check(200, "deny")]
    assert main(["lab", "verify", written([HEADER, *records])]) == 1
    assert "1 of 2 denied, but 1 were certainly free" in capsys.readouterr().out
    assert main(["lab", "verify", written([{**HEADER, "mode": "leased"}, *records])]) == 0
    assert "  false denials   1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    "records, message", [([], "the history is empty"), ([HEADER, {"f": "x"}], "line 2: ")]
)
def test_what_cannot_be_judged_is_wrong_usage(
    records: list[Any], message: str, written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "verify", written(records)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"headgate: {message}")


def test_a_file_that_is_not_there_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "verify", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("none: No such file or directory\n")


def test_json_has_the_verdict_the_figures_and_the_findings(
    written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written([one for one in GOOD if one is not RESTART])
    assert main(["lab", "verify", path, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["history"], found["verdict"], found["keys"]) == (path, "violated", 1)
    assert found["promise"]["engine"] == "redis"
    assert found["figures"]["over_limit"] == found["figures"]["over_bound"] == 2
    assert found["violations"] == {"over-admission": 1}
    (finding,) = found["findings"]
    assert (finding["check"], finding["key"], finding["units"], finding["line"]) == (
        "over-admission",
        "ann",
        2,
        6,
    )


def test_the_picture_shows_the_limit_the_fault_and_what_was_asked(
    written: Any, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.svg"
    assert main(["lab", "verify", written(GOOD), "--picture", str(picture)]) == 0
    drawn = ET.parse(picture).getroot()  # noqa: S314 - written a line above
    texts = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for words in (
        "Two & more <limits>",
        "the promise holds",
        "limit 2",
        "F1",
        "admitted",
        "denied",
        "fault",
    ):
        assert words in texts
    assert "unknown" not in texts


def test_the_picture_is_of_the_key_that_broke_its_promise_or_of_the_one_that_was_named(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.svg"
    busy = [check(at, "allow" if at < 4 else "deny", "bob") for at in range(1, 200, 2)]
    path = written([HEADER, *busy, *[one for one in GOOD[1:] if one is not RESTART]])
    assert main(["lab", "verify", path, "--picture", str(picture)]) == 1
    assert "&#x27;" not in picture.read_text()
    assert "'ann' under 'api'" in picture.read_text()
    assert main(["lab", "verify", path, "--picture", str(picture), "--key", "bob"]) == 1
    assert "'bob' under 'api'" in picture.read_text()
    capsys.readouterr()
    assert main(["lab", "verify", path, "--picture", str(picture), "--key", "eve"]) == 2
    assert "the history has nothing about the key 'eve'" in capsys.readouterr().err


def test_keys_that_would_steer_a_terminal_are_shown_and_not_sent(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.svg"
    records = [HEADER, *(check(at, key="\x1b[31m</text>") for at in (1, 2, 3))]
    assert main(["lab", "verify", written(records), "--picture", str(picture)]) == 1
    assert "\x1b" not in capsys.readouterr().out
    ET.parse(picture)  # noqa: S314


@pytest.mark.parametrize("name", [".", "no/picture.svg"])
def test_a_picture_that_cannot_be_written_is_wrong_usage_after_the_verdict(
    name: str, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = written(GOOD), tmp_path / name
    assert main(["lab", "verify", path, "--picture", str(picture)]) == 2
    out, err = capsys.readouterr()
    assert out.endswith("\nthe promise holds\n")
    assert err.startswith(f"headgate: {picture} cannot be written: ")


def test_without_an_answer_nothing_is_judged(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One answer is enough to judge."""
    silent = [HEADER, check(100, "fail", err="status 404"), check(200, "info"), check(300, "info")]
    path, picture = written(silent), tmp_path / "picture.svg"
    assert main(["lab", "verify", path, "--picture", str(picture)]) == 2
    assert capsys.readouterr().out.endswith(
        "\nnothing could be judged\n"
        "  no answer said allowed or denied: 1 failed, 2 unknown, the first because of: status 404\n"
    )
    assert "nothing could be judged" in picture.read_text()
    assert main(["lab", "verify", path, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["figures"]["failed"], found["figures"]["unknown"]) == (
        "unjudged",
        1,
        2,
    )
    assert main(["lab", "verify", written([*silent, check(400)])]) == 0
    assert capsys.readouterr().out.endswith("\nthe promise holds\n")


def test_what_was_broken_without_an_answer_is_still_broken(written: Any) -> None:
    late = {**check(100, "info"), "t1": 90_000_000}
    assert (
        main(["lab", "verify", written([{**HEADER, "parameters": {"deadline_us": 1}}, late])]) == 1
    )


def test_the_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab"]) == 2
    assert "verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--rate 1/s;2/s",
        "--rate 5/s --header nonsense",
        "--rate 5/s --deny-status x",
        "--rate 5/s --deny-status 700",
        "--rate 5/s --requests 0",
    ],
)
def test_a_recording_that_makes_no_sense_is_not_begun(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    assert main(["lab", "record", "http://127.0.0.1:1/", "--to", str(path), *words.split()]) == 2
    assert capsys.readouterr().err.startswith("headgate: ")
    assert not path.exists()


def test_a_recording_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["lab", "record", "http://127.0.0.1:1/", "--rate", "5/s", "--to", str(tmp_path)]
    assert main(words) == 2
    assert capsys.readouterr().err == f"headgate: {tmp_path} cannot be written: Is a directory\n"


def test_another_machine_is_not_hammered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    assert main(["lab", "record", "http://example.com/", "--rate", "5/s", "--to", str(path)]) == 2
    assert "is not this machine" in capsys.readouterr().err
