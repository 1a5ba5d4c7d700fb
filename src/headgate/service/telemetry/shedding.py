"""Load shedding: when the event loop cannot keep up, some checks are refused at once, so that the others are on time.

The loop's lateness is looked at twenty times a second (`loop_lag.py`). As long as it is later than `max_lag`, the share
of checks that are refused grows, and shrinks again when it is not. A refusal costs next to nothing: the body is not
even read. Health and management are never refused. One late moment, as after a pause of the process, refuses nobody.
"""

from __future__ import annotations

import random
from typing import Final

GROWS_BY: Final = 0.1
SHRINKS_BY: Final = 0.05
MOST: Final = 0.95


class Shedding:
    """Which checks to refuse. `max_lag` is in seconds; 0 refuses none."""

    def __init__(self, max_lag: float) -> None:
        self._max_lag = max_lag
        self._was_late = False
        self.share = 0.0
        """The share of checks that is refused now. A plain attribute: the hot path looks at it."""
        self.refused = 0
        """How many checks have been."""

    def note(self, late: float) -> None:
        """The event loop is so many seconds late."""
        is_late = 0 < self._max_lag < late
        if is_late and self._was_late:
            self.share = min(MOST, self.share + GROWS_BY)
        elif not is_late and self.share:
            self.share = max(0.0, round(self.share - SHRINKS_BY, 6))
        self._was_late = is_late

    def refuses(self) -> bool:
        """Whether the check that comes now is refused; only asked while there is a share."""
        if random.random() >= self.share:
            return False
        self.refused += 1
        return True
