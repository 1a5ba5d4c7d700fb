"""Dead peers: the lease of a node that is certainly dead need not be waited for.

A silent node is replaced when its lease ends, after seconds. A node whose process has died can be detected sooner: its
port refuses connections. Revoking its lease is always safe, because a node without its key cannot commit; at worst a
live node has to join again. So only certain evidence counts: an established connection has ended, and two new ones were
refused. A timeout means nothing. The first of the live nodes acts at once, the others a little later, and at most a few
times a minute per address.
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
"""The time between the two connections that must be refused."""
RANK_S: Final = 0.15
"""How much longer each live node waits than the one before it."""
PER_MINUTE: Final = 3
log = logging.getLogger("headgate.etcd")


class PeerWatch:
    """Watches the processes of other nodes; outlives incarnations of this one."""

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
        """Revoke the lease of a dead node, unless another node has."""
        loop = asyncio.get_running_loop()
        times = self._ended[member.address]
        while times and times[0] < loop.time() - 60:
            times.popleft()
        if len(times) >= PER_MINUTE:
            return False
        living = sorted(name for name in own.map.members if name != member.incarnation)
        # Meanwhile a node that shuts down cleanly commits its last decisions.
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
    """Connect, and wait until the other side closes; false if the connection failed."""
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
    """Whether connections are refused, twice in a row."""
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
