"""Warns if limiters are created again and again, such as once per request: each would start with empty counts."""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import Final

MANY: Final = 100
"""How many engines opened by one line of a program, within a minute, are a mistake."""
SPAN_S: Final = 60.0
MAX_LINES: Final = 1_000

log: Final = logging.getLogger("headgate")
_openings: dict[tuple[str, int], tuple[float, int]] = {}
"""By line of a program: when its first engine of this minute was opened, and how many there were since."""


def note_opening() -> None:
    """Note that an engine was opened, and by which line outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headgate."):
        frame = frame.f_back
    line = (frame.f_code.co_filename, frame.f_lineno)
    now = monotonic()
    since, count = _openings.get(line, (now, 0))
    if now - since > SPAN_S:
        since, count = now, 0
    if len(_openings) >= MAX_LINES:
        _openings.clear()
    _openings[line] = (since, count + 1)
    if count + 1 == MANY:
        log.warning(
            "headgate.W004: %s:%d has opened %d engines within a minute; create one limiter and keep it, "
            "because a new one starts with empty counts or new connections",
            *line,
            MANY,
        )
