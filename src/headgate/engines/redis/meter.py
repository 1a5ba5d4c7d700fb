"""Meter: how an engine's calls go, for whoever watches it. Without a watcher it costs one comparison a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Meter:
    """Shared by an engine and all of its namespaces."""

    __slots__ = ("on_batch",)

    def __init__(self) -> None:
        self.on_batch: Callable[[float, int], None] | None = None
        """Called with the seconds that a call took and how many requests it carried."""
