"""What goes over the wire and back: requests to packed bytes, integers to decisions. No I/O here.

`lua/wire.lua`, `lua/take.lua` and `lua/decide.lua` are the other side. A limit's numbers are packed once and kept; the usual
check then costs its name, and any other one `struct.pack` and a join.
"""

from __future__ import annotations

import re
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
from ...decision import ENGINE, Context, Decision, Receipt, Source
from ...errors import EngineError, UsageError
from ..base import Usage, combined
from .failures import nonsense
from .scripts import ALGORITHMS
from .words import Starts, head_of_call, packed_word, plain_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...algorithms import Answer, Limit
    from .keys import KeyCodec
    from .scripts import Words

Reply: TypeAlias = list[int]

KINDS: Final = {Kind.TAKE: 0, Kind.PEEK: 1, Kind.FORCE: 2, Kind.SHADOW: 3}
USAGE: Final = 4
WAIT, RESERVE, TOKEN, LOOK = 1, 2, 4, 8
STALE, TAKEN, NOT_OURS = -1, -2, -3
NUMBERS_PER_STEP: Final = 5
""" Versions, if there are any, come after the numbers of all steps."""

_STEP: Final = struct.Struct("<BBd")
_HEAD: Final = struct.Struct("<dd")
_NUMBER: Final = struct.Struct("<d")

TEST_TTL_MS: Final = 600_000
SERVER_TIME: Final = _HEAD.pack(0, 0)
PLAIN: Final = [bytes((0, number)) for number in range(256)]
BETWEEN_TOKENS: Final = re.compile(r"(?<=\}),")
"""Full tokens end with a tag; a comma elsewhere belongs to the name."""
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


Witness: TypeAlias = "Callable[[Decision, Any], None]"
"""Is shown the decision, and what it gave along with the question, before whoever asked is told."""


class Form:
    """What all plain requests of one limit have in common."""

    __slots__ = ("context", "limit", "packed", "rules", "witness")

    def __init__(
        self, limit: Limit, rules: tuple[bytes], context: Context, witness: Witness | None
    ) -> None:
        self.limit = limit
        self.rules = rules
        self.context = context
        self.witness = witness
        self.packed = b"".join(map(packed_word, rules))


class Plain(tuple[str, bytes, Form, Any]):
    """The usual request on its way, one unit of one limit: key, packed name, form, and what its witness gave along.

    A tuple, because nothing is cheaper to make: the fast path reads it by place.
    """

    __slots__ = ()

    @property
    def keys(self) -> tuple[bytes]:
        """The name of its state."""
        return (plain_word(self[1]),)

    @property
    def rules(self) -> tuple[bytes]:
        """Its packed rule."""
        return self[2].rules

    @property
    def request(self) -> Request:
        """The request it stands for."""
        key, _, form, _ = self
        return Request((Charge(key, form.limit, rule=form.context.rule),))


@dataclass(slots=True)
class Part:
    """Any other request on its way: what it adds to a batch, and what is needed to read its answer."""

    request: Request
    keys: tuple[bytes, ...]
    rules: tuple[bytes, ...]
    """The packed rule of each step."""
    token: str | None = None
    """The name that a caller knows its reservation or its slots by."""
    holder: str | None = None
    """The name that it holds slots under; those of a reservation without a name have one of their own."""
    record: bytes | None = None
    """Where its reservation is kept."""
    look: bool = False
    """Whether only to say what would be answered, and to change nothing."""

    @property
    def steps(self) -> list[tuple[Charge, Limit]]:
        """The limits of the charges, in the order of their answers."""
        return [(charge, limit) for charge in self.request.charges for limit in charge.limits]


