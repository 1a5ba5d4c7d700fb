"""RegionClient: sends messages to another region, over the Redis port of its nodes.

The URL of the region names these nodes, with their token, and TLS if they use it.
"""

from __future__ import annotations

from typing import Any

from ..engines.redis.sending import RoutedCommand
from ..engines.remote.engine import AsyncRemoteEngine
from .messages import COMMAND, Reply


class RegionClient:
    """The nodes of another region. Any of them will do; one is used for as long as it answers."""

    def __init__(self, url: str) -> None:
        self._nodes = AsyncRemoteEngine(url)
        self.sent_bytes = 0
        self.sent_messages = 0

    async def send(self, packed: bytes) -> Reply:
        """Send a message and wait until it is processed; raises `EngineError` if that is uncertain."""
        return Reply.of(await self.call(packed))

    async def call(self, packed: bytes) -> Any:
        """The same for messages with another kind of reply; returns its values."""
        values = await self._nodes.run(RoutedCommand((COMMAND, packed)))
        self.sent_messages += 1
        self.sent_bytes += len(packed)
        return values

    async def aclose(self) -> None:
        """Close the connections."""
        await self._nodes.aclose()
