"""A crowd: `python -m tests.faults.campaign.crowd CONNECTIONS SECONDS PAUSE KEYS PORT …`, a process of its own.

Many connections ask all nodes at once, each for another key of `KEYS`, or always for a new one if that is 0. What they
were told is not part of a history: it is here to be in the way of those that are. It prints how many answers there
were, by their status, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

HOST = "127.0.0.1"
KEY_BYTES = 100
"""What is added to keys that are used once, so that those who remember them notice."""


async def ask(port: int, ends: float, pause_s: float, keys: int, first: int) -> Counter[str]:
    told: Counter[str] = Counter()
    number = first
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        while time.monotonic() < ends:
            number += 1_000_003
            key = f"crowd {number % keys}" if keys else f"{number} {'x' * KEY_BYTES}"
            content = json.dumps({"key": key, "limit": 1_000, "window": 1}).encode()
            writer.write(
                b"POST /check HTTP/1.1\r\nHost: %b:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (HOST.encode(), port, len(content), content)
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:", 1)[1].split("\r\n", 1)[0]))
            told[head.split(" ", 2)[1]] += 1
            await asyncio.sleep(pause_s)  # The pace of the crowd.
    except (OSError, EOFError):
        told["broken"] += 1
    finally:
        writer.close()
    return told


async def crowd(
    connections: int, seconds: float, pause_s: float, keys: int, ports: list[int]
) -> Counter[str]:
    ends = time.monotonic() + seconds
    asking = [
        ask(ports[number % len(ports)], ends, pause_s, keys, number)
        for number in range(connections)
    ]
    told: Counter[str] = Counter()
    for one in await asyncio.gather(*asking, return_exceptions=True):
        told.update(one if isinstance(one, Counter) else ["refused"])
    return told


if __name__ == "__main__":
    connections, seconds, pause_s, keys, *ports = sys.argv[1:]
    counted = asyncio.run(
        crowd(int(connections), float(seconds), float(pause_s), int(keys), list(map(int, ports)))
    )
    print(json.dumps(counted))  # noqa: T201
