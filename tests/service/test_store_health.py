"""`/health` and `headgate status` tell how the store is, also when nobody asks for anything."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.process import HOST, wait_until
from tests.servers.redis import standalone
from tests.service.running import service

if TYPE_CHECKING:
    from tests.service.running import Service

pytestmark = pytest.mark.slow


def health(one: Service) -> Any:
    return one.ask("GET", "/health")[2]


def status_of(one: Service) -> tuple[int, str]:
    url = f"http://{HOST}:{one.port}"
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "status", "--url", url],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_password_shows_before_the_first_check_and_ends_by_itself() -> None:
    with standalone("redis-7.0", requirepass="right") as redis:
        url = f"redis://:wrong@{HOST}:{redis.port}/0?deadline=0.5"
        with service("--engine", url) as one:
            told = health(one)
            assert (told["redis"], told["status"]) == ("unreachable", "degraded")
            code, words = status_of(one)
            assert (code, "unreachable" in words) == (1, True), words
            redis.config_set(requirepass="wrong")
            wait_until(lambda: health(one)["redis"] == "connected", "it is connected")
            wait_until(lambda: health(one)["status"] == "ok", "all is well")


def test_an_outage_and_its_end_show_without_a_check() -> None:
    with standalone("redis-7.0") as redis:
        url = f"redis://{HOST}:{redis.port}/0?deadline=0.5"
        with service("--engine", url) as one:
            assert health(one)["redis"] == "connected"
            redis.kill()
            wait_until(lambda: health(one)["redis"] == "unreachable", "it is unreachable")
            redis.start()
            wait_until(lambda: health(one)["redis"] == "connected", "it is connected again")
