"""`headgate rules check`, `init` and `schema` as a shell sees them."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.cli import main
from headgate.rules.format.schema import schema_text
from headgate.rules.format.starter import STARTER

GOOD = "rules:\n  - {rule_id: a, identifier: ip_address, rate: 100/minute}\n"
WARNED = "rule_id: a\nidentifier: ip_address\nrate: 100/minute\nmatch: {path_pattern: /a}\n"
BAD = "rules:\n  - rule_id: a\n    identifier: ip_address\n    rate: often\n    colour: blue\n"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_good_rules_are_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text(GOOD)
    assert main(["rules", "check", "rules.yaml"]) == 0
    assert capsys.readouterr() == ("rules.yaml: 1 rule, version da8ab48040691dd2\n", "")


def test_warnings_are_shown_and_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text(WARNED)
    assert main(["rules", "check", "rules.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(", 1 warning\n")
    assert err == (
        "rules.yaml: warning: no rule matches every request; "
        "add a rule without `match`, so that every request has a limit\n"
    )


def test_invalid_rules_are_listed_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text(BAD)
    assert main(["rules", "check", "rules.yaml"]) == 1
    out, err = capsys.readouterr()
    assert not out
    rate, colour, summary = err.splitlines()
    assert rate.startswith("rules.yaml:4: rules[0].rate: 'often' is not a rate; write it like")
    assert colour.startswith("rules.yaml:5: rules[0].colour: there is no field 'colour' here; ")
    assert summary == "rules.yaml: 2 problems"


def test_every_file_is_checked_also_after_a_bad_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(BAD)
    Path("good.yaml").write_text(GOOD)
    Path("directory.yaml").mkdir()
    files = ["bad.yaml", "missing.yaml", "directory.yaml", "good.yaml"]
    assert main(["rules", "check", "--json", *files]) == 1
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert not err
    assert [(answer["file"], answer["ok"], answer["rules"]) for answer in answers] == [
        ("bad.yaml", False, None),
        ("missing.yaml", False, None),
        ("directory.yaml", False, None),
        ("good.yaml", True, 1),
    ]
    assert [problem["line"] for problem in answers[0]["problems"]] == [4, 5]
    assert answers[1]["problems"][0]["message"] == ("cannot be read: no such file or directory")
    assert answers[3]["version"] == "da8ab48040691dd2"


def test_a_dash_reads_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(GOOD.encode())))
    assert main(["rules", "check", "-"]) == 0
    assert capsys.readouterr().out.startswith("stdin: 1 rule, version ")


def test_a_closed_stdin_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["rules", "check", "-"]) == 1
    assert "stdin is closed; give a file instead" in capsys.readouterr().err


def test_what_could_steer_a_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J.yaml"
    Path(name).write_text('rule_id: "\\e]0;owned\\a"\n"\\e[31m": 1\n')
    assert main(["rules", "check", name]) == 1
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert "\\x1b[2J.yaml:1: rule_id: '\\x1b]0;owned\\x07' must consist of" in err


@pytest.mark.parametrize(
    "words, message",
    [
        ("check", "the following arguments are required: FILE; see 'headgate rules check --help'"),
        (
            "check --jso x",
            "unrecognized arguments: --jso (did you mean --json?); see 'headgate rules check --help'",
        ),
        ("chek", "there is no command 'chek' (did you mean 'check'?); see 'headgate rules --help'"),
        (
            "init rules.json",
            "the starter file is YAML with comments, but rules.json does not end in .yaml; call it rules.yaml",
        ),
    ],
)
def test_wrong_usage_is_code_two(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", *words.split()]) == 2
    assert capsys.readouterr() == ("", f"headgate: {message}\n")


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "find mistakes in rules files" in err


def test_init_writes_rules_that_are_good_and_whose_tests_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules", "init"]) == 0
    assert Path("rules.yaml").read_text() == STARTER
    assert Path("rules.schema.json").read_text() == schema_text()
    assert capsys.readouterr().out == (
        "wrote rules.yaml and rules.schema.json; next: headgate rules check rules.yaml\n"
    )
    assert main(["rules", "check", "rules.yaml"]) == 0
    assert main(["rules", "test", "rules.yaml"]) == 0
    assert not capsys.readouterr().err


def test_init_never_overwrites_unless_it_is_forced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.yaml").write_text("mine")
    assert main(["rules", "init", "rules.yaml"]) == 1
    assert capsys.readouterr().err == (
        "headgate: rules.yaml already exists; choose another name, or use --force\n"
    )
    assert Path("rules.yaml").read_text() == "mine"
    assert not Path("rules.schema.json").exists()
    assert main(["rules", "init", "--force"]) == 0
    assert Path("rules.yaml").read_text() == STARTER


@pytest.mark.parametrize("is_there", [True, False])
def test_init_on_a_full_disk_leaves_what_was_there(
    is_there: bool,  # noqa: FBT001 - a parameter of the test
    capsys: pytest.CaptureFixture[str],
) -> None:
    if is_there:
        Path("rules.yaml").write_text("mine")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        assert main(["rules", "init", *(["--force"] if is_there else [])]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == (
        [("rules.yaml", "mine")] if is_there else []
    )


def test_init_says_what_it_wrote_and_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.schema.json").write_text("{}")
    assert main(["rules", "init"]) == 0
    assert capsys.readouterr().out == (
        "wrote rules.yaml; kept the existing rules.schema.json; next: headgate rules check rules.yaml\n"
    )
    assert Path("rules.schema.json").read_text() == "{}"
    Path("rules.yaml").unlink()
    assert main(["rules", "init", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"wrote": ["rules.yaml"], "kept": ["rules.schema.json"]}
    assert main(["rules", "init", "--json", "--force"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"wrote": ["rules.yaml", "rules.schema.json"], "kept": []}
    assert main(["rules", "init", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"text": STARTER}


def test_init_replaces_a_link_and_not_what_it_points_to() -> None:
    Path("other").write_text("precious")
    Path("rules.yaml").symlink_to("other")
    assert main(["rules", "init"]) == 1
    assert main(["rules", "init", "--force"]) == 0
    assert Path("other").read_text() == "precious"


def test_init_with_a_dash_prints_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "init", "-"]) == 0
    assert capsys.readouterr().out == STARTER
    assert not [*Path().iterdir()]


def test_init_where_nothing_can_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "init", "missing/rules.yaml"]) == 1
    assert capsys.readouterr().err == (
        "headgate: missing/rules.yaml cannot be written: No such file or directory; "
        "its folder must exist and be writable\n"
    )


def test_schema_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "schema"]) == 0
    assert capsys.readouterr().out == schema_text()


def test_a_device_and_a_closed_pipe_leave_no_traceback() -> None:
    headgate = f"{sys.executable} -m headgate"
    command = f"{headgate} rules check /dev/zero; {headgate} rules schema | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{"
    assert done.stderr == (
        "/dev/zero: is a device; rules must be in a regular file\n/dev/zero: 1 problem\n"
    )
