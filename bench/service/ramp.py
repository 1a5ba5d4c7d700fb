"""The original load: users that ask, wait and ask again, from none to 50 to 300; one node, and three behind nginx.

A user waits 0.1 to 0.5 s between two requests, so 300 users send at most 1,000 requests a second: what is measured is
how long they wait for an answer, and whether any fails. Every user has its own key and its own connection.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.servers.process import HOST, Server, free_ports

from .contenders import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PEAK = 300
FIRST_PEAK = 50
SEED = 20_261_115


@dataclass(slots=True)
class Seen:
    """What the users saw."""

    took_ms: list[float] = field(default_factory=list)
    at_peak: int = 0
    """Requests answered while all users were there."""
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Ramp:
    """The outcome."""

    name: str
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    failed: int


def users_at(share: float) -> int:
    """How many users there are after this share of the time: to 50 in the first third, to 300 in the second."""
    if share < 1 / 3:
        return round(FIRST_PEAK * share * 3)
    if share < 2 / 3:
        return round(FIRST_PEAK + (PEAK - FIRST_PEAK) * (share * 3 - 1))
    return PEAK


def run_ramp(name: str, port: int, seconds: float) -> Ramp:
    """Load a service, and report."""
    seen = asyncio.run(_ramp(port, seconds))
    took = sorted(seen.took_ms) or [0.0]

    def percentile(share: float) -> float:
        return took[min(len(took) - 1, int(len(took) * share))]

    return Ramp(
        name,
        seen.at_peak / (seconds / 3),
        percentile(0.50),
        percentile(0.95),
        percentile(0.99),
        len(seen.took_ms),
        seen.failed,
    )


async def _ramp(port: int, seconds: float) -> Seen:
    seen = Seen()
    began = time.monotonic()
    users: list[asyncio.Task[None]] = []
    while (share := (time.monotonic() - began) / seconds) < 1:
        while len(users) < users_at(share):
            users.append(asyncio.create_task(_user(len(users), port, began, seconds, seen)))
        await asyncio.sleep(0.05)
    await asyncio.gather(*users)
    return seen


async def _user(number: int, port: int, began: float, seconds: float, seen: Seen) -> None:
    """Ask and wait, until the time is over."""
    chance = random.Random(SEED + number)
    body = json.dumps({"key": f"user:{number}", "limit": 100, "window": 60}).encode()
    head = (
        f"POST /check HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        while (now := time.monotonic()) - began < seconds:
            sent = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            seen.took_ms.append((time.perf_counter() - sent) * 1e3)
            seen.at_peak += now - began > seconds * 2 / 3
            seen.failed += not answer.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(chance.uniform(0.1, 0.5))
    except (OSError, EOFError):
        seen.failed += 1
    finally:
        writer.close()


def ramps(contender: str, folder: Path, redis_url: str, seconds: float) -> Iterator[Ramp]:
    """One node, then three behind nginx."""
    with running(contender, folder, redis_url) as one:
        yield run_ramp("one node", one.port, seconds)
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        return
    with ExitStack() as stack:
        nodes = []
        for number in range(3):
            own = folder / f"node-{number}"
            own.mkdir()
            nodes.append(stack.enter_context(running(contender, own, redis_url)))
        port = stack.enter_context(_nginx(nginx, [node.port for node in nodes], folder))
        yield run_ramp("three nodes behind nginx", port, seconds)


@contextmanager
def _nginx(nginx: str, ports: list[int], folder: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    own = folder / f"nginx-{port}"
    own.mkdir()
    servers = "".join(f"server {HOST}:{one};" for one in ports)
    (own / "nginx.conf").write_text(
        f"""\
daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {own}/body; proxy_temp_path {own}/proxy;
  fastcgi_temp_path {own}/f; uwsgi_temp_path {own}/u; scgi_temp_path {own}/s;
  upstream nodes {{ {servers} keepalive 128; }}
  server {{
    listen {HOST}:{port}; keepalive_requests 1000000;
    location / {{ proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
    )
    command = [nginx, "-p", str(own), "-c", str(own / "nginx.conf")]
    with Server(command, folder=own, ready=(own / "pid").exists):
        yield port
