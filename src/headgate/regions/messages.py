"""Messages between regions: one command of the nodes' own protocol, `HG.REGION <message>`, and a short reply.

A message is JSON with its sender and its `kind`. Each kind has its own handler, which interprets the content. A message
that cannot be read is refused as a whole, and changes nothing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..algorithms import ALGORITHMS, Calendar, CalendarWindow
from ..algorithms.base import MAX_EXACT, require_whole
from ..charge import require_key, require_text
from ..errors import HeadgateError, UsageError
from .counters import Actor, CounterName, CounterTotal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..algorithms import Limit

COMMAND: Final = b"HG.REGION"
VERSION: Final = 1
MAX_MESSAGE: Final = 1_048_576
"""The maximum size of a message; nodes refuse longer commands."""
COUNTERS: Final = "counters"


class Message(NamedTuple):
    """A message from one region to another."""

    kind: str
    sender: str
    """The sending region."""
    epoch: str
    """The epoch of the sender's store; a new one means that the sender has lost its data."""
    content: Any
    """Plain JSON values, depending on the kind."""

    def pack(self) -> bytes:
        """Serialise it for the wire."""
        return _json([VERSION, *self])

    @classmethod
    def unpack(cls, packed: bytes) -> Message:
        """The inverse of `pack`; a `UsageError` on anything else."""
        try:
            version, kind, sender, epoch, content = json.loads(packed)
        except (ValueError, TypeError, RecursionError):
            raise UsageError("this is no message of a region") from None
        if version != VERSION:
            raise UsageError(
                f"the message has the version {version!r:.20}, and this node understands {VERSION}"
            )
        for one in (kind, sender, epoch):
            require_text("part of a message", one)
        return cls(kind, sender, epoch, content)


class Reply(NamedTuple):
    """The other region's answer to a message that it has processed."""

    epoch: str
    """The epoch of its store."""
    early: int
    """How many parts of the message must be sent again, because they are ahead of its clock."""

    def values(self) -> list[Any]:
        """The values on the wire."""
        return [self.epoch.encode(), self.early]

    @classmethod
    def of(cls, values: Any) -> Reply:
        """The inverse of `values`."""
        try:
            epoch, early = values
            return cls(epoch.decode(), int(early))
        except (ValueError, TypeError, AttributeError):
            raise UsageError(f"a region has answered {values!r:.80}") from None


def counters_content(entries: Iterable[CounterTotal]) -> list[Any]:
    """Counters as the content of a message: the totals of each actor."""
    by_actor: dict[Actor, list[Any]] = {}
    for name, actor, total in entries:
        rows = by_actor.setdefault(actor, [])
        rows.append([name.rule, name.key, words_of(name.limit), name.slice_us, total])
    return [[*actor, rows] for actor, rows in by_actor.items()]


def read_counters(content: Any) -> list[CounterTotal]:
    """The inverse of `counters_content`."""
    found = []
    try:
        for region, epoch, node, rows in content:
            actor = Actor(*(require_text("actor", one) for one in (region, epoch, node)))
            for rule, key, words, slice_us, total in rows:
                name = read_name([rule, key, words, slice_us])
                found.append(CounterTotal(name, actor, require_whole("total", total, 0, MAX_EXACT)))
    except (ValueError, TypeError) as error:
        if isinstance(error, HeadgateError):
            raise
        raise UsageError("these are no counters of a region") from None
    return found


def read_name(row: Sequence[Any]) -> CounterName:
    """Read a counter's name from its four parts in plain JSON values."""
    rule, key, words, slice_us = row
    return CounterName(
        None if rule is None else require_text("rule", rule),
        require_key(key),
        limit_of_words(tuple(words)),
        require_whole("slice", slice_us, 0, MAX_EXACT),
    )


@lru_cache(maxsize=4_096)
def words_of(limit: Limit) -> tuple[Any, ...]:
    """A limit in plain values: consistency, algorithm, and its arguments."""
    made_of = limit.made_of
    if isinstance(limit, CalendarWindow):
        calendar = limit.calendar
        made_of = (limit.limit, calendar.period, calendar.tz, calendar.anchor)
    return limit.consistency, limit.name, *made_of


@lru_cache(maxsize=4_096)
def limit_of_words(words: tuple[Any, ...]) -> Limit:
    """The inverse of `words_of`; only for limits that regions share."""
    try:
        mode, name, *made_of = words
        kind: type[Any] = ALGORITHMS[name]
        if len(made_of) == 4:
            number, period, tz, anchor = made_of
            made: Limit = CalendarWindow(number, Calendar(period, tz, anchor))
        else:
            made = kind(*made_of)
        return made.across_regions(mode)
    except (ValueError, TypeError, LookupError) as error:
        if isinstance(error, HeadgateError):
            raise
        raise UsageError(f"this is no limit that regions keep together: {words!r:.80}") from None


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
