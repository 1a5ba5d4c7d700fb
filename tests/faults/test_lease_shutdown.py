"""A service that is told to end (SIGTERM) gives back the units of its chunks that it did not spend."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headgate.engines.redis.sync import RedisEngine
from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until
from tests.service.raw import Raw, post
from tests.service.running import service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer
    from tests.service.running import Service

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

RULE = {
    "rule_id": "partners",
    "identifier": "user_id",
    "rate": "1000000/hour",
    "algorithm": "fixed_window",
    "consistency": "leased",
}
ASKERS = 3


class Asker(threading.Thread):
    """Asks for one key until the service ends, and counts what it was given."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.admitted = self.leased = self.unanswered = 0

    def run(self) -> None:
        asked = post({"path": "/", "user_id": "u"}, "/decide")
        with Raw(self._port) as connection:
            while True:
                try:
                    connection.send(asked)
                    answer = connection.answer()
                except (OSError, EOFError, AssertionError):
                    self.unanswered += 1
                    return
                told: Any = json.loads(answer.body)
                if answer.status == 200 and told["allowed"]:
                    self.admitted += 1
                    self.leased += told["source"] == "lease"
                if answer.headers.get("connection", "").lower() == "close":
                    return


def unspent(running: Service) -> int:
    """Units that the service holds in chunks."""
    _, _, text = running.ask("GET", "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("headgate_lease_units ")]
    return int(float(lines[0].split()[1])) if lines else 0


@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("workers", [1, 2])
def test_unspent_units_are_returned_when_a_service_shuts_down(
    redis_server: RedisServer, tmp_path: Path, workers: int
) -> None:
    """Under load until the end: the store then counts what callers were given, and nothing more."""
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([RULE]))
    options = ("--engine", redis_server.url, "--rules", str(rules), "--workers", str(workers))
    with service(*options) as running:
        askers = [Asker(running.port) for _ in range(ASKERS * workers)]
        for one in askers:
            one.start()
        wait_until(lambda: sum(one.leased for one in askers) > 200, "hits are answered from chunks")
        wait_until(lambda: unspent(running) > 0, "the service holds units that it has not spent")
        running.interrupt()
        assert running.wait(20.0) == 0
        for one in askers:
            one.join(10.0)
    engine = RedisEngine(redis_server.url)
    (entry,) = [one for one in engine.list_keys().entries if one.rule == RULE["rule_id"]]
    engine.close()
    admitted = sum(one.admitted for one in askers)
    assert admitted <= entry.count <= admitted + sum(one.unanswered for one in askers)
