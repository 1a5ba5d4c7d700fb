"""Notes: what the five numbers of an answer do not contain, sent after them only if needed.

A note is `[step, source, degraded, reason, token, mark, limit]`. It is sent for a key that is banned or has its own
limit, for answers of a guard instead of the store, for a reservation that the store gave another name, and for a place
in line. `limit` is `[identity, packed limit]`. Default values are nil.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, get_args

from ...algorithms.base import MAX_EXACT
from ...decision import Context, Decision, Source
from ...errors import UsageError
from ..redis.limit_numbers import limit_of, packed_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit

SOURCES: Final = frozenset(get_args(Source))
USUAL: Final = ("engine", "shadow")
Value: TypeAlias = Any
"""What a reply is made of: whole numbers, texts, nil and lists of these."""


class Note(NamedTuple):
    """What is unusual about the answer of one step."""

    step: int
    source: Source
    degraded: bool
    reason: str | None
    token: str | None
    mark: int | None
    limit: Limit | None

    def applied_to(self, decision: Decision) -> Decision:
        """The decision with everything that the note tells, but for token and mark: those belong to the request."""
        context = decision.context._replace(
            source=self.source, degraded=self.degraded, reason=self.reason
        )
        limit = decision.limited_by if self.limit is None else self.limit
        return Decision(decision.key, limit, decision.answer, context)


def notes_of(
    step: int,
    decisions: Sequence[Decision],
    limits: Sequence[Limit],
    context: Context,
    token: str | None,
) -> list[Value]:
    """The notes about one request whose steps begin at `step`.

    `context` is that of the request as a whole, and `token` is the one that the caller would otherwise assume.
    """
    notes: list[Value] = []
    renamed = context.token if context.token != token else None
    for place, (decision, limit) in enumerate(zip(decisions, limits, strict=True)):
        own, first = decision.context, not place
        another = decision.limited_by is not limit and decision.limited_by != limit
        named = renamed if first else None
        mark = context.mark if first else None
        if own.source in USUAL and not (own.degraded or own.reason or another or named or mark):
            continue
        notes.append(
            [
                step + place,
                own.source.encode(),
                int(own.degraded),
                None if own.reason is None else own.reason.encode(),
                None if named is None else named.encode(),
                mark,
                _packed(decision.limited_by) if another else None,
            ]
        )
    return notes


def _packed(limit: Limit) -> Value:
    try:
        return [limit.identity.encode(), packed_limit(limit, 0)]  # Whichever period of a calendar.
    except UsageError:  # Nothing was limited: what is left says so.
        return None


def read_notes(value: Value, steps: int) -> dict[int, Note] | None:
    """Notes by their steps; `None` if these are none."""
    notes: dict[int, Note] = {}
    try:
        for step, source, degraded, reason, token, mark, limit in value:
            note = Note(
                step,
                source.decode(),
                bool(degraded),
                None if reason is None else reason.decode(),
                None if token is None else token.decode(),
                mark,
                None if limit is None else limit_of(limit[1], limit[0].decode()),
            )
            fits = type(step) is int and 0 <= step < steps and note.source in SOURCES
            if not fits or not (mark is None or (type(mark) is int and 0 <= mark <= MAX_EXACT)):
                return None
            notes[step] = note
    except (TypeError, ValueError, AttributeError, LookupError):
        return None
    return notes
