"""Warn about two rates that share a count, perhaps by mistake.

Counts are kept per key, algorithm and window, so that changing a limit keeps the usage. The drawback: `hit("a",
"5/minute")` and `hit("a", "9/minute")` share one count. A limiter that notices this logs it once.

Checking every hit would cost more than the hit. A limiter checks when it parses a new rate, which happens once per
rate: only if a second rate has the same algorithm and window does it watch keys, for a while, and remember some of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from .charge import shown

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    from .algorithms import Limit

A = TypeVar("A")

MAX_SEEN: Final = 4_096
"""Keys, and windows, that are remembered."""
PATIENCE: Final = 100_000
"""Hits that are looked at."""

SHARED: Final = (
    "two rates share one count: %r is counted by %s with a limit of %d and with one of %d in the same window of %g s. "
    "Counts are kept per key, algorithm and window; use two keys if the counts should be separate. This is logged once"
)


class SharedCountWarning:
    """The rates of one limiter that may share counts."""

    def __init__(self, logger: logging.Logger, rebind: Callable[[], None]) -> None:
        self._log = logger
        self._rebind = rebind
        """Makes the limiter rebind its hits, because they are now watched, or no longer."""
        self._first: dict[str, Limit] = {}
        self._ambiguous: set[str] = set()
        self._keys: dict[tuple[str, str], Limit] = {}
        self._left = PATIENCE

    def add_limits(self, limits: Iterable[Limit]) -> None:
        """Take note of limits that are about to be used."""
        for limit in limits:
            first = self._first.get(limit.identity)
            if first is None:
                if len(self._first) >= MAX_SEEN:
                    self._first.clear()
                self._first[limit.identity] = limit
            elif (
                first.made_of != limit.made_of
                and limit.identity not in self._ambiguous
                and self._left > 0
            ):
                if len(self._ambiguous) >= MAX_SEEN:
                    self._ambiguous.clear()
                self._ambiguous.add(limit.identity)
                self._rebind()

    def watch(
        self, limits: tuple[Limit, ...], hit: Callable[[str, int], A]
    ) -> Callable[[str, int], A]:
        """The hit, watched if it could share a count with another rate."""
        if self._left <= 0 or not any(limit.identity in self._ambiguous for limit in limits):
            return hit

        def watching(key: Any, cost: Any) -> A:
            if self._left > 0:
                self._left -= 1
                self.warn_if_shared(key, limits)
                if self._left <= 0:
                    self._rebind()
            return hit(key, cost)

        return watching

    def warn_if_shared(self, key: object, limits: Iterable[Limit]) -> None:
        """Warn if the key is counted with two limits of one window."""
        if self._left <= 0 or not isinstance(key, str):
            return
        for limit in limits:
            place = (key, limit.identity)
            other = self._keys.setdefault(place, limit)
            if other.made_of != limit.made_of:
                self._left = 0
                self._keys.clear()
                window = limit.window_us / 1_000_000
                self._log.warning(SHARED, shown(key), limit.name, other.limit, limit.limit, window)
                return
            if len(self._keys) >= MAX_SEEN:
                self._keys.clear()
