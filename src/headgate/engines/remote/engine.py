"""RemoteEngine and AsyncRemoteEngine: the Redis engine, pointed at nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..redis.aio import AsyncRedisEngine
from ..redis.shell import Shell
from ..redis.sync import RedisEngine
from .codec import NodeDialect, RemoteCodec
from .kind import description_of
from .nodes import Nodes
from .operations import RemoteOperations
from .options import parse_url

if TYPE_CHECKING:
    from ..base import EngineDescription
    from ..redis.operations import Operations
    from ..redis.scripts import Dialect
    from ..redis.topology import Topology


class _NodeShell(Shell):
    """What differs when servers are nodes."""

    _parse = staticmethod(parse_url)

    def _new_topology(self) -> Topology:
        return Nodes(self.options)

    def _new_dialect(self) -> Dialect:
        return NodeDialect()

    def _new_operations(self, namespace: str) -> Operations:
        codec = RemoteCodec(namespace, self.clock.now_us)
        return RemoteOperations(codec, self.options.max_batch, self._dialect)

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return description_of(self.options)


class RemoteEngine(_NodeShell, RedisEngine):
    """Counts on running nodes, for threads and plain functions."""


class AsyncRemoteEngine(_NodeShell, AsyncRedisEngine):
    """Counts on running nodes, for asyncio. Works in several event loops at once."""
