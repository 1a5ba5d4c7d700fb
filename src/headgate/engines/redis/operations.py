"""Operations: every verb of the engine contract as errands to run and replies to read. No I/O here.

The two shells (`sync.py`, `aio.py`) only run errands; what is asked and what the answer means is decided here, once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...algorithms import Concurrency, TokenBucket, limit_of_identity
from ...charge import require_cost, require_key
from ..base import Entry
from .carry import Errand
from .codec import MAX_RULES, NUMBERS_PER_STEP, Codec, Part, Plain, Reply
from .keys import slot_of
from .scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...algorithms import Limit
    from ...charge import Request
    from ...decision import Decision
    from ..base import Usage

SCAN_COUNT: Final = 500
STRING_FIELDS: Final = {
    "fixed_window": 2,
    "sliding_window": 3,
    "token_bucket": 2,
    "exponential_backoff": 6,
    "adaptive": 11,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that travel together, and their places in the caller's list."""

    errand: Errand
    parts: list[Part | Plain]
    places: list[int]


class Operations:
    """The engine's verbs, for one namespace."""

    def __init__(self, codec: Codec, max_batch: int) -> None:
        self.codec = codec
        self.clustered = codec.keys.clustered
        self._max_batch = max_batch
        self._decide = script("decide")

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

    def errand(self, slot: int, parts: Sequence[Part | Plain]) -> Errand:
        """One call that decides these requests."""
        command = self.codec.command(self._decide.sha, parts)
        return Errand(tuple(command), slot, self._decide)

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
        names = [self.codec.record_name(one) for one in token.split(",")]
        return [self._call("settle", name, body) for name in names]

    def leave_line(self, decision: Decision) -> Errand | None:
        """Give a place in line back; nothing to do for who has none."""
        key, limit, _, context = decision
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
        return self._call("decide", name, self.codec.usage_body(limit, now_us))

    def read_usage(self, reply: Reply) -> Usage | None:
        """What a key has used; `None` when the calendar has to be sent again."""
        return self.codec.usage(reply)

    def reset(self, key: str, limit: Limit, rule: str | None) -> Errand:
        """Forget a key, and the line in front of it."""
        require_key(key)
        name = self.codec.state_name(key, limit, rule)
        line = b"hg:l" + name[4:]
        return Errand((b"DEL", name, line), slot_of(name) if self.clustered else 0)

    def scan(self, prefix: str, cursor: bytes, count: int) -> tuple[Any, ...]:
        """Look for keys, some at a time; never all at once."""
        pattern = self.codec.keys.pattern(prefix)
        return (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", max(count, SCAN_COUNT))

    def matching(self, names: Sequence[bytes], prefix: str) -> list[bytes]:
        """Those whose key begins with `prefix`: a pattern cannot tell where a key begins."""
        parsed = [(name, self.codec.keys.parse(name)) for name in names]
        return [name for name, parts in parsed if parts is not None and parts[2].startswith(prefix)]

    def stored_limit(self, name: bytes, algorithm: str) -> Errand:
        """Read back the limit that a state was last counted with."""
        slot = slot_of(name) if self.clustered else 0
        if algorithm in STRING_FIELDS:
            return Errand((b"GET", name), slot)
        if algorithm == "sliding_log":
            return Errand((b"ZSCORE", name, b"l"), slot)
        return Errand((b"HGET", name, b"limit"), slot)

    def described(self, name: bytes) -> tuple[str | None, Limit, str] | None:
        """`(rule, limit, key)` that a state's name speaks of, if it is of this namespace."""
        parsed = self.codec.keys.parse(name)
        if parsed is None:
            return None
        rule, identity, key = parsed
        return rule, limit_of_identity(identity), key

    def usage_of(self, name: bytes, limit: Limit) -> Errand:
        """Ask what is used of a state that is known by its name."""
        return self._call("decide", name, self.codec.usage_body(limit))

    def entry(self, name: bytes, stored: Any, reply: Reply) -> Entry | None:
        """A key in use; `None` when it is idle by now."""
        described = self.described(name)
        if described is None or stored is None:
            return None
        rule, limit, key = described
        usage = self.codec.usage(reply)
        if usage is None or not usage.answer[3]:
            return None
        idle_at_us = reply[0] + usage.answer[3]
        return Entry(key, rule, limit.name, limit.window_us, usage.used, idle_at_us)

    def _call(self, name: str, key: bytes, body: bytes, *texts: bytes) -> Errand:
        called = script(name)
        slot = slot_of(key) if self.clustered else 0
        return Errand((b"EVALSHA", called.sha, 1, key, body, *texts), slot, called)

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
