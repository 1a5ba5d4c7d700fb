"""Exceptions that signals raise at any moment (Ctrl-C, time limits of task queues) break nothing and lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from headgate.engines.redis import packing
from tests.faults.load import report
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

ROUNDS = 4_000


def after_a_storm(what: str, url: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.storm", what, url, str(ROUNDS)],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    report(str(found))
    return found


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_interrupted_hits_lose_no_connection_and_mix_up_no_answer(
    redis_server: RedisServer,
) -> None:
    found = after_a_storm("hits", redis_server.url)
    told = found["told"]
    assert set(told) == {"right", "interrupted"}
    assert min(told.values()) > ROUNDS // 80
    assert found["after"] == 8
    assert found["took"] < 1.0


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_interrupted_holders_keep_no_slot_and_others_are_renewed(redis_server: RedisServer) -> None:
    found = after_a_storm("slots", redis_server.url)
    assert set(found["told"]) == {"held", "interrupted"}
    assert min(found["told"].values()) > ROUNDS // 80
    assert found["stayed"] <= ROUNDS // 800  # Interrupted once more while giving back.
    assert found["left"] == 0
    assert found["held"] == [1, False]


def test_hiredis_is_given_bytes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes when the handler of a signal raises while it writes a number down."""
    given: list[Any] = []
    monkeypatch.setattr(packing, "pack_command", given.append)
    packing.packed_command((b"SELECT", 7, "text", 10**40))
    assert given == [(b"SELECT", b"7", b"text", b"1" + 40 * b"0")]
    with pytest.raises(TypeError, match="cannot be sent"):
        packing.packed_command((b"SET", 1.5))


def test_no_other_code_packs_with_hiredis() -> None:
    sources = Path(packing.__file__).parents[2].rglob("*.py")
    users = [path.name for path in sources if "pack_command(" in path.read_text("utf-8")]
    assert "packing.py" in users
    for path in Path(packing.__file__).parents[2].rglob("*.py"):
        if path.name != "packing.py":
            assert "hiredis.pack_command" not in path.read_text("utf-8")
            assert "import pack_command" not in path.read_text("utf-8")
    assert hiredis.pack_command((b"PING",)) == b"*1\r\n$4\r\nPING\r\n"
