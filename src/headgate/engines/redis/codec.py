"""The wire format: packs requests into bytes, and reads decisions from integers. No I/O here.

`lua/wire.lua`, `lua/take.lua` and `lua/decide.lua` are the other side. A limit's numbers are packed once and cached.
After that, a plain check costs only its name, and any other a `struct.pack` and a join.
"""

from __future__ import annotations

import re
import secrets
import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...algorithms import CalendarWindow, Concurrency
from ...charge import PastCharge, require_key
from ...charge_kind import ChargeKind
from ...decision import ENGINE, Context, Decision, Receipt, Source
from ...errors import EngineError, UsageError
from ..base import Usage, combined
from .cross_slot import charges_of
from .failures import unexpected_reply
from .limit_numbers import packed_limit
from .packed_requests import PackedRequest, PlainRequest, PlainTemplate, ReservationRecord
from .packing import BulkPrefixes, head_of_call, packed_bulk, packed_command, unpacked_bulk
from .scripts import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...algorithms import Answer, Limit
    from ...charge import Charge, ChargeSet
    from ..base import Hooks
    from .keys import KeyCodec
    from .scripts import Words

Reply: TypeAlias = list[int]

KINDS: Final = {ChargeKind.TAKE: 0, ChargeKind.PEEK: 1, ChargeKind.FORCE: 2, ChargeKind.SHADOW: 3}
USAGE: Final = 4
PAST: Final = 5
"""A forced charge as of an earlier moment, which follows the cost."""
WAIT, RESERVE, TOKEN, LOOK = 1, 2, 4, 8
STALE, TAKEN, NOT_OURS, NOT_CHARGED, UNKNOWN = -1, -2, -3, -4, -5
"""Codes instead of an answer. The last two come only from nodes, whose store did not answer."""
NUMBERS_PER_STEP: Final = 5
"""Versions, if any, come after the numbers of all steps."""

_STEP: Final = struct.Struct("<BBd")
_HEAD: Final = struct.Struct("<dd")
_NUMBER: Final = struct.Struct("<d")
_RESERVED: Final = struct.Struct("<BBd")

