"""Tokens and cursors that contain the shard."""

from __future__ import annotations

from ...decision import Decision
from ...errors import UsageError


def named(decision: Decision, token: str) -> Decision:
    """The decision, with a token that contains the shard of the reservation."""
    context = decision.context._replace(token=token)
    return Decision(decision.key, decision.limited_by, decision.answer, context, decision.several)


def pieces_of(token: str) -> list[tuple[str, int]]:
    """The reservations in a token, and their shards; empty if it is not one of our tokens."""
    pieces = []
    for piece in token.split(","):
        name, at, number = piece.rpartition("@")
        if not (at and number.isascii() and number.isdigit() and len(number) < 6):
            return []
        pieces.append((name, int(number)))
    return pieces


def place_of(cursor: str) -> tuple[int, str]:
    """The shard in which a listing continues, and the position in it."""
    if not cursor:
        return 0, ""
    number, colon, inner = cursor.partition(":")
    if not (colon and number.isascii() and number.isdigit() and len(number) < 6):
        raise UsageError("that is no cursor; begin with an empty one", "cursor")
    return int(number), inner
