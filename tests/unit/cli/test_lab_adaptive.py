"""`headgate lab adaptive`: what it says of each shape, what it reads, what it draws, and what it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import main

DRAWN = Path(__file__).parents[3] / "docs" / "explanation" / "replays" / "adaptive.svg"
SVG = "{http://www.w3.org/2000/svg}"


def replayed(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["lab", "adaptive", *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["allowed"] + found["denied"] == found["requests"]
    return found


def deciding(found: dict[str, Any]) -> list[str]:
    return [one["algorithm"] for one in found["choices"]]


WINDOW, BUCKET, BACKOFF = "sliding_window", "token_bucket", "exponential_backoff"


@pytest.mark.parametrize(
    "shape, expected",
    [
        ("steady", [WINDOW]),
        ("burst", [WINDOW, BUCKET, WINDOW]),
        ("abuse", [WINDOW, BACKOFF, WINDOW]),  # Its end is no burst.
        ("tour", [WINDOW, BUCKET, WINDOW, BUCKET, BACKOFF, WINDOW]),
    ],
)
def test_every_shape_calls_for(
    shape: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, shape)
    assert deciding(found) == expected
    moments = [one["at"] for one in found["choices"][1:]]
    assert all(after - before >= 5 for before, after in pairwise(moments))


def test_it_prints_which_algorithm_decided_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "adaptive", "burst"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.splitlines() == [
        "burst, 100 requests at once: 160 requests in 30 s",
        "118 admitted, 42 denied",
        "",
        "       0 s  sliding_window        no traffic has called for another algorithm yet",
        "       6 s  token_bucket          the busiest second had 5.5 times the mean, above 3",
        "      15 s  sliding_window        the burst ratio fell to 1.0, below 1.5",
        "",
        "each alone would have admitted: sliding_window 100, token_bucket 149, exponential_backoff 100",
    ]


def test_custom_traffic_and_thresholds_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    custom = ["custom", "--requests", "30", "--seconds", "40", "--keys", "3", "--cost", "2"]
    assert BACKOFF in deciding(replayed(capsys, *custom))
    found = replayed(capsys, *custom, "--enter-abuse-rate", "50", "--enter-burst-ratio", "11")
    assert deciding(found) == [WINDOW]
    assert found["requests"] == 1_200
    assert replayed(capsys, "tour", "--dwell", "600")["choices"][-1]["epoch"] == 1


@pytest.mark.parametrize("after", [[], [*range(40, 80)]])
def test_traffic_that_starts_and_ends_or_falls_off_is_steady_all_the_way(
    after: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forty requests a second by forty keys, from within a second to within another one."""
    path = tmp_path / "a.csv"
    times = [7.3 + at / 40 for at in range(1_000)]
    path.write_text("\n".join(f"{at},key {i % 40}" for i, at in enumerate([*times, *after, 90])))
    assert deciding(replayed(capsys, str(path))) == [WINDOW]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.csv", "1000.5\n1001,k\n1002,k,3\n\n"),
        ("a.csv", "cost,timestamp,key\n1,1000.5,k\n1,1001,k\n3,1002,k\n"),
        (
            "a.csv",
            "time\n2027-01-15T08:00:00Z\n2027-01-15T08:00:01.5Z\n2027-01-15T08:00:02+00:00\n",
        ),
        ("a.jsonl", '{"at": 7.5, "key": "k"}\n8\n{"time": "9.1", "cost": 2}\n'),
        ("a.jsonl", '{"timestamp": 9}\n{"at": 7}\n{"at": 8}\n'),  # In any order.
    ],
)
def test_recorded_times_are_read(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = replayed(capsys, str(path))
    assert (found["traffic"], found["requests"], found["seconds"]) == (name, 3, 3)


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("a.csv", "", "no requests"),
        ("a.csv", "1\nnoon\n", "line 2: 'noon' is not a time"),
        ("a.csv", "1,k,-4\n", "line 1: '-4' is not a cost"),
        ("a.jsonl", '{"at": 1}\n{\n', "line 2: this is not JSON"),
        ("a.jsonl", "null\n", "line 1: None is not a time"),
        ("a.jsonl", '{"at": true}\n', "line 1: True is not a time"),
        ("a.jsonl", '{"at": 1e300}\n', "is not a time"),
        ("a.csv", "nan\n", "no requests"),  # Taken for the names of columns.
        ("a.csv", "1\n99999999\n", "days"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["lab", "adaptive", str(path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ["nowhere.csv"],
        ["tour", "--limit", "5/second; 10/minute"],
        ["tour", "--keys", "3"],
        ["custom", "--requests", "0"],
        ["custom", "--keys", "-1"],
        ["custom", "--requests", "nan"],
        ["custom", "--requests", "1e6", "--seconds", "1e5"],
        ["tour", "--leave-burst-ratio", "5"],
        ["tour", "--dwell", "-1"],
        ["tour", "--dwell", "nan"],
        ["tour", "--picture", "/nowhere/at/all.svg"],
    ],
)
def test_what_makes_no_sense_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "adaptive", *args]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["tour", "steady", "abuse"])
def test_the_picture_has_a_band_for_every_choice_and_every_reason(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "p.svg"
    found = replayed(capsys, shape, "--picture", str(drawn))
    root = ET.fromstring(drawn.read_text())  # noqa: S314 - our own
    strips = [one for one in root.iter(f"{SVG}rect") if one.get("y") == "96"]
    assert len(strips) == len(found["choices"])
    assert float(strips[0].get("x", "")) == 64
    assert sum(float(one.get("width", "")) for one in strips) == pytest.approx(912, abs=1)
    words = "".join(root.itertext())
    assert all(one["reason"] in words for one in found["choices"][1:])
    assert f"{found['allowed']:,} admitted, {found['denied']:,} denied" in words


def test_a_hostile_name_of_a_file_is_text_in_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "<script>&.csv"
    path.write_text("1\n")
    drawn = tmp_path / "p.svg"
    replayed(capsys, str(path), "--picture", str(drawn))
    root = ET.fromstring(drawn.read_text())  # noqa: S314 - our own
    assert not list(root.iter(f"{SVG}script"))
    assert "<script>&.csv" in "".join(root.itertext())


def test_the_picture_in_the_documentation_is_the_one_that_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "p.svg"
    replayed(capsys, "tour", "--picture", str(drawn))
    assert drawn.read_text() == DRAWN.read_text(), "draw it again with `headgate lab adaptive tour`"
