"""The servers and what each is asked, and whether it limits at all.

Redis runs the same bucket in two ways: Headgate's own script, which is the same algorithm to the last answer (clocks
that step, refunds, lists of keys), and the shortest script that counts a bucket at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import redis

from headgate.engines.redis.scripts import script
from tests.servers.process import HOST, Server, free_ports
from tests.servers.redis import standalone

from ..compiled import COMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SERVER_CORE, LOAD_CORE = 0, 1
BURST, COUNT, PERIOD = 1_000, 30, 60
KEY = "key:__rand_int__"

NODE, COMPILED_NODE = "headgate, CL.THROTTLE", "headgate, compiled"
OWN_SCRIPT, SHORT_SCRIPT = "redis, EVALSHA of Headgate's script", "redis, EVALSHA of 14 lines"

SHORT = """
local emission_us, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local ceiling_us = now_us + burst * emission_us
local idle_us = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now_us)
local asked_us = idle_us + cost * emission_us
local allowed = asked_us <= ceiling_us
local next_us = allowed and asked_us or idle_us
if allowed and cost > 0 then
    redis.call('SET', KEYS[1], string.format('%.0f', next_us), 'PX', math.ceil((next_us - now_us) / 1000))
end
local remaining = math.max(0, math.floor((ceiling_us - next_us) / emission_us))
return {allowed and 0 or 1, burst, remaining, asked_us - ceiling_us, next_us - now_us}
"""


class Asked(NamedTuple):
    """A server, and the command that one of its contenders is asked."""

    name: str
    port: int
    pid: int
    words: tuple[str, ...]

    def command(self, key: str) -> tuple[str, ...]:
        """The same for one key."""
        return tuple(word.replace(KEY, key) for word in self.words)

    def cpu_seconds(self) -> float:
        """What the server has used of its core, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        user, kernel = fields.split()[11:13]
        return (int(user) + int(kernel)) / os.sysconf("SC_CLK_TCK")


def own_script() -> str:
    """Headgate's script; `redis-benchmark` sends no binary words, so the limit is written into it."""
    emission = PERIOD * 1_000_000 * 256 // COUNT
    numbers = f"{COUNT}, {BURST}, {emission}, {PERIOD * 1_000_000}"
    text = script("take").text.decode().rsplit("return commands.take", 1)[0]
    return f"{text}return commands.take(KEYS, {{ struct.pack('<Bdddd', 4, {numbers}) }})\n"


@contextmanager
def node(name: str, folder: Path) -> Iterator[Asked]:
    """A node that speaks the Redis protocol, alone on its core."""
    http, port = free_ports(2)
    source = str(COMPILED if name == COMPILED_NODE else ROOT / "src")
    own = folder / name.replace(" ", "-").replace(",", "")
    own.mkdir()
    server = Server(
        [
            *_pinned(SERVER_CORE),
            *(sys.executable, "-m", "headgate", "serve", "--log-level", "warning"),
            *("--port", str(http), "--resp-port", str(port)),
        ],
        folder=own,
        ready=lambda: _answers(port),
        environment={
            "PYTHONPATH": os.pathsep.join((source, str(ROOT))),
            "PATH": os.environ["PATH"],
        },
        start_within_s=60.0,
    )
    words = ("CL.THROTTLE", KEY, str(BURST - 1), str(COUNT), str(PERIOD))
    with server:
        yield Asked(name, port, server.pid, words)


@contextmanager
def redis_server() -> Iterator[list[Asked]]:
    """One Redis, and both scripts in it."""
    with standalone("redis-7.0") as server, redis.Redis(HOST, server.port) as client:
        if pin := _pinned(SERVER_CORE):
            subprocess.run(  # noqa: S603 - our own server
                [*pin[:1], "-cp", str(SERVER_CORE), str(server.pid)],
                check=True,
                capture_output=True,
            )
        own = str(client.script_load(own_script()))
        short = str(client.script_load(SHORT))
        emission = str(PERIOD * 1_000_000 // COUNT)
        yield [
            Asked(
                OWN_SCRIPT,
                server.port,
                server.pid,
                ("EVALSHA", own, "1", f"hg:s:-:token_bucket.{PERIOD}000000:={KEY}"),
            ),
            Asked(
                SHORT_SCRIPT,
                server.port,
                server.pid,
                ("EVALSHA", short, "1", f"short:{KEY}", emission, str(BURST), "1"),
            ),
        ]


def verify(asked: Asked) -> None:
    """Refuse to measure what is no bucket of this size."""
    with redis.Redis(HOST, asked.port) as client:
        replies = [client.execute_command(*asked.command("verify")) for _ in range(BURST + 3)]
    own = asked.name == OWN_SCRIPT  # It answers with its time first, and 1 for allowed.
    allowed = [reply[1] == 1 if own else reply[0] == 0 for reply in replies]
    if not all(allowed[:BURST]) or all(allowed):
        raise AssertionError(f"{asked.name} should admit {BURST} and then deny")


def _pinned(core: int) -> list[str]:
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core)] if taskset and (os.cpu_count() or 1) > 1 else []


def load_command() -> list[str]:
    """`redis-benchmark`, on the other core."""
    return [*_pinned(LOAD_CORE), "redis-benchmark"]


def _answers(port: int) -> bool:
    try:
        with redis.Redis(HOST, port) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
