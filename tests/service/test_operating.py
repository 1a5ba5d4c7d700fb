"""The operator's commands against a running service, as a shell sees them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from headgate.cli import main
from tests.servers.process import wait_until
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operating")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Service]:
    """A service whose tokens the command line has made."""
    for name, role in (("ann", "admin"), ("eve", "viewer")):
        words = ["token", "create", name, "--role", role, "--file", str(folder / "tokens.json")]
        made = subprocess.run(
            [sys.executable, "-m", "headgate", *words], capture_output=True, text=True, check=True
        )
        (folder / f"{name}.token").write_text(made.stdout)
        assert made.stderr.endswith("the token is shown only this once\n")
    options = (
        "--tokens",
        str(folder / "tokens.json"),
        "--set",
        f"audit_log={folder / 'audit.jsonl'}",
    )
    with service(*options) as found:
        yield found


@pytest.fixture
def run(
    running: Service,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """`run("status")` → exit code, output, error output, as ann."""
    monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{running.port}")
    monkeypatch.setenv("HEADGATE_TOKEN", (folder / "ann.token").read_text().strip())
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_status_shows_nodes_and_traffic(run: Any, running: Service) -> None:
    code, out, err = run("status")
    assert (code, err) == (0, "")
    assert f"http://127.0.0.1:{running.port} is ok" in out
    assert f"127.0.0.1:{running.port}  Up" in out
    code, out, _ = run("status", "--json")
    assert json.loads(out)["health"]["status"] == "ok"


def test_top_shows_busy_and_denied_keys(run: Any, running: Service) -> None:
    for _ in range(3):
        running.check("hot\x1b[31m", limit=2, window=3600)
    code, out, err = run("top", "--once")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "hot\\x1b[31m" in out
    assert "denied right now: 1" in out
    code, out, _ = run("top", "--json")
    found = json.loads(out)
    assert [one["key"] for one in found["blocked"]] == ["hot\x1b[31m"]


HEARING: Final = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("headgate", run_name="__main__", alter_sys=True)
"""
"""What a shell starts in the background ignores interrupts, and so would its children."""


def test_top_is_live_on_a_terminal(running: Service, folder: Path) -> None:
    """A pseudo-terminal: it draws, draws again, and ends with an interrupt."""
    pty = pytest.importorskip("pty")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    environment["HEADGATE_URL"] = f"http://127.0.0.1:{running.port}"
    words = ["top", "--interval", "0.1", "--token-file", str(folder / "ann.token")]
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", HEARING, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    seen = b""
    while seen.count(b"denied right now") < 3:
        seen += os.read(master, 65_536)
    process.send_signal(signal.SIGINT)
    try:
        while os.read(master, 65_536):
            pass
    except OSError:  # The other end is closed.
        pass
    os.close(master)
    assert process.wait(10) == 130
    assert b"Traceback" not in seen


def test_a_reset_of_an_uncounted_key_says_so(run: Any) -> None:
    assert run("reset", "nosuchkey")[:2] == (0, "nothing was counted for nosuchkey\n")


def test_counters_and_reset(run: Any, running: Service) -> None:
    running.check("counted", limit=7, window=7200)
    code, out, _ = run("counters", "--prefix", "counted")
    assert code == 0
    assert out.splitlines()[1].split()[:5] == ["counted", "-", "1", "7", "6"]
    running.check(
        "other", limit=9, window=7200
    )  # From now on it is not known whose limit is which.
    _, out, _ = run("counters", "--prefix", "counted")
    assert out.splitlines()[1].split()[:5] == ["counted", "-", "1", "?", "?"]
    assert run("reset", "counted", "--reason", "test")[:2] == (
        0,
        "forgotten: counted, adaptive, 7200 s\n",
    )
    assert json.loads(run("counters", "--prefix", "counted", "--json")[1])["counters"] == []


def test_ban_and_let_in_again(run: Any, running: Service) -> None:
    code, out, _ = run("ban", "bad/key", "--for", "10m", "--reason", "spam")
    assert code == 0
    assert out.startswith("bad/key is banned until 20")
    assert running.check("bad/key")["source"] == "ban"
    assert "spam" in run("ban", "--list")[1]
    assert run("ban", "bad/key", "--remove")[0] == 0
    assert running.check("bad/key")["allowed"]
    code, out, err = run("ban", "bad/key", "--remove")
    assert (code, out, err) == (1, "", "headgate: this key is not banned\n")