class Codec:
    """Packs requests and reads replies, for one engine and namespace."""

    def __init__(
        self,
        keys: KeyCodec,
        now_us: Callable[[], int],
        *,
        test_clock: bool,
        receipts: bool = False,
    ) -> None:
        self.keys = keys
        self._now_us = now_us
        self._test_clock = test_clock
        self._receipts = receipts
        self._flags = b"\1" if receipts else b"\0"
        self._usual = not (test_clock or receipts)
        self._rules: dict[Limit, bytes] = {}
        self._prefixes: dict[tuple[str, str | None], bytes] = {}

    def head(self) -> bytes:
        """What every packed argument begins with; a test clock also keeps states from expiring."""
        return _HEAD.pack(self._now_us(), TEST_TTL_MS) if self._test_clock else SERVER_TIME

    def state_name(self, key: str, limit: Limit, rule: str | None) -> bytes:
        """The name of a key's state."""
        require_key(key)
        return self.keys.state(self._prefix(limit, rule), key)

    def plain_maker(
        self, limit: Limit, rule: str | None, witness: Witness | None = None
    ) -> Callable[..., Plain]:
        """A function that makes the plain request of a key: the fast path, with everything at hand."""
        before, longest = self.keys.plain_before(self._prefix(limit, rule))
        context = ENGINE if rule is None else Context(rule=rule)
        form = Form(limit, (self.rule(limit),), context, witness)
        starts = Starts(before)

        def plain(key: str, given: Any = None) -> Plain:
            if type(key) is str and 0 < len(key) <= longest and key.isascii():
                return Plain((key, starts[len(key)] + key.encode() + b"\r\n", form, given))
            return Plain((key, packed_word(self.state_name(key, limit, rule)), form, given))

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
        return Part(request, names, rules, token, request.token, record, look)

    def take_command(self, words: Words, form: Form, names: Sequence[bytes]) -> list[Any]:
        """The call that takes one unit for each of these names; it begins with these words."""
        return [*words, len(names), *names, *form.rules, *self._unusual()]

    def packed_take(self, words: Words, form: Form, packed_names: Sequence[bytes]) -> bytes:
        """`take_command`, as it is sent."""
        if self._usual:
            head = head_of_call(words, len(packed_names), 1)
            return b"".join([head, *packed_names, form.packed])
        head = head_of_call(words, len(packed_names), 2)
        return b"".join([head, *packed_names, form.packed, *map(packed_word, self._unusual())])

    def _unusual(self) -> tuple[bytes, ...]:
        """Time and flags, where they are not the server's clock and none."""
        return () if self._usual else (self.head() + self._flags,)

    def command(self, words: Words, parts: Sequence[Part | Plain]) -> list[Any]:
        """The call that decides any batch; it begins with these words."""
        texts: list[bytes] = []
        rules: dict[bytes, int] = {}
        body = [self._packed_request(part, rules, texts) for part in parts]
        names = [name for part in parts for name in part.keys]
        packed = [
            self.head(),
            self._flags,
            bytes((len(rules),)),
            *rules,
            _NUMBER.pack(len(parts)),
            *body,
        ]
        return [*words, len(names), *names, b"".join(packed), *texts]

    def _packed_request(
        self, part: Part | Plain, rules: dict[bytes, int], texts: list[bytes]
    ) -> bytes:
        if isinstance(part, Plain):
            return PLAIN[rules.setdefault(part.rules[0], len(rules) + 1)]
        request = part.request
        options = (WAIT if request.wait_us else 0) | (RESERVE if request.reserve_us else 0)
        options |= LOOK if part.look else 0
        numbers = [_NUMBER.pack(one) for one in (request.wait_us, request.reserve_us) if one]
        if part.holder is not None:
            options |= TOKEN
            texts.append(part.holder.encode())
        if part.record is not None:
            texts.append(part.record)
        steps = [
            _STEP.pack(rules.setdefault(rule, len(rules) + 1), KINDS[charge.kind], charge.cost)
            for rule, (charge, _) in zip(part.rules, part.steps, strict=True)
        ]
        return b"".join([bytes((len(steps), options)), *numbers, *steps])

    def usage_command(
        self,
        words: Words,
        states: Sequence[tuple[bytes, Limit]],
        now_us: int | None = None,
    ) -> list[Any]:
        """The call that asks what is used of these states."""
        rules: dict[bytes, int] = {}
        body = [
            b"\1\0"
            + _STEP.pack(rules.setdefault(self.rule(limit, now_us), len(rules) + 1), USAGE, 1)
            for _, limit in states
        ]
        packed = [self.head(), b"\0", bytes((len(rules),)), *rules, _NUMBER.pack(len(body)), *body]
        names = [name for name, _ in states]
        return [*words, len(names), *names, b"".join(packed)]

    def check(self, reply: object, steps: int) -> None:
        """Refuse what cannot be the reply to a script of ours: wrong in kind, or in length."""
        _require_numbers(reply, 1 + (NUMBERS_PER_STEP + self._receipts) * steps)

    def plain_answers(self, reply: Reply, count: int) -> Iterable[Answer] | None:
        """The answers to so many plain requests, all at once; `None` when they are not all as usual."""
        self.check(reply, count)
        allowed = reply[1::NUMBERS_PER_STEP]
        if self._receipts or min(allowed) < 0:
            return None
        return zip(
            map(bool, allowed), reply[2::5], reply[3::5], reply[4::5], reply[5::5], strict=True
        )

    def plain_answer(self, reply: Reply) -> Answer | None:
        """The answer to one plain request; `None` when it is not as usual."""
        if self._receipts:
            self.check(reply, 1)
            return None
        try:
            _, allowed, remaining, retry_after_us, reset_after_us, level = reply
            total = sum(reply)
        except (TypeError, ValueError):
            raise nonsense(reply) from None
        if type(reply) is not list or type(total) is not int:  # Bytes are numbers, too.
            raise nonsense(reply)
        if allowed < 0:
            return None
        return allowed == 1, remaining, retry_after_us, reset_after_us, level

    def decision(self, part: Part | Plain, reply: Reply, at: int) -> Decision | None:
        """Read a request's share of a reply; `None` when its calendar was out of date."""
        if type(part) is Plain:
            key, _, form, _ = part
            allowed, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
            if allowed < 0:
                _require_decided(part, allowed)
                return None
            answer = (allowed == 1, remaining, retry_after_us, reset_after_us, level)
            context = form.context
            if self._receipts:
                context = context._replace(receipt=_receipt(reply, at))
            return Decision(key, form.limit, answer, context)
        assert isinstance(part, Part)
        first = reply[at]
        if first < 0:
            _require_decided(part, first)
            return None
        request = part.request
        waiting = bool(request.wait_us) and first == 1 and reply[at + 2] > 0
        places = range(at, at + NUMBERS_PER_STEP * len(part.keys), NUMBERS_PER_STEP)
        decisions = [
            _decision(
                charge, limit, reply, place,
                waiting=waiting, receipt=_receipt(reply, place) if self._receipts else None,
            )
            for place, (charge, limit) in zip(places, part.steps, strict=True)
        ]  # fmt: skip
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

    def record_names(self, token: str) -> list[bytes]:
        """The names of the records that a full token speaks of: on Cluster there may be one in each of several slots."""
        if not self.keys.clustered:
            return [self.keys.reservation(b"", token)]
        parts = [one.rpartition("@") for one in BETWEEN_TOKENS.split(token)]
        return [self.keys.reservation(tag.encode(), name) for name, _, tag in parts]

    def usages(self, reply: Reply, steps: int) -> list[Usage | int]:
        """Read the answer to `usage_command`; where there is no usage, why: `STALE` or `NOT_OURS`."""
        _require_numbers(reply, 1 + NUMBERS_PER_STEP * steps)
        usages: list[Usage | int] = []
        for at in range(1, len(reply), NUMBERS_PER_STEP):
            used, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
            answer = (retry_after_us == 0, remaining, retry_after_us, reset_after_us, level)
            usages.append(used if used < 0 else Usage(used, answer))
        return usages


