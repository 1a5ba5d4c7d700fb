"""The memory engine as the registry knows it: `memory://?max_keys=100000&state_file=/var/lib/app/limits.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from .._query import Readers, number, read_query, whole
from ..errors import ConfigError, UsageError
from .base import Awaited
from .memory import MemoryEngine, description

if TYPE_CHECKING:
    import logging

    from ..clock import Clock
    from .base import AsyncEngine, EngineDescription
    from .registry import NodeDoor

MEMORY_OPTIONS: Readers = {
    "max_keys": whole,
    "max_bytes": whole,
    "state_file": str,
    "save_every": number,
}


def memory_options(url: str, known: Readers = MEMORY_OPTIONS) -> dict[str, Any]:
    """The options of a `memory://` URL, which has nothing else."""
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.fragment:
        raise ConfigError(
            f"a memory:// URL has only options, such as memory://?{next(iter(known))}=…"
        )
    return read_query(parts.query, known)


class MemoryKind:
    """Counts in this process."""

    schemes = ("memory",)
    shared = False
    one_per_service = False
    board = "headgate.board.memory"

    def for_node(self, url: str, door: NodeDoor) -> str:
        """See `EngineKind.for_node`."""
        return url

    def adopts(self, value: object) -> bool:
        """See `EngineKind.adopts`."""
        return False

    def describe(self, url: str) -> EngineDescription:
        """See `EngineKind.describe`."""
        return description(state_file=bool(memory_options(url).get("state_file")))

    def open(self, source: str, clock: Clock | None, logger: logging.Logger | None) -> MemoryEngine:
        """See `EngineKind.open`."""
        options = memory_options(source)
        try:
            return MemoryEngine(clock=clock, **options)
        except UsageError as error:  # A bad URL is a configuration error.
            raise ConfigError(f"{source!r} cannot be used: {error}") from error

    def open_async(
        self, source: str, clock: Clock | None, logger: logging.Logger | None
    ) -> AsyncEngine:
        """See `EngineKind.open_async`."""
        return Awaited(self.open(source, clock, logger))


KIND: Final = MemoryKind()
