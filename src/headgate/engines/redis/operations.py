"""Operations: every verb of the engine contract as errands to run and replies to read. No I/O here.

The two shells (`sync.py`, `aio.py`) only run errands; what is asked and what the answer means is decided here, once.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from hiredis import pack_command

from ...algorithms import Concurrency, Limit, TokenBucket, limit_of_identity
from ...charge import require_cost
from ...errors import HeadgateError, UsageError
from ..base import Entry, Page, Usage
from .carry import Errand
from .codec import (
    MAX_RULES,
    NOT_OURS,
    NUMBERS_PER_STEP,
    STALE,
    Codec,
    Form,
    Part,
    Plain,
    Reply,
    not_ours,
)
from .keys import slot_of
from .scripts import ALGORITHMS, Dialect, script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...charge import Request
    from ...decision import Decision
    from .scripts import Words

SCAN_COUNT: Final = 500
DIGEST_BYTES: Final = 6

T = TypeVar("T")


class Scan(NamedTuple):
    """Ask a server, by its number, what it holds."""

    node: int
    command: tuple[Any, ...]


Errands: TypeAlias = Generator[Errand, Any, T]
Listing: TypeAlias = Generator[Scan | Errand, Any, Page]


class Described(NamedTuple):
    """What the name of a state says about it."""

    rule: str | None
    limit: Limit
    key: str
    hashed: bool

    def entry(self, usage: Usage, now_us: int) -> Entry:
        """The state as a list shows it."""
        limit, idle_at_us = self.limit, now_us + usage.answer[3]
        return Entry(
            self.key, self.rule, limit.name, limit.window_us, usage.used, idle_at_us, limit.limit
        )


class Place(NamedTuple):
    """Where a list goes on: the server, its SCAN cursor, and what was seen already of what that brings."""

    node: int = 0
    at: int = 0
    seen: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, cursor: str) -> Place:
        """Read a cursor back; the empty one is the beginning."""
        if not cursor:
            return cls()
        parts = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if parts is None or int(parts[2]) >= 2**64:
            raise UsageError(
                f"{cursor!r:.80} is no cursor of a list of keys; begin with an empty one"
            )
        return cls(int(parts[1]), int(parts[2]), frozenset(filter(None, parts[3].split("."))))

    def with_seen(self, names: Sequence[tuple[bytes, Described]]) -> Place:
        """The same place, with these names behind us."""
        return self._replace(seen=self.seen | {_digest(name) for name, _ in names})

    def __str__(self) -> str:
        return ":".join((str(self.node), str(self.at), ".".join(sorted(self.seen))))


_CURSOR: Final = re.compile(r"([0-9]{1,5}):([0-9]{1,20}):([0-9a-f.]*)")


def sized(limit: Limit, number: int) -> Limit:
    """The same limit with another number, and the smallest burst: what is used does not depend on that."""
    numbers = dict(zip(limit.__match_args__, limit.made_of, strict=True))
    numbers["limit"] = number
    if "burst" in numbers:
        numbers["burst"] = min(number, 1)
    return type(limit)(**numbers)


def _digest(name: bytes) -> str:
    return blake2b(name, digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that travel together, and their places in the caller's list."""

    errand: Errand
    parts: list[Part | Plain]
    places: list[int]


