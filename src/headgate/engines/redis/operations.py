"""Operations: every method of the engine contract as commands to run and replies to parse. No I/O here.

The two shells (`sync.py`, `aio.py`) only run commands; this module builds them and interprets the replies, once for
both.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ...algorithms import Concurrency, Limit, TokenBucket, limit_of_identity
from ...charge import other_charges, require_costs
from ...errors import HeadgateError, UsageError
from ..base import KeyEntry, KeyPage, Usage
from .codec import (
    MAX_RULES,
    NOT_OURS,
    NUMBERS_PER_STEP,
    STALE,
    Codec,
    Reply,
    not_ours,
)
from .cross_slot import groups_of
from .failures import clock_keeps_jumping
from .keys import slot_of
from .limit_numbers import sized
from .packed_requests import PackedRequest, PlainRequest, PlainTemplate
from .packing import packed_command
from .scripts import ALGORITHMS, Dialect, script
from .sending import RoutedCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...charge import ChargeSet
    from ...decision import Decision
    from .scripts import Words

SCAN_COUNT: Final = 500
MAX_SCANS: Final = 100
"""How many times SCAN is called for one page: matches may be rare among millions of keys, and the caller should get an
answer soon."""
DIGEST_BYTES: Final = 6
STALE_TRIES: Final = 5
"""How often a calendar is sent again to a store whose clock is in another period each time."""
REFUSE_US: Final = 60_000_000
"""How long a withdrawn request is refused if it arrives late: longer than any deadline."""

T = TypeVar("T")


class Scan(NamedTuple):
    """Scan the keys of a server, given by its index."""

    node: int
    command: tuple[Any, ...]


RoutedSteps: TypeAlias = Generator[RoutedCommand, Any, T]
Listing: TypeAlias = Generator[Scan | RoutedCommand, Any, KeyPage]


class ParsedKey(NamedTuple):
    """What the name of a state contains."""

    rule: str | None
    limit: Limit
    key: str
    hashed: bool

    def entry(self, usage: Usage, now_us: int) -> KeyEntry:
        """The state as a list entry."""
        limit, idle_at_us = self.limit, now_us + usage.answer[3]
        return KeyEntry(
            self.key, self.rule, limit.name, limit.window_us, usage.used, idle_at_us, limit.limit
        )


class Place(NamedTuple):
    """A position in a listing: the server, its SCAN cursor, and names of that reply already returned."""

    node: int = 0
    at: int = 0
    seen: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, cursor: str) -> Place:
        """Parse a cursor; an empty one is the start."""
        if not cursor:
            return cls()
        parts = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if parts is None or int(parts[2]) >= 2**64:
            raise UsageError(f"{cursor!r:.80} is not a valid cursor; start with an empty one")
        return cls(int(parts[1]), int(parts[2]), frozenset(filter(None, parts[3].split("."))))

    def with_seen(self, names: Sequence[tuple[bytes, ParsedKey]]) -> Place:
        """The same position, with these names marked as returned."""
        return self._replace(seen=self.seen | {_digest(name) for name, _ in names})

    def __str__(self) -> str:
        return ":".join((str(self.node), str(self.at), ".".join(sorted(self.seen))))


_CURSOR: Final = re.compile(r"([0-9]{1,5}):([0-9]{1,20}):([0-9a-f.]*)")


def _digest(name: bytes) -> str:
    return blake2b(name, digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class CommandBatch:
    """Requests in one call, and their positions in the caller's list."""

    routed: RoutedCommand
    parts: list[PackedRequest | PlainRequest]
    places: list[int]


