"""Compaction: etcd keeps the history of every key until it is compacted. Only the last minute is needed here."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_S: Final = 60.0
"""How much history is kept."""


class CompactionPlan:
    """Decides when to compact the history, and up to which revision. Time is passed in, in seconds."""

    def __init__(self, every_s: float, now: float) -> None:
        self._every_s = every_s
        self._compacted = now
        self._revisions: deque[tuple[float, int]] = deque()

    def note(self, now: float, revision: int) -> None:
        """Record the newest revision."""
        if self._every_s:
            self._revisions.append((now, revision))

    def due(self, now: float) -> int:
        """The revision to compact up to; 0 if it is too early."""
        if not self._every_s or now - self._compacted < self._every_s:
            return 0
        self._compacted = now
        old = 0
        while self._revisions and self._revisions[0][0] <= now - KEPT_S:
            old = self._revisions.popleft()[1]
        return old