def test_a_check_says_that_limits_are_turned_off(run: Any) -> None:
    """And passes, also for a banned key: the reason is not that of a ban."""
    assert run("ban", "off/key", "--reason", "spam")[0] == 0
    code, out, _ = run("check", "off/key")
    assert (code, out.splitlines()[1]) == (1, "  banned: spam")
    for words, told in ((("--reason", "wrong limits"), ": wrong limits"), ((), "")):
        assert run("kill-switch", "off", *words)[0] == 0
        try:
            code, out, err = run("check", "off/key", "--limit", "1")
        finally:
            assert run("kill-switch", "on")[0] == 0
        assert (code, out, err) == (0, f"allowed  off/key: limits are turned off{told}\n", "")
    assert run("ban", "off/key", "--remove")[0] == 0


def test_pin_an_algorithm_and_let_the_traffic_decide_again(run: Any, running: Service) -> None:
    pinned = run("pin", "token_bucket", "--for", "10m", "--reason", "launch \x1b[1m day")
    assert pinned[0] == 0
    assert pinned[1].startswith("token_bucket decides for everything until 20")
    assert running.check("k")["algorithm"] == "token_bucket"
    top = run("top", "--once")[1]
    assert "checks are decided by token_bucket: pinned by ann: launch" in top
    assert "\x1b" not in top
    assert "token_bucket" in run("pin", "--list")[1]
    assert json.loads(run("top", "--once", "--json")[1])["choice"]["overall"]["pinned_by"]
    assert run("pin", "--remove")[:2] == (
        0,
        "the traffic decides for everything again; token_bucket until then\n",
    )
    assert run("pin", "--remove")[2] == "headgate: there is no pin\n"
    assert run("pin", "sliding_log")[0] == 2
    assert run("pin")[0] == 2
    assert run("pin", "token_bucket", "--rule", "none")[0] == 1


def test_override_for_a_while_or_to_stay(run: Any, running: Service) -> None:
    assert run("override", "k", "3/hour", "--for", "1h")[0] == 0
    assert running.check("k")["limit"] == 3
    assert run("override", "k", "100/minute burst 20", "--stay")[0] == 0
    assert run("override", "k", "--remove")[0] == 0
    assert running.check("k")["limit"] == 100
    assert "stays" in run("override", "--list")[1]
    code, _, err = run("override", "k", "--remove")
    assert (code, err.count("--stay --remove")) == (1, 1)
    assert run("override", "k", "--stay", "--remove")[0] == 0
    assert run("override", "k", "5/hour", "--for", "1h")[0] == 0
    code, _, err = run("override", "k", "--stay", "--remove")
    assert (code, err.count("use --remove alone")) == (1, 1)
    assert run("override", "k", "--remove")[0] == 0


def test_a_wrong_address_is_reported_with_the_request(run: Any, running: Service) -> None:
    url = f"http://127.0.0.1:{running.port}/headgate"
    code, out, err = run("status", "--url", url)
    assert (code, out) == (1, "")
    assert err == (
        f"headgate: GET {url}/health: not found; is {url} the address of a Headgate service?\n"
    )


