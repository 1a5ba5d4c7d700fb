"""What a key weighs, by the server's own account, when every key was hit once.

That is the key's text, its value and its entry in the table, of every name that a limiter makes for a key; the
entry of its time to live is not counted, and costs everybody the same. The growth of the whole server would say more,
but for ten thousand keys the buffers of a thousand connections outweigh it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

    from .contenders import Entrant

CALLERS = 64
SAMPLES = 500


async def bytes_per_key(server: RedisServer, entrant: Entrant, keys: int) -> float:
    """Hit so many keys of an empty server once each, and weigh some of what is there then."""
    server.call("FLUSHALL", "SYNC")
    left = (f"user:{number:07}" for number in range(keys))
    await asyncio.gather(*(entrant.run_untimed(left) for _ in range(CALLERS)))
    names = server.call("SCAN", "0", "COUNT", SAMPLES)[1]
    weights = [int(server.call("MEMORY", "USAGE", name, "SAMPLES", "0")) for name in names]
    names_per_key = int(server.call("DBSIZE")) / keys
    return names_per_key * sum(weights) / len(weights)
