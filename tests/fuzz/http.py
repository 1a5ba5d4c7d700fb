"""The HTTP front, from bytes: what is carried out is what a strict reader sees, however the packets are cut.

`http_front` makes streams of requests that are mostly honest; this takes any bytes at all, and judges them in the same
way.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import re
import zlib
from functools import cache
from typing import Final

from .http_front import PROBE, TURNS, Front, Maker, complaint
from .strict_http import read_stream

ABSOLUTE: Final = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")


@cache
def front() -> tuple[asyncio.Runner, Front]:
    """One service for all streams, so that what it remembers of one is there for the next."""
    runner = asyncio.Runner()
    atexit.register(runner.close)

    async def start() -> Front:
        return Front()

    return runner, runner.run(start())


def check(data: bytes) -> None:
    """Nothing is carried out that nobody sent, and nothing behind what can be read in two ways."""
    runner, service = front()
    chance = random.Random(zlib.crc32(data))
    data += PROBE
    packets = Maker(chance).packets(data)
    service.turns = TURNS + len(data) // 16  # Each request takes a few.
    found, ended = runner.run(service.play(packets, chance))
    meant = read_stream(data)
    requests = [one._replace(target=_origin_form(one.target)) for one in meant.requests]
    # Who waits for more behind something doubtful has not gone on: then it would have answered the probe.
    waits = meant.doubtful and not ended
    wrong = complaint(found, ended or waits, meant._replace(requests=requests))
    assert wrong is None, (wrong, packets)


def _origin_form(target: bytes) -> bytes:
    """A target as the application sees it: without scheme and host, and without a question mark that asks nothing."""
    path, mark, query = (ABSOLUTE.sub(b"", target) or b"/").partition(b"?")
    return path + mark + query if query else path
