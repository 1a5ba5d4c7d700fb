"""How much memory states take, and what counts a window when there is no room for another table.

A table takes as much memory as several keys, and callers may choose windows. When memory is full, a new window is
counted by a substitute: a token bucket over a window that is up to a quarter longer, of which there are few. It admits
no more than the limit in any span of the requested window, so it keeps every algorithm's guarantee; it is stricter, at
about half the rate. The exact lengths of those windows are secret, so an attacker cannot occupy them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms import Adaptive, CalendarWindow, TokenBucket
from ..algorithms.base import MAX_WINDOW_US
from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..algorithms import Limit
    from ..algorithms._holders import Holders
    from ..algorithms.sliding_log import Log

TABLE_BYTES: Final = 1_500
TRIO_BYTES: Final = 1_500
"""What the table of an adaptive limit takes in addition: the limit has those of its three algorithms in it."""
KEY_BYTES: Final = 240
"""A key's place in a table, its state and its string, apart from the text."""
SHARED_BYTES: Final = 200
SHARED_PART: Final = 8
"""Shared states may take this part of `max_bytes` in addition."""
RESERVED_PART: Final = 4
"""And open reservations this part."""
RESERVATION_BYTES: Final = 520
CHARGE_BYTES: Final = 400
"""One charge of a reservation, apart from the text of its key."""
ENTRY_BYTES: Final = 50
FEW_ENTRIES: Final = 6
"""A log weighs as if it had so many at least: it can be kept in that many (see `SlidingLog.coarser`)."""
SLOT_BYTES: Final = 400
"""A held slot."""


class Counters(NamedTuple):
    """What the engine has done to stay within its bound."""

    keys: int
    """Keys that have a state now."""
    dropped: int
    """Idle keys that were dropped, without loss."""
    shared: int
    """Decisions on a state that unrelated keys share, or in a longer window, because memory was full."""
    reservations: int
    """Reservations that may still be settled."""
    bytes: int = 0
    """The approximate bytes of keys, windows and shared states."""

    @property
    def gauges(self) -> dict[str, int]:
        """The same, by the names of metrics."""
        return {
            "memory_keys": self.keys,
            "memory_dropped_keys_total": self.dropped,
            "memory_shared_decisions_total": self.shared,
        }


def table_weight(limit: Limit) -> int:
    """About the bytes that a table of this limit takes up, with the limit and without keys."""
    return TABLE_BYTES + (TRIO_BYTES if isinstance(limit, Adaptive) else 0)


def weight_of(key: str) -> int:
    """About the bytes that a key takes up, whichever object its text is."""
    return KEY_BYTES + _text_bytes(key)


def reserved_weight(token: str, keys: Iterable[str]) -> int:
    """About the bytes that a reservation of these keys takes up."""
    charges = sum([CHARGE_BYTES + _text_bytes(key) for key in keys])
    return RESERVATION_BYTES + _text_bytes(token) + charges


def log_weight(state: Log) -> int:
    """About the bytes that the entries of a log take up."""
    entries = state[2] >> 1
    return ENTRY_BYTES * (entries if entries > FEW_ENTRIES else FEW_ENTRIES)


def slots_weight(state: Holders) -> int:
    """About the bytes that held slots take up; the first one of a key is always counted."""
    return SLOT_BYTES * max(1, len(state))


def _text_bytes(key: str) -> int:
    return len(key) if key.isascii() else 4 * len(key)


def longer_window_us(window_us: int, secret: bytes) -> int:
    """The substitute for this window and all others of similar length."""
    step = 1 << max(0, window_us.bit_length() - 3)  # Four of them between a length and its double.
    least = -(-window_us // step) * step
    odd = blake2b(least.to_bytes(8, "big"), key=secret, digest_size=4).digest()
    return min(least + int.from_bytes(odd, "big") % max(1, least // 64), MAX_WINDOW_US)


def stand_in(limit: Limit, secret: bytes) -> TokenBucket | None:
    """The substitute for a limit without room; `None` for limits without a window and for calendar windows."""
    if isinstance(limit, CalendarWindow) or not limit.window_us:
        return None
    window_us = longer_window_us(limit.window_us, secret)
    if not limit.limit:
        return TokenBucket(0, window_us)
    units, burst = limit.limit, limit.burst if isinstance(limit, TokenBucket) else 0
    if not burst:  # Half of the limit at once, and half of it refilled meanwhile; a limit of 1 once per window.
        burst = max(1, units - units // 2)
        units = units if units < 2 else units // 2
    try:
        return TokenBucket(units, window_us, burst)
    except UsageError:  # Too much to be exact in a window of that length.
        return TokenBucket(1, window_us, 1)


def is_stand_in(limit: Limit, secret: bytes) -> bool:
    """Whether a table of this limit may count for others."""
    step = 1 << max(0, limit.window_us.bit_length() - 3)
    least = limit.window_us // step * step
    is_longest = limit.window_us == MAX_WINDOW_US
    found = is_longest or longer_window_us(least, secret) == limit.window_us
    return found and isinstance(limit, TokenBucket)
