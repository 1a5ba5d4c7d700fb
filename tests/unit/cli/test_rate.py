"""`headgate rate`: exact outputs, on a clock that stands still.

`golden/*.txt` hold a command, `----` and its whole output. After a change that is meant to show, write
them anew and read the difference:

    REWRITE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/cli && git diff tests/unit/cli/golden

To add one, write a file with only its first line and do the same.
"""

import io
import json
import os
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headgate.algorithms import TokenBucket
from headgate.cli import main
from headgate.clock import ManualClock

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.txt"))
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
NOW = 1_800_000_000.0  # 15 January 2027, 08:00 UTC.
SEPARATOR = "----\n"


@pytest.fixture(autouse=True)
def _utf8_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def output_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *words = shlex.split(command)
    assert program == "headgate"
    assert main(words, clock=ManualClock(NOW)) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def json_of(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(output_of(command, capsys))


def read_on_stdin(
    data: bytes, monkeypatch: pytest.MonkeyPatch, *words: str, encoding: str = "utf-8"
) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding))
    return main(["rate", "-", *words], clock=ManualClock(NOW))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_output_is_exactly_the_golden_one(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, expected = path.read_text(encoding="utf-8").partition(SEPARATOR)
    shown = output_of(command, capsys)
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(f"{command.rstrip()}\n{SEPARATOR}{shown}", encoding="utf-8")
        return
    assert shown == expected


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_output_fits_a_terminal_and_leaves_no_trailing_space(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_output_in_ascii_has_the_same_shape(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    command, _, expected = path.read_text(encoding="utf-8").partition(SEPARATOR)
    shown = output_of(command, capsys)
    assert shown.isascii()
    assert [len(line) for line in shown.splitlines()] == [
        len(line) for line in expected.splitlines()
    ]


def test_examples_on_the_reference_page_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```text\n\$ (headgate .*)\n([^`]*)```", PAGE.read_text(encoding="utf-8"))
    assert blocks
    for command, expected in blocks:
        assert output_of(command, capsys) == expected


def test_words_need_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    quoted = output_of("headgate rate '100/minute burst 20'", capsys)
    assert output_of("headgate rate 100/minute burst 20", capsys) == quoted


def test_the_same_rate_reads_the_same_however_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = output_of("headgate rate 5/300s", capsys)
    assert shown.startswith("5/5 minutes\n")
    assert output_of("headgate rate 5 per 5 min", capsys) == shown


def test_json_says_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of("headgate rate 100/minute burst 20 --json", capsys)
    (rate,) = answer["rates"]
    timeline = rate.pop("timeline")
    facts = rate.pop("facts")
    assert answer["now_us"] == NOW * 1_000_000
    assert rate == {
        "rate": "100/minute burst 20",
        "limit": 100,
        "window_us": 60_000_000,
        "burst": 20,
        "calendar": None,
        "algorithm": "token_bucket",
        "reason": "the default for a rate with a burst",
        "guarantee": TokenBucket.guarantee,
    }
    assert facts[0] == f"Guarantees {TokenBucket.guarantee}."
    assert facts[1].startswith("One unit refills every 600 ms")
    assert (timeline["hits_per_column"], timeline["hits_per_batch"], timeline["cost"]) == (10, 1, 1)
    # A burst of 20 and what flows back meanwhile, then the steady 5 of 10.
    assert timeline["admitted"] == [0] * 10 + [10, 10, 10, 9] + [5] * 46
    assert timeline["denied"] == [0] * 10 + [0, 0, 0, 1] + [5] * 46


def test_json_of_a_calendar_rate_has_its_period(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of("headgate rate 1000/calendar month in Europe/Berlin anchor 15 --json", capsys)
    (rate,) = answer["rates"]
    assert rate["window_us"] is None
    assert rate["calendar"] == {
        "period": "month",
        "tz": "Europe/Berlin",
        "anchor": 15,
        "start": "2027-01-15T00:00:00+01:00",
        "end": "2027-02-15T00:00:00+01:00",
        "start_us": 1_799_967_600_000_000,
        "end_us": 1_802_646_000_000_000,
    }
    edges = rate["timeline"]["edges_us"]
    hours = [(end - start) // 3_600_000_000 for start, end in pairwise(edges)]
    assert hours == [31 * 24, 28 * 24, 31 * 24 - 1]  # Clocks go forward in March.


def test_json_of_several_rates_says_who_refused(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of("headgate rate '2/second; 20/minute' --json", capsys)
    assert [rate["rate"] for rate in answer["rates"]] == ["2/second", "20/minute"]
    seconds, minutes = answer["together"]
    assert (seconds["over"], minutes["over"]) == ("2/second", "20/minute")
    assert seconds["refusals"] == {"2/second": 46, "20/minute": 0}
    assert minutes["refusals"]["20/minute"] > 0
    for view in answer["together"]:
        timeline = view["timeline"]
        came = sum(timeline["admitted"]) + sum(timeline["denied"])
        assert came == 50 * timeline["hits_per_column"]


def test_a_cost_that_never_fits_is_said_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of("headgate rate 10/minute --cost 11 --json", capsys)
    (rate,) = answer["rates"]
    assert (
        rate["facts"][1]
        == "A hit of 11 can never pass: there are never more than 10 units at once."
    )
    assert sum(rate["timeline"]["admitted"]) == 0


def test_stdin_holds_one_rate_per_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = read_on_stdin(b"# ours\n\n 4/second \r\n1/s; 9/m", monkeypatch, "--json")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [[rate["rate"] for rate in one["rates"]] for one in answers] == [
        ["4/second"],
        ["1/second", "9/minute"],
    ]


def test_texts_from_stdin_are_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = output_of("headgate rate 4/second", capsys)
    second = output_of("headgate rate 0/day", capsys)
    assert read_on_stdin(b"4/second\n0/day\n", monkeypatch) == 0
    assert capsys.readouterr().out == f"{first}\n{second}"


def test_a_bad_line_is_named_and_the_others_are_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = read_on_stdin(b"1/s\n5/moon\n\n2/s\n", monkeypatch, "--json")
    out, err = capsys.readouterr()
    assert code == 2
    assert [json.loads(line)["rates"][0]["rate"] for line in out.splitlines()] == [
        "1/second",
        "2/second",
    ]
    assert err == (
        "headgate: line 2: there is no time unit 'moon'; "
        "use ms, second, minute, hour, day or week\n"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_binary_data_is_a_bad_rate(
    encoding: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_on_stdin(b"\x7fELF\x00\xff\x1b[0m\n", monkeypatch, encoding=encoding) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(r"headgate: line 1: '\x7fELF\x00\\xff\x1b[0m' is not a rate;")


def test_an_endless_line_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_on_stdin(b"1/s\n" + b"9" * 1_000_000, monkeypatch, "--json") == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == "headgate: line 2 has more than 1000 characters; the rest was not read\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "env, coloured",
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),  # The convention: any value counts, but not an empty one.
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=str,
)
def test_colour_is_for_terminals_that_want_it(
    env: dict[str, str],
    *,
    coloured: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = output_of("headgate rate 4/second", capsys)
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["rate", "4/second"], clock=ManualClock(NOW)) == 0
    shown = terminal.getvalue()
    assert ("\x1b[32m" in shown) == coloured
    assert re.sub(r"\x1b\[[0-9]+m", "", shown) == plain
