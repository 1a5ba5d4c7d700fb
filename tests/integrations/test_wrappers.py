"""The wrappers in examples/ keep to the limits of APIs that count by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

pytestmark = pytest.mark.heavy

SCRIPT = Path(__file__).parents[2] / "examples" / "wrappers" / "four_processes.py"


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
def test_four_processes_never_see_a_429(redis_server: RedisServer) -> None:
    """Four processes have to start, and the slowest API takes several seconds."""
    command = [sys.executable, str(SCRIPT), redis_server.url, "--speed", "5"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines() == [
        "igdb: 8 calls, 0 refused",
        "musicbrainz: 4 calls, 0 refused",
        "tmdb: 44 calls, 0 refused",
        "spotify: 184 calls, 0 refused",
        "llm: 36 calls, 0 refused",
    ]
