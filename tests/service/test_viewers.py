"""Viewers on real sockets: one who reads nothing is hung up on, and the others do not notice."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from bench.service.viewers import Viewers
from tests.servers.process import free_ports
from tests.service.running import Service

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy

IMPATIENT = """\
import sys
from headgate.cli import main
from headgate.service.http import websocket
from headgate.service.live import hub
hub.PATIENCE = 2.0  # Half a minute is long for a test,
websocket.KERNEL_BUFFER = 4_096  # and the system would hold a minute of frames.
sys.exit(main(["serve", "--port", sys.argv[1]]))
"""


def answers(service: Service) -> bool:
    try:
        return service.ask("GET", "/health/live")[0] == 200
    except OSError:
        return False


def watching(service: Service) -> int:
    found: int = service.ask("GET", "/api/live")[2]["tick"]["viewers"]
    return found


def test_a_viewer_that_reads_nothing_is_disconnected_and_others_are_unaffected(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    service = Service(
        [sys.executable, "-c", IMPATIENT, str(port)],
        folder=tmp_path,
        ready=lambda: answers(service),
        start_within_s=30.0,
    )
    service.port = port
    with service, Viewers(port, many=5, slow=2) as viewers:
        ends = time.monotonic() + 30
        while watching(service) != 5:
            assert time.monotonic() < ends, "five should watch"
            time.sleep(0.1)  # A tick tells how many watch, once a second.
        while watching(service) != 3:
            assert time.monotonic() < ends, "those who read nothing are still there"
            time.sleep(0.1)  # As above.
        before = viewers.least_read()
        while viewers.least_read() < before + 1_000:
            assert time.monotonic() < ends, "those who read get nothing any more"
            time.sleep(0.1)  # As above.
