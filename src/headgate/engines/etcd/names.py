"""Tokens and cursors that say in which shard something is."""

from __future__ import annotations

from ...decision import Decision
from ...errors import UsageError


def named(decision: Decision, token: str) -> Decision:
    """The decision, with a token that says where the reservation is."""
    context = decision.context._replace(token=token)
    return Decision(decision.key, decision.limited_by, decision.answer, context, decision.several)


def pieces_of(token: str) -> list[tuple[str, int]]:
    """The reservations that a token names, and the shards that they are in; none if it is no token of ours."""
    pieces = []
    for piece in token.split(","):
        name, at, number = piece.rpartition("@")
        if not (at and number.isascii() and number.isdigit() and len(number) < 6):
            return []
        pieces.append((name, int(number)))
    return pieces


def place_of(cursor: str) -> tuple[int, str]:
    """The shard in which a list goes on, and where in it."""
    if not cursor:
        return 0, ""
    number, colon, inner = cursor.partition(":")
    if not (colon and number.isascii() and number.isdigit() and len(number) < 6):
        raise UsageError("that is no cursor; begin with an empty one", "cursor")
    return int(number), inner
