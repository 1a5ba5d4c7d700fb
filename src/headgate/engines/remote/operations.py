"""The methods that nodes implement differently from Redis: withdrawing, usage and listing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..base import KeyEntry, KeyPage
from ..redis.codec import NOT_CHARGED, NOT_OURS, UNKNOWN, undecided
from ..redis.failures import unexpected_reply
from ..redis.operations import Operations
from ..redis.sending import RoutedCommand
from .codec import COMMAND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...charge import ChargeSet
    from ...errors import EngineError
    from ..base import Usage
    from ..redis.codec import Reply
    from ..redis.operations import Listing

PAGE = 1_000
"""Keys that a node is asked for at once, at most."""


class RemoteOperations(Operations):
    """The engine's verbs, for one namespace, as nodes know them."""

    command: ClassVar[bytes] = COMMAND

    def settle_each(self, settlements: Sequence[tuple[str, int]]) -> list[RoutedCommand]:
        """Settle several reservations, each in a call of its own."""
        return [one for settlement in settlements for one in self.settle(*settlement)]

    def withdraw(self, request: ChargeSet) -> list[RoutedCommand]:
        """Give back what a request has reserved, wherever that is."""
        if request.token is None or not request.reserve_us:
            return []
        words = self.codec.command((self.command, b"withdraw"), [self.codec.part(request)])
        return [RoutedCommand(tuple(words))]

    def read_usage(self, reply: Reply, key: str) -> Usage | None:
        """What a key has used."""
        (usage,) = self.codec.usages(reply, 1)
        if usage in (NOT_CHARGED, UNKNOWN, NOT_OURS):
            raise undecided(NOT_CHARGED)  # Nothing is charged by looking.
        return super().read_usage(reply, key)

    def listing(self, prefix: str, cursor: str, most: int, nodes: int) -> Listing:
        """Ask for a page."""
        namespace = self.codec.keys.namespace
        words = (namespace, prefix, cursor, min(most, PAGE))
        reply = yield RoutedCommand((self.command, b"list", 0, *words))
        try:
            next_cursor, *rows = reply
            return KeyPage([_entry(row) for row in rows], next_cursor.decode())
        except (TypeError, ValueError, AttributeError):
            error: EngineError = unexpected_reply(reply)
            error.indefinite = False
            raise error from None


def _entry(row: list[Any]) -> KeyEntry:
    key, rule, algorithm, window_us, count, idle_at_us, limit, limit_known = row
    return KeyEntry(
        key.decode(),
        None if rule is None else rule.decode(),
        algorithm.decode(),
        *(window_us, count, idle_at_us, limit),
        limit_known=bool(limit_known),
    )
