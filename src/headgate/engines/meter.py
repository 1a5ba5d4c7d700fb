"""Meter: statistics of an engine's work. Without a reader it costs one comparison per call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Meter:
    """Shared by an engine and all of its namespaces; part of an engine's description."""

    __slots__ = ("gauges", "has_batches", "on_batch")

    def __init__(
        self, gauges: Callable[[], Mapping[str, float]], *, has_batches: bool = False
    ) -> None:
        self.gauges = gauges
        """Numbers as they are now, by the names of their metrics."""
        self.has_batches = has_batches
        """Whether the engine sends requests in batches, and tells `on_batch` about each."""
        self.on_batch: Callable[[float, int], None] | None = None
        """Called with the seconds that a batch took and how many requests it carried."""
