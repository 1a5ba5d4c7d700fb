"""A secret shows nowhere: not in logs, errors, pages, metrics, listings, nor in what a debugger prints."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headgate.service.node import Node
from headgate.service.security.tokens import new_token, write_tokens
from headgate.service.settings import Settings
from tests.servers.fixtures import installed
from tests.servers.process import HOST
from tests.servers.redis import standalone
from tests.service.running import Service, service
from tests.service.test_roles import FOR_ALL, NEEDS

if TYPE_CHECKING:
    from pathlib import Path

    from headgate.service.security.auth import Auth

CANARY = "c4n4ry-s3cr3t"


def everything_said(running: Service, token: str) -> str:
    """All that a service answers to somebody who may see everything, and to somebody who may see nothing."""
    said = []
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Authorization": f"Bearer {CANARY}"},
        {},
    ):
        for (method, path), (_, body) in NEEDS.items():
            place = path.format(key="k", rule_id="r", region="eu")
            said.append(str(running.ask(method, place, body, headers)))
        said += [str(running.ask("GET", path, None, headers)) for _, path in FOR_ALL]
        said += [
            str(running.ask("GET", path)) for path in ("/", "/about", "/docs", "/openapi.json")
        ]
        said.append(str(running.ask("POST", "/check", {"key": "k"})))
        said.append(str(running.ask("POST", "/check", {"limit": "x"})))
    return "\n".join(said)


@pytest.mark.slow
def test_a_canary_is_in_no_output_of_a_failing_run(tmp_path: Path) -> None:
    """With a store that needs a password, first well and then dead; and tokens, right and wrong."""
    text, kept = new_token("ann", "admin", now=datetime.now(UTC))
    tokens = tmp_path / "tokens.json"
    write_tokens(tokens, [kept])
    with installed(), standalone("redis-7.0", requirepass=CANARY) as redis:
        engine = f"redis://:{CANARY}@{HOST}:{redis.port}/0?deadline=0.2&connect_timeout=0.2&secret={CANARY}"
        environment = {"HEADGATE_ENGINE": engine, "HEADGATE_TOKENS": str(tokens)}
        audit = tmp_path / "audit.jsonl"
        options = ("--log-level", "debug", "--set", f"audit_log={audit}")
        with service(*options, environment=environment) as running:
            said = everything_said(running, text)
            assert '"redis": "connected"' in said.replace("'", '"')
            redis.kill()
            said += everything_said(running, text)
            said += running.log + audit.read_text() + tokens.read_text()
    assert CANARY not in said
    assert text not in said
    assert "the store does not answer" in said  # It did fail, and did say so.


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--engine", f"redis://:{CANARY}@nowhere.invalid:99999/0"],
        ["serve", "--engine", f"redis://user:{CANARY}@host:1/x"],
        ["serve", "--set", f"board=redis://:{CANARY}@h:bad/0"],
        ["status", "--url", f"http://user:{CANARY}@127.0.0.1:1"],
        ["status", "--url", "http://127.0.0.1:1"],
    ],
    ids=["bad port", "bad database", "bad board", "userinfo", "token in the environment"],
)
def test_a_canary_is_in_no_message_of_the_command_line(words: list[str]) -> None:
    environment = {**os.environ, "HEADGATE_TOKEN": CANARY, "HEADGATE_PORT": "0"}
    command = [sys.executable, "-m", "headgate", *words]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode in {1, 2}
    assert told.stderr.startswith("headgate: ")
    assert "Traceback" not in told.stderr
    assert CANARY not in told.stdout + told.stderr


def test_a_canary_is_in_no_repr(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    text, kept = new_token("ann", "admin", now=datetime.now(UTC))
    write_tokens(tokens, [kept])
    settings = Settings(engine=f"redis://:{CANARY}@{HOST}:1/0", tokens=str(tokens))
    node = Node(settings)
    auth: Auth = node.auth
    auth.identify(f"Bearer {text}".encode())
    shown = "".join(map(repr, (settings, auth, node.board, node.recorder, node.audit, node.store)))
    assert CANARY not in shown
    assert text not in shown
    node.close()