class Operations:
    """The engine's verbs, for one namespace."""

    def __init__(self, codec: Codec, max_batch: int, dialect: Dialect | None = None) -> None:
        self.codec = codec
        self.dialect = dialect or Dialect()
        self.clustered = codec.keys.clustered
        self._max_batch = max_batch
        self._decide, self._take = script("decide"), script("take")

    def slot(self, part: PackedRequest | PlainRequest) -> int:
        """The slot of a request, which all of its keys share."""
        return slot_of(part.keys[0]) if self.clustered else 0

    def batches(self, requests: Sequence[ChargeSet]) -> list[CommandBatch]:
        """Pack requests into as few calls as possible: one per slot."""
        by_slot: dict[int, list[tuple[int, PackedRequest | PlainRequest]]] = {}
        for place, request in enumerate(requests):
            part = self.codec.part(request)
            by_slot.setdefault(self.slot(part), []).append((place, part))
        return [
            CommandBatch(
                self.routed(slot, [part for _, part in chunk]),
                [part for _, part in chunk],
                [place for place, _ in chunk],
            )
            for slot, pairs in by_slot.items()
            for chunk in self._chunks(pairs)
        ]

    def words(self, form: PlainTemplate | None) -> Words:
        """The first words of a call that decides requests of this form, or of any form."""
        return self.dialect.words(self._decide if form is None else self._take)

    def routed(
        self,
        slot: int,
        parts: Sequence[PackedRequest | PlainRequest],
        form: PlainTemplate | None = None,
        words: Words | None = None,
    ) -> RoutedCommand:
        """One call that decides these requests; `form` if they share one, `words` if it was sent before."""
        words = words or self.words(form)
        if form is not None:
            names = [part.keys[0] for part in parts]
            command = self.codec.take_command(words, form, names)
            return RoutedCommand(tuple(command), slot, self._take)
        return RoutedCommand(tuple(self.codec.command(words, parts)), slot, self._decide)

    def packed(
        self,
        parts: Sequence[PackedRequest | PlainRequest],
        form: PlainTemplate | None,
        words: Words,
    ) -> bytes:
        """The command of `routed`, packed."""
        if form is None:
            return packed_command(self.codec.command(words, parts))
        plain: Any = parts
        return self.codec.packed_take(words, form, [name for _, name, _, _ in plain])

    def answers(
        self, parts: Sequence[PackedRequest | PlainRequest], reply: Reply
    ) -> Iterator[Decision | None]:
        """The decisions in a reply, in order; `None` if a calendar has to be sent again."""
        self.codec.check(reply, sum(len(part.keys) for part in parts))
        at = 1
        for part in parts:
            yield self.codec.decision(part, reply, at)
            at += NUMBERS_PER_STEP * len(part.keys)

    def again(self, part: PackedRequest | PlainRequest, now_us: int) -> PackedRequest:
        """The same request, with calendars for the store's time."""
        if isinstance(part, PackedRequest):
            again = self.codec.part(part.request, now_us, look=part.look, name=part.token)
        else:
            again = self.codec.part(part.request, now_us)
        again.hooks, again.ticket = part.hooks, part.ticket
        return again

    def settle(self, token: str, actual: int | Sequence[int]) -> list[RoutedCommand]:
        """Settle a reservation, in each of its slots."""
        used = require_costs(actual)
        records = self.codec.records(token)
        if len(used) > 1 and 0 < sum(len(charges) for _, charges in records) != len(used):
            raise other_charges(len(used))
        return [
            self._settle((record,), [used[one] for one in charges] if len(used) > 1 else used)
            for record, charges in ((one.name, one.charges or range(len(used))) for one in records)
        ]

    def settle_each(self, settlements: Sequence[tuple[str, int]]) -> list[RoutedCommand]:
        """Settle several reservations, those of a slot in one call."""
        by_slot: dict[int, list[tuple[bytes, int]]] = {}
        for token, actual in settlements:
            (used,) = require_costs(actual)
            for name, _ in self.codec.records(token):
                slot = slot_of(name) if self.clustered else 0
                by_slot.setdefault(slot, []).append((name, used))
        return [
            self._settle(tuple(name for name, _ in some), [used for _, used in some])
            for some in by_slot.values()
        ]

    def settled(self, replies: Sequence[object], actual: int | Sequence[int]) -> bool:
        """The result of `settle`, from its replies."""
        if [-1] in replies:
            raise other_charges(len(require_costs(actual)))
        return all(reply == [1] for reply in replies)

    def withdraw(self, request: ChargeSet) -> list[RoutedCommand]:
        """Give back what a request has reserved, in any slot; if it is still in flight, its name will be taken."""
        keys, token = self.codec.keys, request.token
        if token is None or not request.reserve_us:
            return []
        groups = groups_of(request, keys.tag) if self.clustered else []
        if len(groups) < 2:
            records = [keys.reservation(keys.tag(request.charges[0].key), token)]
        else:
            tags = [keys.tag(group.request.charges[0].key) for group in groups]
            records = [
                keys.reservation(tag, one.name) for tag, one in zip(tags, groups, strict=True)
            ]
        return [self._settle((record,), (0,), REFUSE_US) for record in records]

    def _settle(
        self, records: tuple[bytes, ...], used: Sequence[int], refuse_us: int = 0
    ) -> RoutedCommand:
        body = self.codec.head() + struct.pack(f"<{len(used) + 1}d", refuse_us, *used)
        return self._call("settle", records, body)

    def leave_line(self, decision: Decision) -> RoutedCommand | None:
        """Give back a place in line; `None` if the decision has none."""
        key, limit, context = decision.key, decision.limited_by, decision.context
        if context.mark is None or not isinstance(limit, TokenBucket):
            return None
        body = self.codec.head() + struct.pack("<d", context.mark) + self.codec.rule(limit)
        name = self.codec.state_name(key, limit, context.rule)
        return self._call("leave_line", (name,), body)

    def slots(
        self, key: str, limit: Limit, token: str, rule: str | None, *, renew: bool
    ) -> RoutedCommand:
        """Renew or release what a token holds."""
        assert isinstance(limit, Concurrency)
        body = self.codec.head() + bytes((renew,)) + self.codec.rule(limit)
        name = self.codec.state_name(key, limit, rule)
        return self._call("slots", (name, self.codec.keys.beside(name)), body, token.encode())

    def usage(
        self, key: str, limit: Limit, rule: str | None, now_us: int | None = None
    ) -> RoutedCommand:
        """Read what a key has used."""
        name = self.codec.state_name(key, limit, rule)
        return self._usages([(name, limit)], now_us)

    def read_usage(self, reply: Reply, key: str) -> Usage | None:
        """What a key has used; `None` if the calendar has to be sent again."""
        (usage,) = self.codec.usages(reply, 1)
        if usage == NOT_OURS:
            raise not_ours(key)
        return usage if isinstance(usage, Usage) else None

    def reset(self, key: str, limit: Limit, rule: str | None) -> RoutedCommand:
        """Forget a key, its line, and its reservations."""
        return self._call("reset", (self.codec.state_name(key, limit, rule),), b"")

    def listing(self, prefix: str, cursor: str, most: int, nodes: int) -> Listing:
        """List the keys of this many servers, page by page; never all at once.

        The cursor holds the server and its SCAN cursor. A page ends with a reply of SCAN, so that nothing is lost in
        between; only if a single bucket of the server's table holds more than a page does the cursor also hold the
        names already returned. A page also ends after `MAX_SCANS` calls, however few keys were found.
        """
        place = Place.parse(cursor)
        count = SCAN_COUNT
        entries: list[KeyEntry] = []
        for _ in range(MAX_SCANS):
            if place.node >= nodes or len(entries) >= most:
                break
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
        return KeyPage(entries, str(place) if place.node < nodes else "")

    def _unseen(
        self, names: Sequence[bytes], prefix: str, place: Place
    ) -> list[tuple[bytes, ParsedKey]]:
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

    def _described(self, name: bytes) -> ParsedKey | None:
        """Parse a state's name, if it is of this namespace and of a known kind of limit."""
        parsed = self.codec.keys.parse(name)
        if parsed is None:
            return None
        rule, identity, key = parsed
        try:
            limit = limit_of_identity(identity)
        except (LookupError, ValueError, HeadgateError):
            return None
        return ParsedKey(rule, limit, key, hashed=self.codec.keys.is_hashed(name))

    def _entries(self, names: Sequence[tuple[bytes, ParsedKey]]) -> RoutedSteps[list[KeyEntry]]:
        """Entries for the states in use, by the limits that they were last counted with."""
        by_slot: dict[int, list[tuple[bytes, ParsedKey]]] = {}
        for name, described in names:
            slot = slot_of(name) if self.clustered else 0
            by_slot.setdefault(slot, []).append((name, described))
        entries: list[KeyEntry] = []
        for group in by_slot.values():
            for start in range(0, len(group), MAX_RULES):
                entries += yield from self._entries_of_one_slot(group[start : start + MAX_RULES])
        return entries

    def _entries_of_one_slot(
        self, names: Sequence[tuple[bytes, ParsedKey]]
    ) -> RoutedSteps[list[KeyEntry]]:
        stored = yield self._stored_limits(names)
        known = [
            (name, described._replace(limit=sized(described.limit, number)))
            for (name, described), number in zip(names, stored, strict=True)
            if number >= 0
        ]
        entries: list[KeyEntry] = []
        now_us = None
        for _ in range(STALE_TRIES):
            reply = yield self._usages([(name, one.limit) for name, one in known], now_us)
            usages = self.codec.usages(reply, len(known))
            entries += [
                one.entry(usage, reply[0])
                for (_, one), usage in zip(known, usages, strict=True)
                if isinstance(usage, Usage) and usage.answer[3]
            ]
            now_us = reply[0]
            known = [one for one, usage in zip(known, usages, strict=True) if usage == STALE]
            if not known:
                return entries
        raise clock_keeps_jumping()

    def _stored_limits(self, names: Sequence[tuple[bytes, ParsedKey]]) -> RoutedCommand:
        codes = bytes(ALGORITHMS.index(one.limit.name) + 1 for _, one in names)
        called = script("limits")
        keys = [name for name, _ in names]
        slot = slot_of(keys[0]) if self.clustered else 0
        return RoutedCommand((*self.dialect.words(called), len(keys), *keys, codes), slot, called)

    def _usages(self, states: Sequence[tuple[bytes, Limit]], now_us: int | None) -> RoutedCommand:
        command = self.codec.usage_command(self.dialect.words(self._decide), states, now_us)
        slot = slot_of(states[0][0]) if self.clustered else 0
        return RoutedCommand(tuple(command), slot, self._decide)

    def _call(
        self, name: str, keys: tuple[bytes, ...], body: bytes, *texts: bytes
    ) -> RoutedCommand:
        called = script(name)
        slot = slot_of(keys[0]) if self.clustered else 0
        command = (*self.dialect.words(called), len(keys), *keys, body, *texts)
        return RoutedCommand(command, slot, called)

    def _chunks(
        self, pairs: list[tuple[int, PackedRequest | PlainRequest]]
    ) -> Iterator[list[tuple[int, PackedRequest | PlainRequest]]]:
        chunk: list[tuple[int, PackedRequest | PlainRequest]] = []
        rules: set[bytes] = set()
        for place, part in pairs:
            rules.update(part.rules)
            if chunk and (len(chunk) == self._max_batch or len(rules) > MAX_RULES):
                yield chunk
                chunk, rules = [], set(part.rules)
            chunk.append((place, part))
        yield chunk
