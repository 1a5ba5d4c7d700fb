"""Dead peers: a node that is certainly dead need not be waited for.

A node that says nothing is replaced when its lease ends, after seconds. One whose process has died can be told sooner:
its port refuses connections. Ending its lease is safe whatever became of it, because a node without its key cannot
commit; at worst a node that lives has to join again. So only what is certain counts: a connection that had been made
has ended, and two new ones were refused. A time-out means nothing. The first of the living acts at once, the others a
little later, and nobody more than a few times a minute for one address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from .transactions import NotDone, Unsure

if TYPE_CHECKING:
    import ssl

    from .incarnation import Incarnation
    from .records import Member

CONNECT_S: Final = 1.0
RETRY_S: Final = 0.5
AGAIN_S: Final = 0.02
"""Between the two connections that must be refused."""
RANK_S: Final = 0.15
"""How much longer each of the living waits than the one in front of it."""
PER_MINUTE: Final = 3
log = logging.getLogger("headgate.etcd")


class PeerWatch:
    """Watches the other nodes' processes, over many incarnations of this one."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._ended: defaultdict[str, deque[float]] = defaultdict(deque)
        """When nodes at each address were declared dead."""

    async def watch(self, own: Incarnation, member: Member) -> None:
        """Watch one other node until it is gone."""
        host, _, port = member.address.rpartition(":")
        where = (host.strip("[]"), int(port))
        while True:
            if await _was_connected(*where, self._tls):
                if await _is_refused(*where) and await self._end(own, member):
                    return
            else:
                await asyncio.sleep(RETRY_S)

    async def _end(self, own: Incarnation, member: Member) -> bool:
        """End the lease of a dead node, unless somebody else has."""
        loop = asyncio.get_running_loop()
        times = self._ended[member.address]
        while times and times[0] < loop.time() - 60:
            times.popleft()
        if len(times) >= PER_MINUTE:
            return False
        living = sorted(name for name in own.map.members if name != member.incarnation)
        # What a node that ends in order has decided last is committed meanwhile.
        policy = own.options.policy
        await asyncio.sleep(
            RANK_S * living.index(own.name) + (0.0 if policy.exact else RANK_S + policy.flush_s)
        )
        if member.incarnation in own.map.members:
            times.append(loop.time())
            log.warning("the node at %s is dead; its shards are taken over", member.address)
            with contextlib.suppress(NotDone, Unsure):
                await own.client.revoke(member.lease)
        return True


async def _was_connected(host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    """Connect, and stay so until the other side ends it; false if that cannot be done."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    except (OSError, TimeoutError):
        return False
    try:
        while await reader.read(1_024):
            pass
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return True


async def _is_refused(host: str, port: int) -> bool:
    """Whether nobody listens there, twice in a row."""
    for _ in range(2):
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            await asyncio.sleep(AGAIN_S)
        except (OSError, TimeoutError):
            return False
        else:
            writer.transport.abort()
            return False
    return True
