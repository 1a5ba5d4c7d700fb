"""What goes over the wire and back: requests to packed bytes, integers to decisions. No I/O here.

`lua/wire.lua` and `lua/decide.lua` are the other side. A limit's numbers are packed once and kept; a check then costs
one `struct.pack` and a join.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...algorithms import (
    Adaptive,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from ...algorithms.adaptive import CANDIDATES
from ...charge import Charge, Kind, Request, require_key
from ...decision import ENGINE, Context, Decision, Source
from ...errors import UsageError
from ..base import Usage, combined
from .failures import nonsense
from .scripts import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...algorithms import Answer, Limit
    from .keys import KeyCodec

Reply: TypeAlias = list[int]

KINDS: Final = {Kind.TAKE: 0, Kind.PEEK: 1, Kind.FORCE: 2, Kind.SHADOW: 3}
USAGE: Final = 4
WAIT, RESERVE, TOKEN, LOOK = 1, 2, 4, 8
STALE, TAKEN = -1, -2
NUMBERS_PER_STEP: Final = 5

_STEP: Final = struct.Struct("<BBd")
_HEAD: Final = struct.Struct("<dd")
_NUMBER: Final = struct.Struct("<d")

TEST_TTL_MS: Final = 600_000
SERVER_TIME: Final = _HEAD.pack(0, 0)
PLAIN: Final = [bytes((0, number)) for number in range(256)]
MAX_RULES: Final = 255
""" How many different limits one batch may hold: their number is a byte."""


def numbers_of(limit: Limit, now_us: int) -> tuple[int, ...]:  # noqa: PLR0911 - one for each algorithm
    """A limit as its Lua twin reads it; only calendars need to know what time it is."""
    match limit:
        case CalendarWindow():
            start_us, end_us = limit.bounds_us(now_us)
            return limit.limit, start_us, end_us, limit.calendar.bounds_us(end_us)[1]
        case FixedWindow():
            return limit.limit, 0, limit.window_us, 0
        case SlidingWindow():
            return limit.limit, limit.window_us, limit.step_us, limit.steps
        case SlidingLog():
            return limit.limit, limit.window_us
        case TokenBucket():
            return limit.limit, limit.burst, limit.emission
        case ExponentialBackoff():
            levels = (limit.denials_per_level, limit.max_level, limit.retry_us)
            return limit.limit, limit.window_us, *levels
        case Adaptive():
            parts = [number for one in limit.candidates for number in numbers_of(one, now_us)]
            return limit.limit, *parts, CANDIDATES.index(limit.chosen) + 1
        case Concurrency():
            return limit.limit, limit.ttl_us
    raise UsageError(f"the redis engine does not know how to count {limit!r}")


class Plain:
    """The usual request on its way, one unit of one limit: cheap to make, and two bytes on the wire."""

    __slots__ = ("context", "key", "keys", "limit", "rules")

    def __init__(
        self,
        key: str,
        keys: tuple[bytes],
        rules: tuple[bytes],
        limit: Limit,
        context: Context,
    ) -> None:
        self.key = key
        self.keys = keys
        self.rules = rules
        self.limit = limit
        self.context = context

    @property
    def request(self) -> Request:
        """The request it stands for."""
        return Request((Charge(self.key, self.limit, rule=self.context.rule),))


@dataclass(slots=True)
class Part:
    """Any other request on its way: what it adds to a batch, and what is needed to read its answer."""

    request: Request
    keys: tuple[bytes, ...]
    rules: tuple[bytes, ...]
    """The packed rule of each step."""
    token: str | None = None
    record: bytes | None = None
    """The name of its reservation."""
    look: bool = False
    """Whether only to say what would be answered, and to change nothing."""

    @property
    def steps(self) -> list[tuple[Charge, Limit]]:
        """The limits of the charges, in the order of their answers."""
        return [(charge, limit) for charge in self.request.charges for limit in charge.limits]


class Codec:
    """Packs requests and reads replies, for one engine and namespace."""

    def __init__(self, keys: KeyCodec, now_us: Callable[[], int], *, test_clock: bool) -> None:
        self.keys = keys
        self._now_us = now_us
        self._test_clock = test_clock
        self._rules: dict[Limit, bytes] = {}
        self._prefixes: dict[tuple[str, str | None], bytes] = {}

    def head(self) -> bytes:
        """What every packed argument begins with; a test clock also keeps states from expiring."""
        return _HEAD.pack(self._now_us(), TEST_TTL_MS) if self._test_clock else SERVER_TIME

    def state_name(self, key: str, limit: Limit, rule: str | None) -> bytes:
        """The name of a key's state."""
        require_key(key)
        return self.keys.state(self._prefix(limit, rule), key)

    def plain_maker(self, limit: Limit, rule: str | None) -> Callable[[str], Plain]:
        """A function that makes the plain request of a key: the fast path, with everything at hand."""
        name = self.keys.state
        prefix = self._prefix(limit, rule)
        rules = (self.rule(limit),)
        context = ENGINE if rule is None else Context(rule=rule)

        def plain(key: str) -> Plain:
            require_key(key)
            return Plain(key, (name(prefix, key),), rules, limit, context)

        return plain

    def _prefix(self, limit: Limit, rule: str | None) -> bytes:
        prefix = self._prefixes.get((limit.identity, rule))
        if prefix is None:
            prefix = self._prefixes[limit.identity, rule] = self.keys.state_prefix(limit, rule)
        return prefix

    def rule(self, limit: Limit, now_us: int | None = None) -> bytes:
        """A limit's algorithm and numbers, packed."""
        if isinstance(limit, CalendarWindow):
            return _packed_rule(limit, self._now_us() if now_us is None else now_us)
        packed = self._rules.get(limit)
        if packed is None:
            packed = self._rules[limit] = _packed_rule(limit, 0)
        return packed

    def part(self, request: Request, now_us: int | None = None, *, look: bool = False) -> Part:
        """Name and pack what one request needs; `now_us` is the store's time, if it is known better."""
        steps = [(charge, limit) for charge in request.charges for limit in charge.limits]
        names = tuple(self.state_name(charge.key, limit, charge.rule) for charge, limit in steps)
        rules = tuple(self.rule(limit, now_us) for _, limit in steps)
        token = request.token or (secrets.token_hex(16) if request.reserve_us else None)
        record = None
        if request.reserve_us and token is not None:
            record = self.keys.reservation(self.keys.tag(request.charges[0].key), token)
        return Part(request, names, rules, token, record, look)

    def command(self, sha: bytes, parts: Sequence[Part | Plain]) -> list[Any]:
        """The EVALSHA of a batch."""
        names: list[bytes] = []
        texts: list[bytes] = []
        rules: dict[bytes, int] = {}
        body = []
        for part in parts:
            names += part.keys
            if type(part) is Plain:
                rule = part.rules[0]
                number = rules.get(rule) or rules.setdefault(rule, len(rules) + 1)
                body.append(PLAIN[number])
            else:
                assert isinstance(part, Part)
                body.append(self._packed_request(part, rules, texts))
        packed = [self.head(), bytes((len(rules),)), *rules, _NUMBER.pack(len(parts)), *body]
        return [b"EVALSHA", sha, len(names), *names, b"".join(packed), *texts]

    def _packed_request(self, part: Part, rules: dict[bytes, int], texts: list[bytes]) -> bytes:
        request = part.request
        options = (WAIT if request.wait_us else 0) | (RESERVE if request.reserve_us else 0)
        options |= LOOK if part.look else 0
        numbers = [_NUMBER.pack(one) for one in (request.wait_us, request.reserve_us) if one]
        if part.token is not None:
            options |= TOKEN
            texts.append(part.token.encode())
            if part.record is not None:
                texts.append(part.record)
        steps = [
            _STEP.pack(rules.setdefault(rule, len(rules) + 1), KINDS[charge.kind], charge.cost)
            for rule, (charge, _) in zip(part.rules, part.steps, strict=True)
        ]
        return b"".join([bytes((len(steps), options)), *numbers, *steps])

    def usage_body(self, limit: Limit, now_us: int | None = None) -> bytes:
        """The packed argument that asks what is used."""
        rule = self.rule(limit, now_us)
        step = _STEP.pack(1, USAGE, 1)
        return b"".join([self.head(), b"\1", rule, _NUMBER.pack(1), b"\1\0", step])

    def check(self, reply: object, steps: int) -> None:
        """Refuse what cannot be the reply to a script of ours: wrong in kind, or in length."""
        if type(reply) is list and len(reply) == 1 + NUMBERS_PER_STEP * steps:
            try:
                sum(reply)  # Cheaper than to ask each one whether it is a number.
            except TypeError:
                raise nonsense(reply) from None
            return
        raise nonsense(reply)

    def decision(self, part: Part | Plain, reply: Reply, at: int) -> Decision | None:
        """Read a request's share of a reply; `None` when its calendar was out of date."""
        if type(part) is Plain:
            allowed, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
            if allowed == STALE:
                return None
            answer = (allowed == 1, remaining, retry_after_us, reset_after_us, level)
            return Decision((part.key, part.limit, answer, part.context))
        assert isinstance(part, Part)
        first = reply[at]
        if first == STALE:
            return None
        if first == TAKEN:
            raise UsageError(f"the reservation {part.token!r} is open already; settle it first")
        request = part.request
        waiting = bool(request.wait_us) and first == 1 and reply[at + 2] > 0
        decisions = [
            _decision(charge, limit, reply, at + number * NUMBERS_PER_STEP, waiting=waiting)
            for number, (charge, limit) in enumerate(part.steps)
        ]
        if waiting:
            return combined(decisions, mark=(reply[0], reply[at + 4], request.charges[0].cost))
        denied = any(not one and one.source != "shadow" for one in decisions)
        if part.token is not None and not denied:
            return combined(decisions, token=self.full_token(part))
        return combined(decisions)

    def full_token(self, part: Part) -> str | None:
        """The name a caller settles by: on Cluster it also says where the record is."""
        if part.token is None or not part.request.reserve_us or not self.keys.clustered:
            return part.token
        return f"{part.token}@{self.keys.tag(part.request.charges[0].key).decode()}"

    def record_name(self, token: str) -> bytes:
        """The name of the record that a full token speaks of."""
        name, _, tag = token.rpartition("@") if self.keys.clustered else (token, "", "")
        return self.keys.reservation(tag.encode(), name)

    def usage(self, reply: Reply) -> Usage | None:
        """Read the answer to `usage_body`; `None` when its calendar was out of date."""
        self.check(reply, 1)
        used, remaining, retry_after_us, reset_after_us, level = reply[1:6]
        if used == STALE:
            return None
        return Usage(used, (retry_after_us == 0, remaining, retry_after_us, reset_after_us, level))


def _packed_rule(limit: Limit, now_us: int) -> bytes:
    numbers = numbers_of(limit, now_us)
    code = ALGORITHMS.index(limit.name) + 1
    return struct.pack(f"<B{len(numbers)}d", code, *numbers)


def _decision(charge: Charge, limit: Limit, reply: Reply, at: int, *, waiting: bool) -> Decision:
    allowed, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
    if waiting:
        level = 0  # It is the backlog of the place in line.
    answer: Answer = (allowed == 1, remaining, retry_after_us, reset_after_us, level)
    context = ENGINE
    if charge.rule is not None or charge.kind is Kind.SHADOW:
        source: Source = "shadow" if charge.kind is Kind.SHADOW else "engine"
        context = Context(source, rule=charge.rule)
    return Decision((charge.key, limit, answer, context))