class Operations:
    """The engine's verbs, for one namespace."""

    def __init__(self, codec: Codec, max_batch: int, dialect: Dialect | None = None) -> None:
        self.codec = codec
        self.dialect = dialect or Dialect()
        self.clustered = codec.keys.clustered
        self._max_batch = max_batch
        self._decide, self._take = script("decide"), script("take")

    def slot(self, part: Part | Plain) -> int:
        """The slot of a request; all of its keys are there."""
        return slot_of(part.keys[0]) if self.clustered else 0

    def batches(self, requests: Sequence[Request]) -> list[Batch]:
        """Pack requests into as few calls as possible: one for each slot."""
        by_slot: dict[int, list[tuple[int, Part | Plain]]] = {}
        for place, request in enumerate(requests):
            part = self.codec.part(request)
            by_slot.setdefault(self.slot(part), []).append((place, part))
        return [
            Batch(
                self.errand(slot, [part for _, part in chunk]),
                [part for _, part in chunk],
                [place for place, _ in chunk],
            )
            for slot, pairs in by_slot.items()
            for chunk in self._chunks(pairs)
        ]

    def words(self, form: Form | None) -> Words:
        """What a call begins with that decides requests of this form, or of any if there is none."""
        return self.dialect.words(self._decide if form is None else self._take)

    def errand(
        self,
        slot: int,
        parts: Sequence[Part | Plain],
        form: Form | None = None,
        words: Words | None = None,
    ) -> Errand:
        """One call that decides these requests; `form` if all are of one, `words` if it was sent before."""
        words = words or self.words(form)
        if form is not None:
            names = [part.keys[0] for part in parts]
            command = self.codec.take_command(words, form, names)
            return Errand(tuple(command), slot, self._take)
        return Errand(tuple(self.codec.command(words, parts)), slot, self._decide)

    def packed(self, parts: Sequence[Part | Plain], form: Form | None, words: Words) -> bytes:
        """The command of `errand`, as it is sent."""
        if form is None:
            packed: bytes = pack_command(tuple(self.codec.command(words, parts)))
            return packed
        plain: Any = parts
        return self.codec.packed_take(words, form, [name for _, name, _, _ in plain])

    def answers(self, parts: Sequence[Part | Plain], reply: Reply) -> Iterator[Decision | None]:
        """The decisions in a reply, in order; `None` where the calendar has to be sent again."""
        self.codec.check(reply, sum(len(part.keys) for part in parts))
        at = 1
        for part in parts:
            yield self.codec.decision(part, reply, at)
            at += NUMBERS_PER_STEP * len(part.keys)

    def again(self, part: Part | Plain, now_us: int) -> Part:
        """The same request, with calendars as they are at the store's time."""
        if not isinstance(part, Part):
            return self.codec.part(part.request, now_us)
        request = part.request._replace(token=part.token)
        return self.codec.part(request, now_us, look=part.look)

    def settle(self, token: str, actual: int) -> list[Errand]:
        """Settle a reservation; one that lies in several slots is settled in each."""
        require_cost(actual)
        body = self.codec.head() + struct.pack("<d", actual)
        return [self._call("settle", name, body) for name in self.codec.record_names(token)]

    def leave_line(self, decision: Decision) -> Errand | None:
        """Give a place in line back; nothing to do for who has none."""
        key, limit, context = decision.key, decision.limited_by, decision.context
        if context.mark is None or not isinstance(limit, TokenBucket):
            return None
        body = self.codec.head() + struct.pack("<ddd", *context.mark) + self.codec.rule(limit)
        return self._call("leave_line", self.codec.state_name(key, limit, context.rule), body)

    def slots(self, key: str, limit: Limit, token: str, rule: str | None, *, renew: bool) -> Errand:
        """Renew what a token holds, or let go of it."""
        assert isinstance(limit, Concurrency)
        body = self.codec.head() + bytes((renew,)) + self.codec.rule(limit)
        name = self.codec.state_name(key, limit, rule)
        return self._call("slots", name, body, token.encode())

    def usage(self, key: str, limit: Limit, rule: str | None, now_us: int | None = None) -> Errand:
        """Ask what a key has used."""
        name = self.codec.state_name(key, limit, rule)
        return self._usages([(name, limit)], now_us)

    def read_usage(self, reply: Reply, key: str) -> Usage | None:
        """What a key has used; `None` when the calendar has to be sent again."""
        (usage,) = self.codec.usages(reply, 1)
        if usage == NOT_OURS:
            raise not_ours(key)
        return usage if isinstance(usage, Usage) else None

    def reset(self, key: str, limit: Limit, rule: str | None) -> Errand:
        """Forget a key, the line in front of it, and what was reserved of it."""
        return self._call("reset", self.codec.state_name(key, limit, rule), b"")

    def listing(self, prefix: str, cursor: str, most: int, nodes: int) -> Listing:
        """Look for keys on that many servers, a page at a time; never all at once.

        The cursor is where SCAN goes on, on which server. A page ends where a reply of SCAN does, so that nothing
        is lost in between; only when a single bucket of the server's table holds more than a page does the cursor
        say which of them have been seen.
        """
        place = Place.parse(cursor)
        count = SCAN_COUNT
        entries: list[Entry] = []
        while place.node < nodes and len(entries) < most:
            pattern = self.codec.keys.pattern(prefix)
            reply = yield Scan(
                place.node, (b"SCAN", b"%d" % place.at, b"MATCH", pattern, b"COUNT", count)
            )
            following, names = int(reply[0]), self._unseen(reply[1], prefix, place)
            room = most - len(entries)
            if len(names) > room:
                if entries:
                    break
                if count > 1:
                    count //= 4
                    continue
                names = names[:room]
                place = place.with_seen(names)
            elif following:
                place = Place(place.node, following)
            else:
                place = Place(place.node + 1)
            entries += yield from self._entries(names)
        return Page(entries, str(place) if place.node < nodes else "")

    def _unseen(
        self, names: Sequence[bytes], prefix: str, place: Place
    ) -> list[tuple[bytes, Described]]:
        """Those whose key begins with `prefix`: a pattern cannot tell where a key begins."""
        described = [(name, self._described(name)) for name in dict.fromkeys(names)]
        return [
            (name, parts)
            for name, parts in described
            if parts is not None
            and parts.key.startswith(prefix)
            and not (prefix and parts.hashed)
            and not (place.seen and _digest(name) in place.seen)
        ]

    def _described(self, name: bytes) -> Described | None:
        """What a state's name speaks of, if it is of this namespace and of a limit that we know."""
        parsed = self.codec.keys.parse(name)
        if parsed is None:
            return None
        rule, identity, key = parsed
        try:
            limit = limit_of_identity(identity)
        except (LookupError, ValueError, HeadgateError):
            return None
        return Described(rule, limit, key, hashed=self.codec.keys.is_hashed(name))

    def _entries(self, names: Sequence[tuple[bytes, Described]]) -> Errands[list[Entry]]:
        """Those of the states that are in use, counted by the limits that they were last counted with."""
        by_slot: dict[int, list[tuple[bytes, Described]]] = {}
        for name, described in names:
            slot = slot_of(name) if self.clustered else 0
            by_slot.setdefault(slot, []).append((name, described))
        entries: list[Entry] = []
        for group in by_slot.values():
            for start in range(0, len(group), MAX_RULES):
                entries += yield from self._entries_of_one_slot(group[start : start + MAX_RULES])
        return entries

    def _entries_of_one_slot(
        self, names: Sequence[tuple[bytes, Described]]
    ) -> Errands[list[Entry]]:
        stored = yield self._stored_limits(names)
        known = [
            (name, described._replace(limit=sized(described.limit, number)))
            for (name, described), number in zip(names, stored, strict=True)
            if number >= 0
        ]
        entries: list[Entry] = []
        now_us = None
        while known:
            reply = yield self._usages([(name, one.limit) for name, one in known], now_us)
            usages = self.codec.usages(reply, len(known))
            entries += [
                one.entry(usage, reply[0])
                for (_, one), usage in zip(known, usages, strict=True)
                if isinstance(usage, Usage) and usage.answer[3]
            ]
            now_us = reply[0]
            known = [one for one, usage in zip(known, usages, strict=True) if usage == STALE]
        return entries

    def _stored_limits(self, names: Sequence[tuple[bytes, Described]]) -> Errand:
        codes = bytes(ALGORITHMS.index(one.limit.name) + 1 for _, one in names)
        called = script("limits")
        keys = [name for name, _ in names]
        slot = slot_of(keys[0]) if self.clustered else 0
        return Errand((*self.dialect.words(called), len(keys), *keys, codes), slot, called)

    def _usages(self, states: Sequence[tuple[bytes, Limit]], now_us: int | None) -> Errand:
        command = self.codec.usage_command(self.dialect.words(self._decide), states, now_us)
        slot = slot_of(states[0][0]) if self.clustered else 0
        return Errand(tuple(command), slot, self._decide)

    def _call(self, name: str, key: bytes, body: bytes, *texts: bytes) -> Errand:
        called = script(name)
        slot = slot_of(key) if self.clustered else 0
        return Errand((*self.dialect.words(called), 1, key, body, *texts), slot, called)

    def _chunks(
        self, pairs: list[tuple[int, Part | Plain]]
    ) -> Iterator[list[tuple[int, Part | Plain]]]:
        chunk: list[tuple[int, Part | Plain]] = []
        rules: set[bytes] = set()
        for place, part in pairs:
            rules.update(part.rules)
            if chunk and (len(chunk) == self._max_batch or len(rules) > MAX_RULES):
                yield chunk
                chunk, rules = [], set(part.rules)
            chunk.append((place, part))
        yield chunk
