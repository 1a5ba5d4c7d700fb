"""Three nodes behind a real nginx on one Redis, while users come, a node is killed and one is added.

What is held to: no request fails, exactly the limit is admitted in every window over all nodes, and `/api/nodes` tells
the truth throughout. nginx passes a request on to the next node only when its connection fails. One that was with a
node at the very moment of its death may so be charged twice, and the window of the kill may admit that much less; no
window ever admits more.

The normal run lasts a few seconds; `HEADGATE_LONG=1` ramps to 300 users for a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.servers.fixtures import installed
from tests.servers.process import HOST, NotInstalledError, Server, free_ports, patient, wait_until
from tests.servers.redis import standalone
from tests.service.running import Service, service

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy

LONG = bool(os.environ.get("HEADGATE_LONG"))
USERS = 300 if LONG else 40
SECONDS = 60.0 if LONG else 8.0
LIMIT = 20 if LONG else 10
WINDOW = 2
KEYS = 5 if LONG else 2
NODE = ("--set", "node_ttl=1.5", "--set", "heartbeat=0.5", "--log-level", "warning")


class Nginx(Server):
    """A real nginx in front of some nodes."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:" + os.environ.get("PATH", ""))
        if binary is None:
            raise NotInstalledError("nginx is not installed: run 'make servers'")
        (self.port,) = free_ports(1)
        self._config = folder / "nginx.conf"
        self._configure(ports)
        command = [
            binary,
            "-c",
            str(self._config),
            "-p",
            str(folder),
            "-e",
            str(folder / "error.log"),
        ]
        super().__init__(command, folder=folder, ready=self._answers)

    def _configure(self, ports: list[int]) -> None:
        folder = self._config.parent
        servers = "".join(f"server {HOST}:{one} max_fails=1 fail_timeout=1s;" for one in ports)
        self._config.write_text(
            f"""
daemon off; pid {folder}/pid; error_log {folder}/error.log warn; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream headgate {{ {servers} keepalive 64; }}
  server {{
    listen {HOST}:{self.port};
    location / {{
      proxy_pass http://headgate;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_connect_timeout 1s;
      proxy_next_upstream error non_idempotent;
    }}
  }}
}}
"""
        )

    def _answers(self) -> bool:
        try:
            answer = httpx.get(f"http://{HOST}:{self.port}/health/live", timeout=2)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200


@dataclass
class History:
    """What users were answered, by key and window: how many were let through, and how many were not."""

    admitted: Counter[tuple[str, int]] = field(default_factory=Counter)
    denied: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def note(self, answer: dict[str, Any]) -> None:
        """An answer says when its window ends; the store's clock is this machine's, so that names the window."""
        window = round((time.time() + answer["reset_after"]) / WINDOW)
        (self.admitted if answer["allowed"] else self.denied)[answer["key"], window] += 1


async def user(client: httpx.AsyncClient, number: int, history: History) -> None:
    """Asks again and again, ten times a second or so, until it is over."""
    key = f"shared:{number % KEYS}"
    body = {"key": key, "limit": LIMIT, "window": WINDOW, "algorithm": "fixed_window"}
    while not history.over.is_set():
        try:
            answer = await client.post("/check", json=body)
        except httpx.HTTPError as error:
            history.failures[type(error).__name__] += 1
        else:
            if answer.status_code == 200:
                history.note(answer.json())
            else:
                history.failures[str(answer.status_code)] += 1
        await asyncio.sleep(0.1)  # The pace of a real user.


async def ramp(port: int, history: History) -> None:
    """Users come one by one over the first half, and stay until the end."""
    limits = httpx.Limits(max_connections=USERS, max_keepalive_connections=USERS)
    base = f"http://{HOST}:{port}"
    async with httpx.AsyncClient(base_url=base, timeout=5, limits=limits) as client:
        users = []
        for number in range(USERS):
            users.append(asyncio.create_task(user(client, number, history)))
            await asyncio.sleep(SECONDS / 2 / USERS)  # As above.
        await asyncio.gather(*users)


def states(node: Service) -> dict[str, str]:
    found = node.ask("GET", "/api/nodes")[2]["nodes"]
    return {one["id"]: one["state"] for one in found}


def requests(node: Service) -> dict[str, int]:
    found = node.ask("GET", "/api/nodes")[2]["nodes"]
    return {one["id"]: one["requests"] for one in found}


@pytest.mark.slow
def test_a_fleet_admits_exactly_the_limit_through_a_kill_and_a_join(tmp_path: Path) -> None:
    """Half-way one node is killed, is seen to be down and then gone; and another one is added."""
    history = History()
    with (
        installed(),
        standalone("redis-7.0") as redis,
        ThreadPoolExecutor(1) as beside,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(history.over.set)  # Whatever happens, users go home.
        ports = free_ports(4)  # nginx knows the fourth from the beginning, as a fleet's own would.

        def node(number: int) -> Service:
            options = ("--engine", patient(redis.url), "--set", f"node_id=n{number}", *NODE)
            return stack.enter_context(service(*options, port=ports[number - 1]))

        first, second, third = (node(number) for number in (1, 2, 3))
        front = stack.enter_context(Nginx(tmp_path, ports))
        wait_until(lambda: states(first) == dict.fromkeys(("n1", "n2", "n3"), "Up"), "all are up")
        began = time.time()
        users = beside.submit(asyncio.run, ramp(front.port, history))
        time.sleep(SECONDS * 0.4)  # Of load.
        third.kill()
        killed = time.time()
        for one in (first, second):
            wait_until(lambda one=one: states(one).get("n3") == "Down", "n3 is down", within_s=5)  # type: ignore[misc]
        fourth = node(4)
        wait_until(lambda: states(first).get("n4") == "Up", "n4 is there", within_s=5)
        wait_until(lambda: requests(first)["n4"] > 0, "n4 has its share", within_s=10)
        time.sleep(max(0.0, began + SECONDS - time.time()))  # Of load, to the end.
        history.over.set()
        users.result(30)
        for one in (second, fourth):
            wait_until(lambda one=one: "n3" not in states(one), "n3 has left", within_s=8)  # type: ignore[misc]
        assert states(second) == dict.fromkeys(("n1", "n2", "n4"), "Up")
        assert min(requests(fourth).values()) > 0
    assert not history.failures
    in_demand = [place for place in history.admitted if history.denied[place]]
    assert len(in_demand) >= KEYS
    for place in in_demand:
        may_lack = 5 if abs(place[1] * WINDOW - killed) <= 2 * WINDOW else 0
        assert LIMIT - may_lack <= history.admitted[place] <= LIMIT
    assert max(history.admitted.values()) == LIMIT
