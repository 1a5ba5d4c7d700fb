"""What a key weighs: the growth of the server when every key is hit once.

The buffers of connections are left out. The key's text, its time to live and the tables' slots are not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

    from .contenders import Entrant

CREW = 64


async def bytes_per_key(server: RedisServer, entrant: Entrant, keys: int) -> float:
    """Hit so many keys of an empty server once each."""
    await entrant.allows("user:0000000")
    server.call("FLUSHALL", "SYNC")
    before = _data_bytes(server)
    left = (f"user:{number:07}" for number in range(keys))
    await asyncio.gather(*(entrant.rush(left) for _ in range(CREW)))
    return (_data_bytes(server) - before) / keys


def _data_bytes(server: RedisServer) -> int:
    memory = server.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_clients_normal"])
