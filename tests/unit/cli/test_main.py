"""The command line as a shell sees it: exit codes, streams, locales, closed pipes."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from headgate.cli import COMMANDS, main, rules
from headgate.errors import ConfigError, EngineError

UTF8 = {"LC_ALL": "C.UTF-8"}


def headgate_process(
    *words: str, env: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m headgate` as a child, in a locale of its own."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8"}
    }
    return subprocess.run(  # type: ignore[call-overload, no-any-return]  # options are subprocess.run's
        [sys.executable, "-m", "headgate", *words],
        env=inherited | (UTF8 if env is None else env),
        check=False,
        **{"capture_output": True, "stdin": subprocess.DEVNULL} | options,
    )


@pytest.mark.parametrize(
    "words, code, message",
    [
        ("rate 4/second", 0, ""),
        ("rate 100/minute burst 20", 0, ""),
        ("--version", 0, ""),
        ("--help", 0, ""),
        ("rate --help", 0, ""),
        ("rate 5/fortnight", 2, r"there is no time unit 'fortnight'; use ms, .*"),
        ("rate 5/month", 2, r"a month has no fixed length; .*"),
        ("rate hello", 2, r"'hello' is not a rate; write it like '100/minute', .*"),
        ("rate 1/s;2/s", 2, r"'1/s;2/s' has the same window twice; .*"),
        ("rate 1/calendar day in Mars/Base", 2, r"there is no time zone 'Mars/Base'; .*"),
        ("rate 1/s --algorithm leaky", 2, r"there is no algorithm 'leaky'; the algorithms are .*"),
        ("rate 1/s --algorithm concurrency", 2, r"concurrency counts slots, .*"),
        ("rate 1/s burst 2 --algorithm sliding_log", 2, r"sliding_log has no burst; .*"),
        ("rate 1/calendar day --algorithm token_bucket", 2, r"calendar rates are counted by .*"),
        ("rate 2000000/s burst 1", 2, r"token_bucket allows at most one unit per microsecond.*"),
        (
            "rate 1/s --cost 0",
            2,
            r"the cost must be a whole number from 1 to 9007199254740991, not '0'",
        ),
        (
            "rate 1/s --cost -1",
            2,
            r"the cost must be a whole number from 1 to 9007199254740991, not '-1'",
        ),
        (
            "rate 1/s --cost 1.5",
            2,
            r"the cost must be a whole number from 1 to 9007199254740991, not '1\.5'",
        ),
        (
            "rate 1/s --cost ²",
            2,
            r"the cost must be a whole number from 1 to 9007199254740991, not '²'",
        ),
        ("rate 1/s --cost 9007199254740992", 2, r".* from 1 to 9007199254740991, not '9007.*'"),
        ("rate 1/s --cost 99999999999999999999", 2, r".* from 1 to 9007199254740991, not '9+'"),
        ("rate", 2, r"the following arguments are required: TEXT; see 'headgate rate --help'"),
        ("rate 1/s --cost", 2, r"argument --cost: expected one argument; see .*"),
        (
            "rate 1/s --jso",
            2,
            r"unrecognized arguments: --jso \(did you mean --json\?\); see 'headgate rate --help'",
        ),
        (
            "serve --prot 8080",
            2,
            r"unrecognized arguments: --prot 8080 \(did you mean --port\?\); see 'headgate serve --help'",
        ),
        (
            "rat 1/s",
            2,
            r"there is no command 'rat' \(did you mean 'rate'\?\); see 'headgate --help'",
        ),
        ("check k --rate 5/s", 2, r"unrecognized arguments: --rate 5/s; see .*"),
        ("frobnicate", 2, r"there is no command 'frobnicate'; see 'headgate --help'"),
        ("--frobnicate", 2, r"unrecognized arguments: --frobnicate; see 'headgate --help'"),
    ],
)
def test_exit_code_and_one_line_on_stderr(
    words: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == code
    out, err = capsys.readouterr()
    if code:
        assert re.fullmatch(f"headgate: {message}\n", err)
        assert not out
    else:
        assert out
        assert not err


def test_nothing_to_do_shows_the_help_and_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("usage: headgate ")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {command.NAME}" in shown and command.HELP in shown for command in COMMANDS)


GROUPED = [
    *(["rules", name] for name in rules.ORDER),
    *(["token", name] for name in ("create", "list", "revoke")),
    *(["audit", name] for name in ("verify", "tail")),
    *(["lab", name] for name in ("verify", "record", "simulate")),
]


@pytest.mark.parametrize("command", [[], *([command.NAME] for command in COMMANDS), *GROUPED])
def test_help_fits_a_terminal_and_every_locale(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "error, code, line",
    [
        (ConfigError("rules.toml:3: no such key"), 1, "rules.toml:3: no such key"),
        (EngineError("redis went away", transient=True), 1, "redis went away"),
        (
            FileNotFoundError(2, "No such file or directory", "a\nb"),
            1,
            r"a\nb: No such file or directory",
        ),
        (
            ZeroDivisionError("oops"),
            1,
            "this is a bug: ZeroDivisionError: oops; --debug shows where",
        ),
        (KeyboardInterrupt(), 130, None),
        (BrokenPipeError(), 1, None),
    ],
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_what_goes_wrong_in_a_command_is_one_line(
    *,
    error: BaseException,
    code: int,
    line: str | None,
    debug: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback only with --debug, and then before the line."""

    def fail(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("headgate.cli.rate.run", fail)
    assert main(["rate", "1/s", *debug]) == code
    err = capsys.readouterr().err
    if line is None:
        assert not err
    elif debug:
        assert err.startswith("Traceback ")
        assert err.endswith(f"\nheadgate: {line}\n")
    else:
        assert err == f"headgate: {line}\n"


@pytest.mark.parametrize(
    "words, traceback",
    [
        (["--debug", "rate", "no"], True),
        (["rate", "no", "--debug"], True),
        (["rate", "--", "--debug"], False),
    ],
)
def test_debug_works_before_and_after_the_command(
    words: list[str], *, traceback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("Traceback " if traceback else "headgate: ")


@pytest.mark.parametrize(
    "words, shown",
    [
        (["rate", "\x1b[31mred\n"], r"'\x1b[31mred'"),
        (["rate", "1/s", "--\x1b]0;title\x07"], r"--\x1b]0;title\x07"),
        (["rate", "1/s", "\u202e"], r"\u202e"),
        (["\x9bcommand"], r"\x9bcommand"),
        (["rate", "1/s", "--cost", "\x00"], r"\x00"),
        (["rate", "1/calendar day in \udcff"], r"\udcff"),
    ],
)
def test_control_characters_are_shown_not_sent(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert shown in err
    assert err.removesuffix("\n").isprintable()


def test_python_dash_m_runs_the_command() -> None:
    answer = headgate_process("--version")
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert answer.stdout.decode().split() == ["headgate", headgate.__version__]


@pytest.mark.parametrize(
    "env, ascii_only",
    [
        ({}, False),
        (UTF8, False),
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, True),
        ({"PYTHONIOENCODING": "ascii"}, True),
        ({"PYTHONIOENCODING": "latin-1"}, True),
        ({"PYTHONIOENCODING": "cp437"}, True),
    ],
    ids=str,
)
def test_draws_with_what_the_locale_has(env: dict[str, str], *, ascii_only: bool) -> None:
    answer = headgate_process("rate", "7/3ms", env=env)
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert answer.stdout.isascii() == ascii_only
    assert ("█".encode() in answer.stdout) != ascii_only


def test_a_reader_that_leaves_is_no_reason_to_complain() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        answer = headgate_process(
            "rate", "4/s", capture_output=False, stdout=write_end, stderr=subprocess.PIPE
        )
    finally:
        os.close(write_end)
    assert (answer.returncode, answer.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_output_that_cannot_be_written_is_a_failure() -> None:
    with Path("/dev/full").open("wb") as full:
        answer = headgate_process(
            "rate", "4/s", capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert (answer.returncode, answer.stderr) == (1, b"headgate: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that can close a stream")
@pytest.mark.parametrize(
    "words, code",
    [
        ("rate 4/s >&-", 0),
        ("--help >&-", 0),
        ("rate 4/s 2>&-", 0),
        ("rate x 2>&-", 2),
        ("rate - <&-", 2),
    ],
)
def test_streams_may_be_closed_from_the_start(words: str, code: int) -> None:
    answer = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m headgate {words}', sys.executable],
        capture_output=True,
        check=False,
    )
    assert answer.returncode == code
    assert b"Traceback" not in answer.stderr
