"""etcd keeps the history of every key until it is told to forget it. Nobody here needs more than the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_S: Final = 60.0
"""How much of the history is kept."""


class CompactionPlan:
    """Says when the history is to be compacted, and up to where. It is told the time, in seconds."""

    def __init__(self, every_s: float, now: float) -> None:
        self._every_s = every_s
        self._compacted = now
        self._revisions: deque[tuple[float, int]] = deque()

    def note(self, now: float, revision: int) -> None:
        """What the newest revision is."""
        if self._every_s:
            self._revisions.append((now, revision))

    def due(self, now: float) -> int:
        """The revision before which everything may go; 0 if it is too early."""
        if not self._every_s or now - self._compacted < self._every_s:
            return 0
        self._compacted = now
        old = 0
        while self._revisions and self._revisions[0][0] <= now - KEPT_S:
            old = self._revisions.popleft()[1]
        return old