def form_of(parts: Sequence[Part | Plain]) -> Form | None:
    """The form of requests that are all plain and of one limit; `None` for any others."""
    first = parts[0]
    if type(first) is not Plain:
        return None
    form = first[2]
    for part in parts:
        if type(part) is not Plain or part[2] is not form:
            return None
    return form


def not_ours(key: str) -> EngineError:
    """Somebody else has written where a state should be."""
    return EngineError(
        f"the state of {key!r} is not one of ours: something else wrote to its place in redis; "
        "reset the key to begin anew",
        transient=False,
    )


def _require_numbers(reply: object, count: int) -> None:
    if type(reply) is list and len(reply) == count:
        try:
            total = sum(reply)  # Cheaper than to ask each one whether it is a whole number.
        except TypeError:
            raise nonsense(reply) from None
        if type(total) is int:
            return
    raise nonsense(reply)


def _require_decided(part: Part | Plain, why: int) -> None:
    """Raise what kept a request from being decided; a calendar that is out of date is no failure."""
    if why == TAKEN and isinstance(part, Part):
        raise UsageError(f"the reservation {part.token!r} is open already; settle it first")
    if why == NOT_OURS:
        raise not_ours(" or ".join(dict.fromkeys(one.key for one in part.request.charges)))


def _receipt(reply: Reply, at: int) -> Receipt | None:
    """The receipt of the step whose numbers are at `at`; none where the version was not kept."""
    steps = len(reply) // (NUMBERS_PER_STEP + 1)
    version = reply[1 + NUMBERS_PER_STEP * steps + (at - 1) // NUMBERS_PER_STEP]
    return Receipt(version, reply[0]) if version else None


def _packed_rule(limit: Limit, now_us: int) -> bytes:
    numbers = numbers_of(limit, now_us)
    code = ALGORITHMS.index(limit.name) + 1
    return struct.pack(f"<B{len(numbers)}d", code, *numbers)


def _decision(
    charge: Charge, limit: Limit, reply: Reply, at: int, *, waiting: bool, receipt: Receipt | None
) -> Decision:
    allowed, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
    if waiting:
        level = 0  # It is the backlog of the place in line.
    answer: Answer = (allowed == 1, remaining, retry_after_us, reset_after_us, level)
    context = ENGINE
    if charge.rule is not None or charge.kind is Kind.SHADOW or receipt is not None:
        source: Source = "shadow" if charge.kind is Kind.SHADOW else "engine"
        context = Context(source, rule=charge.rule, receipt=receipt)
    return Decision(charge.key, limit, answer, context)