TEST_TTL_MS: Final = 600_000
SERVER_TIME: Final = _HEAD.pack(0, 0)
PLAIN: Final = [bytes((0, number)) for number in range(256)]
BETWEEN_TOKENS: Final = re.compile(r"(?<=\}),")
"""Full tokens end with a tag; any other comma is part of the name."""
MAX_KNOWN: Final = 4_096
"""How many packed limits and name prefixes are cached: callers may use any number."""
SLOTS: Final = ALGORITHMS.index(Concurrency.name) + 1
"""The first number of a packed limit of slots."""
MAX_RULES: Final = 255
"""How many different limits a batch may have: their number is a byte."""


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
        """The start of every packed argument; with a test clock, states also do not expire."""
        return _HEAD.pack(self._now_us(), TEST_TTL_MS) if self._test_clock else SERVER_TIME

    def state_name(self, key: str, limit: Limit, rule: str | None) -> bytes:
        """The name of a key's state."""
        require_key(key)
        return self.keys.state(self._prefix(limit, rule), key)

    def plain_maker(
        self, limit: Limit, rule: str | None, hooks: Hooks | None = None
    ) -> Callable[..., PlainRequest]:
        """A function that creates the plain request of a key: the fast path, with everything precomputed."""
        before, longest = self.keys.plain_before(self._prefix(limit, rule))
        context = ENGINE if rule is None else Context(rule=rule)
        form = PlainTemplate(limit, (self.rule(limit),), context, hooks)
        starts = BulkPrefixes(before)

        def plain(key: str, ticket: Any = None) -> PlainRequest:
            if type(key) is str and 0 < (length := len(key)) <= longest and key.isascii():
                return PlainRequest((key, starts[length] + key.encode() + b"\r\n", form, ticket))
            return PlainRequest((key, packed_bulk(self.state_name(key, limit, rule)), form, ticket))

        return plain

    def _prefix(self, limit: Limit, rule: str | None) -> bytes:
        prefix = self._prefixes.get((limit.identity, rule))
        if prefix is None:
            if len(self._prefixes) >= MAX_KNOWN:
                self._prefixes.clear()
            prefix = self._prefixes[limit.identity, rule] = self.keys.state_prefix(limit, rule)
        return prefix

    def rule(self, limit: Limit, now_us: int | None = None) -> bytes:
        """A limit's algorithm and numbers, packed."""
        if isinstance(limit, CalendarWindow):
            return packed_limit(limit, self._now_us() if now_us is None else now_us)
        packed = self._rules.get(limit)
        if packed is None:
            if len(self._rules) >= MAX_KNOWN:
                self._rules.clear()
            packed = self._rules[limit] = packed_limit(limit, 0)
        return packed

    def part(
        self,
        request: ChargeSet,
        now_us: int | None = None,
        *,
        look: bool = False,
        name: str | None = None,
    ) -> PackedRequest:
        """Pack one request. `now_us` is the store's time if it is known, `name` the name of its reservation."""
        names: list[bytes] = []
        rules: list[bytes] = []
        for charge in request.charges:
            for limit in charge.limits:
                names.append(self.state_name(charge.key, limit, charge.rule))
                rules.append(self.rule(limit, now_us))
        token = name or request.token or (secrets.token_hex(16) if request.reserve_us else None)
        record = None
        if request.reserve_us and token is not None:
            record = self.keys.reservation(self.keys.tag(request.charges[0].key), token)
        holder = None if request.reserve_us else request.token
        return PackedRequest(request, tuple(names), tuple(rules), token, holder, record, look)

    def take_command(self, words: Words, form: PlainTemplate, names: Sequence[bytes]) -> list[Any]:
        """The call that takes one unit for each of these names, starting with these words."""
        keys = self._with_beside([(name, form.rules[0]) for name in names])
        return [*words, len(keys), *keys, *form.rules, *self._unusual()]

    def packed_take(
        self, words: Words, form: PlainTemplate, packed_names: Sequence[bytes]
    ) -> bytes:
        """`take_command`, packed."""
        if form.rules[0][0] == SLOTS:
            return packed_command(
                self.take_command(words, form, [*map(unpacked_bulk, packed_names)])
            )
        if self._usual:
            head = head_of_call(words, len(packed_names), 1)
            return b"".join([head, *packed_names, form.packed])
        head = head_of_call(words, len(packed_names), 2)
        return b"".join([head, *packed_names, form.packed, *map(packed_bulk, self._unusual())])

    def _unusual(self) -> tuple[bytes, ...]:
        """Time and flags, unless they are the defaults: the server's clock, and no flags."""
        return () if self._usual else (self.head() + self._flags,)

    def command(self, words: Words, parts: Sequence[PackedRequest | PlainRequest]) -> list[Any]:
        """The call that decides any batch, starting with these words."""
        texts: list[bytes] = []
        rules: dict[bytes, int] = {}
        body = [self._packed_request(part, rules, texts) for part in parts]
        keys = self._with_beside(
            [pair for part in parts for pair in zip(part.keys, part.rules, strict=True)]
        )
        packed = [
            self.head(),
            self._flags,
            bytes((len(rules),)),
            *rules,
            _NUMBER.pack(len(parts)),
            *body,
        ]
        return [*words, len(keys), *keys, b"".join(packed), *texts]

    def _with_beside(self, steps: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """The keys of a call: the state of each step, then the extra keys of slots."""
        states = [name for name, _ in steps]
        return states + [self.keys.beside(name) for name, rule in steps if rule[0] == SLOTS]

    def _packed_request(
        self, part: PackedRequest | PlainRequest, rules: dict[bytes, int], texts: list[bytes]
    ) -> bytes:
        if isinstance(part, PlainRequest):
            return PLAIN[rules.setdefault(part.rules[0], len(rules) + 1)]
        request = part.request
        if part.record is not None and len(part.rules) == 1 and not (request.wait_us or part.look):
            return _packed_reservation(part, rules, texts)
        options = (WAIT if request.wait_us else 0) | (RESERVE if request.reserve_us else 0)
        options |= LOOK if part.look else 0
        numbers = [_NUMBER.pack(one) for one in (request.wait_us, request.reserve_us) if one]
        if part.holder is not None:
            options |= TOKEN
            texts.append(part.holder.encode())
        if part.record is not None:
            texts.append(part.record)
        packed = [bytes((len(part.rules), options)), *numbers]
        its_rules = iter(part.rules)
        for number, charge in enumerate(request.charges, 1):
            for rule in islice(its_rules, len(charge.limits)):
                packed.append(_packed_step(rules.setdefault(rule, len(rules) + 1), charge))
                if request.reserve_us:
                    packed.append(bytes((number,)))
        return b"".join(packed)

    def usage_command(
        self,
        words: Words,
        states: Sequence[tuple[bytes, Limit]],
        now_us: int | None = None,
    ) -> list[Any]:
        """The call that reads the usage of these states."""
        rules: dict[bytes, int] = {}
        body = [
            b"\1\0"
            + _STEP.pack(rules.setdefault(self.rule(limit, now_us), len(rules) + 1), USAGE, 1)
            for _, limit in states
        ]
        packed = [self.head(), b"\0", bytes((len(rules),)), *rules, _NUMBER.pack(len(body)), *body]
        keys = self._with_beside([(name, self.rule(limit, now_us)) for name, limit in states])
        return [*words, len(keys), *keys, b"".join(packed)]

    def check(self, reply: object, steps: int) -> None:
        """Refuse a reply that cannot come from our scripts: wrong type or wrong length."""
        _require_numbers(reply, 1 + (NUMBERS_PER_STEP + self._receipts) * steps)

    def plain_answers(self, reply: Reply, count: int) -> Iterable[Answer] | None:
        """The answers to `count` plain requests at once; `None` if any of them is unusual."""
        self.check(reply, count)
        allowed = reply[1::NUMBERS_PER_STEP]
        if self._receipts or min(allowed) < 0:
            return None
        return zip(
            map(bool, allowed), reply[2::5], reply[3::5], reply[4::5], reply[5::5], strict=True
        )

    def plain_answer(self, reply: Reply) -> Answer | None:
        """The answer to one plain request; `None` if it is unusual."""
        if self._receipts:
            self.check(reply, 1)
            return None
        try:
            _, allowed, remaining, retry_after_us, reset_after_us, level = reply
            total = sum(reply)
        except (TypeError, ValueError):
            raise unexpected_reply(reply) from None
        if type(reply) is not list or type(total) is not int:  # Bytes would also sum up.
            raise unexpected_reply(reply)
        if allowed < 0:
            return None
        return allowed == 1, remaining, retry_after_us, reset_after_us, level

    def decision(
        self, part: PackedRequest | PlainRequest, reply: Reply, at: int
    ) -> Decision | None:
        """Read one request's part of a reply; `None` if its calendar was out of date."""
        if type(part) is PlainRequest:
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
        assert isinstance(part, PackedRequest)
        first = reply[at]
        if first < 0:
            _require_decided(part, first)
            return None
        request = part.request
        if len(part.keys) == len(request.charges) == 1 and not request.wait_us:
            return self._only_decision(part, reply, at)
        places = range(at, at + NUMBERS_PER_STEP * len(part.keys), NUMBERS_PER_STEP)
        decisions = [
            _decision(
                charge, limit, reply, place, _receipt(reply, place) if self._receipts else None
            )
            for place, (charge, limit) in zip(places, part.steps, strict=True)
        ]
        more: dict[str, Any] = {}
        if request.wait_us and first == 1 and reply[at + 2] > 0:
            more["mark"] = reply[0] + reply[at + 3]  # The name of the place in line.
        denied = any(not one and one.source != "shadow" for one in decisions)
        if part.token is not None and not denied:
            more["token"] = self.full_token(part)
        return combined(decisions, **more)

    def _only_decision(self, part: PackedRequest, reply: Reply, at: int) -> Decision:
        """`decision` where one limit is asked: a shorter way to the same."""
        (charge,) = part.request.charges
        receipt = _receipt(reply, at) if self._receipts else None
        passed = reply[at] == 1 or charge.kind is ChargeKind.SHADOW
        token = self.full_token(part) if passed else None
        return _decision(charge, charge.limits[0], reply, at, receipt, token=token)

    def full_token(self, part: PackedRequest) -> str | None:
        """The token that the caller gets; on Cluster it also contains the slot of the record."""
        if part.token is None or not part.request.reserve_us or not self.keys.clustered:
            return part.token
        return f"{part.token}@{self.keys.tag(part.request.charges[0].key).decode()}"

    def records(self, token: str) -> list[ReservationRecord]:
        """The records behind a full token: on Cluster there may be one in each of several slots."""
        if not self.keys.clustered:
            return [ReservationRecord(self.keys.reservation(b"", token))]
        parts = [one.rpartition("@") for one in BETWEEN_TOKENS.split(token)]
        return [
            ReservationRecord(
                self.keys.reservation(tag.encode(), name),
                charges_of(name) if len(parts) > 1 else (),
            )
            for name, _, tag in parts
        ]

    def usages(self, reply: Reply, steps: int) -> list[Usage | int]:
        """Read the reply to `usage_command`; a code (`STALE` or `NOT_OURS`) where there is no usage."""
        _require_numbers(reply, 1 + NUMBERS_PER_STEP * steps)
        usages: list[Usage | int] = []
        for at in range(1, len(reply), NUMBERS_PER_STEP):
            used, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
            answer = (retry_after_us == 0, remaining, retry_after_us, reset_after_us, level)
            usages.append(used if used < 0 else Usage(used, answer))
        return usages


def _packed_reservation(part: PackedRequest, rules: dict[bytes, int], texts: list[bytes]) -> bytes:
    """A reservation of one limit, as a chunk is: a shorter way to the same."""
    assert part.record is not None
    texts.append(part.record)
    rule = rules.setdefault(part.rules[0], len(rules) + 1)
    step = _packed_step(rule, part.request.charges[0])
    return _RESERVED.pack(1, RESERVE, part.request.reserve_us) + step + b"\1"


def _packed_step(rule: int, charge: Charge) -> bytes:
    if isinstance(charge, PastCharge):
        return _STEP.pack(rule, PAST, charge.cost) + _NUMBER.pack(charge.came_us)
    return _STEP.pack(rule, KINDS[charge.kind], charge.cost)


def undecided(code: int) -> EngineError:
    """The error for a node that has no answer, because its own store gave none."""
    known = "it may have been charged" if code == UNKNOWN else "nothing was charged"
    return EngineError(
        f"the node could not decide the request, because its store did not answer; {known}",
        transient=True,
        indefinite=code == UNKNOWN,
    )


def not_ours(key: str) -> EngineError:
    """The error for a state's key that another program has written to."""
    return EngineError(
        f"the state of {key!r} is not a Headgate state: something else has written to its Redis key; "
        "reset the key to start from zero",
        transient=False,
    )


def _require_numbers(reply: object, count: int) -> None:
    if type(reply) is list and len(reply) == count:
        try:
            total = sum(reply)  # Cheaper than checking each one.
        except TypeError:
            raise unexpected_reply(reply) from None
        if type(total) is int:
            return
    raise unexpected_reply(reply)


def _require_decided(part: PackedRequest | PlainRequest, why: int) -> None:
    """Raise why a request was not decided; an outdated calendar is not an error."""
    if why == TAKEN and isinstance(part, PackedRequest):
        raise UsageError(f"the reservation {part.token!r} is already open; settle it first")
    if why in (NOT_CHARGED, UNKNOWN):
        raise undecided(why)
    if why == NOT_OURS:
        raise not_ours(" or ".join(dict.fromkeys(one.key for one in part.request.charges)))


def _receipt(reply: Reply, at: int) -> Receipt | None:
    """The receipt of the step whose numbers start at `at`; none if the version was not stored."""
    steps = len(reply) // (NUMBERS_PER_STEP + 1)
    version = reply[1 + NUMBERS_PER_STEP * steps + (at - 1) // NUMBERS_PER_STEP]
    return Receipt(version, reply[0]) if version else None


def _decision(
    charge: Charge,
    limit: Limit,
    reply: Reply,
    at: int,
    receipt: Receipt | None,
    *,
    token: str | None = None,
) -> Decision:
    allowed, remaining, retry_after_us, reset_after_us, level = reply[at : at + 5]
    answer: Answer = (allowed == 1, remaining, retry_after_us, reset_after_us, level)
    context = ENGINE
    is_shadow = charge.kind is ChargeKind.SHADOW
    if charge.rule is not None or is_shadow or receipt is not None or token is not None:
        source: Source = "shadow" if is_shadow else "engine"
        context = Context(source, rule=charge.rule, token=token, receipt=receipt)
    return Decision(charge.key, limit, answer, context)
