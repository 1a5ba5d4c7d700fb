"""Kill -9 in the middle of changes: what was acknowledged is there, and the audit chain is whole.

The normal run makes some of the changes; `HEADGATE_LONG=1` makes all 1,000.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from headgate.service.security.audit import read_entries, verify_file
from tests.servers.fixtures import installed
from tests.servers.process import wait_until
from tests.servers.redis import standalone
from tests.service.running import service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.running import Service

CHANGES = 1_000 if os.environ.get("HEADGATE_LONG") else 120
CRASHES = 10 if os.environ.get("HEADGATE_LONG") else 2
SEED = 20261115


class Operator(threading.Thread):
    """Bans one key after the other, over crashes; knows which were acknowledged and which may have been."""

    def __init__(self, running: Service) -> None:
        super().__init__(daemon=True)
        self._running = running
        self.acknowledged: set[str] = set()
        self.attempted: set[str] = set()

    def has_done(self, many: int) -> bool:
        return len(self.attempted) >= many

    def run(self) -> None:
        for i in range(CHANGES):
            self.attempted.add(f"user:{i}")
            if self._ban(f"user:{i}"):
                self.acknowledged.add(f"user:{i}")

    def _ban(self, key: str) -> bool:
        """Whether it was acknowledged; as long as nobody listens, nothing was sent, and the operator waits."""
        while True:
            try:
                return self._running.ask("PUT", f"/api/bans/{key}", {"reason": key})[0] == 200
            except ConnectionRefusedError:
                time.sleep(0.01)  # It is about to come back.
            except (OSError, http.client.HTTPException, ValueError):
                return False  # It died in the middle: nobody knows.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_nothing_acknowledged_is_lost_and_the_chain_is_whole(kind: str, tmp_path: Path) -> None:
    """A real process is killed at random moments while an operator works, and comes back each time."""
    with installed(), standalone("redis-7.0") as redis:
        board = redis.url if kind == "redis" else f"memory://?file={tmp_path / 'board.json'}"
        log = tmp_path / "audit.jsonl"
        options = ("--set", f"audit_log={log}", "--set", f"board={board}", "--log-level", "error")
        with service(*options) as running:
            acknowledged, attempted = _work_and_crash(running)
            bans = {one["key"] for one in running.ask("GET", "/api/bans")[2]["bans"]}
        # In each crash one change can be under way, and the next be connecting.
        assert len(acknowledged) >= CHANGES - 2 * CRASHES
        assert acknowledged <= bans <= attempted
        verdict = verify_file(log)
        assert verdict.breaks == ()
        entries = list(read_entries(log))
        noted = {one["target"] for one in entries if one["action"] == "ban.put"}
        assert bans <= noted  # No change without a line.
        assert sum(one["action"] == "chain.open" for one in entries) == CRASHES + 1


def _work_and_crash(running: Service) -> tuple[set[str], set[str]]:
    operator = Operator(running)
    rng = random.Random(SEED)
    operator.start()
    for crash in range(CRASHES):
        enough = (crash + 1) * CHANGES // (CRASHES + 2) + rng.randrange(10)
        wait_until(partial(operator.has_done, enough), "some work was done", within_s=60)
        running.kill()
        running.start()
    operator.join(120)
    assert not operator.is_alive()
    return operator.acknowledged, operator.attempted
