"""Load shedding: when the event loop cannot keep up, some checks are refused at once, so that the others are on time.

The loop's lag is measured twenty times a second (`loop_lag.py`). While it exceeds `max_lag`, the share of refused
checks grows, and shrinks again afterwards. A refusal costs next to nothing: the body is not even read. Health and
management are never refused. A single delay, as after a pause of the process, refuses nothing.
"""

from __future__ import annotations

import random
from typing import Final

GROWS_BY: Final = 0.1
SHRINKS_BY: Final = 0.05
MOST: Final = 0.95


class Shedding:
    """Decides which checks to refuse. `max_lag` is in seconds; 0 refuses none."""

    def __init__(self, max_lag: float) -> None:
        self._max_lag = max_lag
        self._was_late = False
        self.share = 0.0
        """The current share of refused checks. A plain attribute, because the hot path reads it."""
        self.refused = 0
        """The number of checks refused so far."""

    def note(self, late: float) -> None:
        """Record how many seconds the event loop is late."""
        is_late = 0 < self._max_lag < late
        if is_late and self._was_late:
            self.share = min(MOST, self.share + GROWS_BY)
        elif not is_late and self.share:
            self.share = max(0.0, round(self.share - SHRINKS_BY, 6))
        self._was_late = is_late

    def refuses(self) -> bool:
        """Whether to refuse the current check; only called while there is a share."""
        if random.random() >= self.share:
            return False
        self.refused += 1
        return True