@pytest.mark.parametrize(
    "words, code, message",
    [
        ("override k 5/fish --for 1h", 2, "there is no time unit 'fish'"),
        ("override k 5/hour", 2, "give a duration with --for"),
        ("override k 5/hour --for soon", 2, "is not a duration"),
        ("override k --for 1h", 2, "give a rate"),
        (
            "override k 5/hour --for 1h --algorithm leaky",
            2,
            "there is no algorithm 'leaky'",
        ),
        ("override k '5/calendar day' --for 1h", 2, "cannot use a calendar"),
        (
            "override k '5/minute; 10/hour' --for 1h",
            2,
            "a key can have only one limit, and '5/minute; 10/hour' is 2; write a rule instead",
        ),
        ("override k --remove", 1, "nothing overrides the limit of this key\n"),
        ("override k 5/minute --for 1h --stay", 2, "use either --for"),
        ("override k 5/minute --rule r --stay", 2, "--stay is for checks"),
        ("override k 5/minute --for 1h --rule nobody", 1, "no such rule"),
        ("override", 2, "give a key"),
        ("ban", 2, "give a key"),
        ("ban k --list", 2, "give a key"),
        ("ban k --for 0s", 2, "is not a duration"),
        ("counters --limit 0", 2, "--limit must be at least 1"),
        ("top --limit 0", 2, "--limit must be from 1 to 100"),
        ("reset k --rule none", 1, "there is no such rule"),
        ("reset k --algorithm fixed_window", 2, "also needs a window"),
        ("status --url nonsense", 2, "is not the address of a service"),
        ("status --url http://127.0.0.1:99999", 2, "has an invalid port"),
        ("status --url http://127.0.0.1:1", 1, "does not answer"),
        ("serve --port abc", 2, "port (from --port): it must be a whole number, not 'abc'"),
        ("serve --port 99999", 2, "port (from --port): it must be between 0 and 65535"),
        ("serve --set prot=1", 2, "there is no such setting; did you mean 'port'?"),
        ("serve --set port", 2, "the value is missing; write --set port=VALUE"),
        ("status --token-file /nowhere", 1, "/nowhere: the token cannot be read"),
        ("token create x --role king --file f", 2, "is not a role"),
        ("token create x --role viewer", 2, "give the token file with --file"),
        ("token list --file /nowhere", 1, "/nowhere: the tokens cannot be read"),
        ("token", 2, ""),
        ("audit verify /nowhere", 1, "/nowhere: the audit log cannot be read"),
        ("audit", 2, ""),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    run: Any, words: str, code: int, message: str
) -> None:
    found, out, err = run(*shlex.split(words))
    assert (found, out) == (code, "")
    if message:
        assert message in err
        assert err.startswith("headgate: ")
        assert err.count("\n") == 1


def test_a_token_without_the_role_is_refused_with_the_reason(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = str(folder / "eve.token")
    assert run("status", "--token-file", eve)[0] == 0
    code, _, err = run("ban", "k", "--token-file", eve)
    assert (code, err) == (1, "headgate: this needs a token with the role operator\n")
    monkeypatch.delenv("HEADGATE_TOKEN")
    code, _, err = run("counters")
    assert code == 1
    assert "needs a token: use --token-file" in err
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_wrong")
    code, _, err = run("counters")
    assert code == 1
    assert "does not accept this token" in err


def test_the_audit_log_is_verified_and_read(run: Any, folder: Path) -> None:
    run("ban", "audited", "--reason", "to be seen")
    log = folder / "audit.jsonl"
    code, out, _ = run("audit", "verify", str(log))
    assert (code, "the chain is intact" in out) == (0, True)
    code, out, _ = run("audit", "tail", str(log), "--limit", "1")
    assert out.split()[1:4] == ["ann", "ban.put", "audited:"]
    copy = folder / "copy.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    code, out, _ = run("audit", "verify", str(copy))
    assert code == 1
    assert f"{copy}:2: " in out
    copy.write_bytes(b"".join(lines[:-1]))  # The end is cut off.
    assert run("audit", "verify", str(copy))[0] == 0
    assert run("audit", "verify", str(copy), "--entries", str(len(lines)))[0] == 1
    head = json.loads(lines[-1])["hash"]
    assert run("audit", "verify", str(copy), "--head", head)[0] == 1
    assert run("audit", "verify", str(log), "--head", head)[0] == 0


def test_a_revoked_token_is_refused_within_a_second(
    run: Any, running: Service, folder: Path
) -> None:
    file = str(folder / "tokens.json")
    token = run("token", "create", "tmp", "--role", "viewer", "--file", file)[1].strip()
    assert {one["name"] for one in json.loads(run("token", "list", "--file", file, "--json")[1])["tokens"]} == {
        "ann", "eve", "tmp",
    }  # fmt: skip

    def status() -> int:
        return running.ask("GET", "/api/nodes", headers={"Authorization": f"Bearer {token}"})[0]

    wait_until(lambda: status() == 200, "the new token holds", within_s=3)
    assert run("token", "revoke", "tmp", "--file", file)[0] == 0
    wait_until(lambda: status() in {401, 429}, "the token is gone", within_s=3)
    assert run("token", "revoke", "tmp", "--file", file)[0] == 2
