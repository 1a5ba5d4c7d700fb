"""Which limits etcd can store: those whose state fits into one write. Rules are checked without opening the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...algorithms import Concurrency, SlidingLog

if TYPE_CHECKING:
    from ...algorithms import Limit

MOST_ENTRIES: Final = 20_000
MOST_HOLDERS: Final = 10_000
"""What still fits into one entry: etcd accepts 1.5 MiB at once."""


def why_not_storable(limit: Limit) -> str | None:
    """Why a limit cannot be stored on etcd; `None` if it can."""
    most = MOST_ENTRIES if isinstance(limit, SlidingLog) else MOST_HOLDERS
    if not isinstance(limit, SlidingLog | Concurrency) or limit.limit <= most:
        return None
    remedy = (
        "use sliding_window, or another engine"
        if isinstance(limit, SlidingLog)
        else "divide the slots among several keys, or use another engine"
    )
    return f"on etcd {limit.name} counts up to {most:,}, not {limit.limit:,}; {remedy}"
