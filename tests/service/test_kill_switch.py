"""The kill switch of a service: by API, by command and by file, also without a store; and checks that are too many."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate.cli import main
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until
from tests.service.raw import Raw, post
from tests.service.running import service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer

CHECK: dict[str, Any] = {"key": "k", "limit": 1, "window": 3600}


def command(*words: str) -> Any:
    """What `headgate kill-switch` answers."""
    line = [sys.executable, "-m", "headgate", "kill-switch", "--json", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_the_api_turns_limits_off_and_on() -> None:
    with service() as one:
        assert [one.check(**CHECK)["allowed"] for _ in range(2)] == [True, False]
        status, _, told = one.ask("PUT", "/api/kill-switch", {"reason": "wrong limits"})
        assert status == 200
        assert told == {"everything": True, "reason": "wrong limits", "rules": {}, "file": False}
        status, headers, passed = one.ask("POST", "/check", CHECK)
        assert (status, passed["allowed"], passed["source"]) == (200, True, "open")
        assert headers["x-ratelimit-degraded"] == "open"
        assert "headgate_kill_switch 1" in one.ask("GET", "/metrics")[2]
        assert one.ask("DELETE", "/api/kill-switch")[0] == 200
        assert one.ask("DELETE", "/api/kill-switch")[0] == 404
        assert one.check(**CHECK)["allowed"] is False
        assert one.ask("PUT", "/api/kill-switch/two%20words", {})[0] == 422
        assert one.ask("PUT", "/api/kill-switch/login", {})[2]["rules"] == {"login": ""}
        actions = [entry["action"] for entry in one.ask("GET", "/api/audit")[2]["entries"]]
        assert actions.count("kill-switch.off") == 2


def test_the_status_of_a_service_without_limits_is_not_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with service() as one:
        status = ["status", "--url", f"http://127.0.0.1:{one.port}"]
        assert main(status) == 0
        assert "OFF" not in capsys.readouterr().out
        one.ask("PUT", "/api/kill-switch/login", {"reason": "wrong limits"})
        assert main(status) == 1
        assert "limits    OFF: login (wrong limits)" in capsys.readouterr().out
        one.ask("PUT", "/api/kill-switch", {})
        assert main(status) == 1
        assert "limits    OFF: all" in capsys.readouterr().out


@on_flavours("redis_server", "redis-7.0")
def test_file_and_command_work_while_the_store_is_away(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Two workers share the file; waits until both have seen it."""
    path = tmp_path / "off"
    options = ("--engine", redis_server.url, "--workers", "2", "--set", f"kill_switch={path}")
    with service(*options, environment={"HEADGATE_STATE_DIR": str(tmp_path)}) as one:
        redis_server.kill()
        try:
            asked = ("--url", f"http://127.0.0.1:{one.port}")
            assert command("off", "--reason", "now", *asked)["everything"] is True
            assert path.read_text().endswith("* now\n")
            wait_until(lambda: _all_pass(one, 20), "both workers let everything pass")
            command("on", "--file", str(path))
            wait_until(lambda: not _all_pass(one, 20), "limits hold again, by their shares")
            path.write_text("*\n")
            wait_until(lambda: _all_pass(one, 20), "a file that somebody wrote is followed")
            assert command(*asked)["everything"] is True
        finally:
            redis_server.start()


def test_a_file_that_is_something_else_is_refused_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command and by the API; the service goes on."""
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - rule_id: login\n")
    for words in (("off",), ("on",), ("off", "--rule", "login"), ()):
        assert main(["kill-switch", *words, "--file", str(path)]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err == (
            f"headgate: --file {path} cannot be used as a kill switch, and was not changed: line 1 is not a rule id, "
            "or *, and a reason: 'rules:'; name another file, or correct or remove this one\n"
        )
    missing = tmp_path / "no" / "off"
    assert main(["kill-switch", "off", "--file", str(missing)]) == 2
    assert f"there is no directory {missing.parent}" in capsys.readouterr().err
    assert not missing.parent.exists()
    with service("--set", f"kill_switch={tmp_path / 'off'}") as one:
        (tmp_path / "off").write_bytes(b"\xff\xfe")
        status, _, told = one.ask("PUT", "/api/kill-switch", {"reason": "wrong limits"})
        assert (status, told["code"]) == (409, "conflict")
        assert "was not changed: it is not text in UTF-8" in told["detail"]
        assert one.ask("GET", "/api/kill-switch")[2]["everything"] is False
        assert one.check(**CHECK)["source"] == "engine"
        (tmp_path / "off").unlink()
        assert one.ask("PUT", "/api/kill-switch", {})[0] == 200
    assert path.read_text() == "rules:\n  - rule_id: login\n"


def _all_pass(one: Any, many: int) -> bool:
    return all(one.ask("POST", "/check", CHECK)[2]["allowed"] for _ in range(many))


@pytest.mark.slow
def test_too_many_checks_are_refused_and_health_and_management_still_answer() -> None:
    """Batches that take long, from many connections at once; the bound is small so that this machine reaches it."""
    batch = {"checks": [{"key": f"k{n}", "limit": 10 + n % 7} for n in range(1_000)]}
    told: list[int] = []
    over = threading.Event()
    with service("--set", "max_lag=0.02") as one:

        def keep_asking() -> None:
            with Raw(one.port) as raw:
                while not over.is_set():
                    answer = raw.send(post(batch, "/check/batch")).answer()
                    told.append(answer.status)
                    if answer.status == 503:
                        assert answer.json["code"] == "overloaded"
                        assert answer.headers["retry-after"] == "1"

        threads = [threading.Thread(target=keep_asking, daemon=True) for _ in range(12)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: told.count(503) > 20, "some are refused", within_s=60)
            for path in ("/health", "/health/live", "/api/nodes"):
                began = time.monotonic()
                assert one.ask("GET", path)[0] == 200
                assert time.monotonic() - began < 10
            assert told.count(200) > 0
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
        wait_until(
            lambda: all(one.ask("POST", "/check", {"key": "k"})[0] == 200 for _ in range(30)),
            "all are answered again",
            within_s=30,
        )
        metrics = one.ask("GET", "/metrics")[2]
        shed = next(
            line for line in metrics.splitlines() if line.startswith("headgate_shed_checks_total")
        )
        assert int(float(shed.split()[1])) >= told.count(503)
