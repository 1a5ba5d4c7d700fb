"""Parsing packed calls on a node: from names and bytes to requests.

`redis/codec.py` writes them, and `redis/lua/decide.lua` is their other reader. A call is parsed completely before
anything is decided. An invalid call is a `UsageError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ...algorithms.base import MAX_EXACT
from ...charge import (
    MAX_KEY_BYTES,
    Charge,
    ChargeSet,
    PastCharge,
    ReadyCharge,
    require_key,
    require_steps,
)
from ...charge_kind import ChargeKind
from ...errors import UsageError
from ..redis.codec import KINDS, LOOK, PAST, RESERVE, TOKEN, USAGE, WAIT
from ..redis.keys import parse_prefix, parse_reservation, split_state
from ..redis.limit_numbers import limit_of
from .codec import MAX_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ...algorithms import Limit
    from ..redis.keys import StatePrefix

MAX_NAMES: Final = 16_384
"""The most states of one call: it is decided in one step, while others wait."""
MAX_KNOWN: Final = 4_096
"""How many limits, and how many beginnings of names, are kept as they were read."""
HEAD: Final = struct.Struct("<dd")
_STEP: Final = struct.Struct("<BBd")
_NUMBER: Final = struct.Struct("<d")
_KINDS: Final = {number: kind for kind, number in KINDS.items()}

T = TypeVar("T")


class UsageQuestion(NamedTuple):
    """Asks what a key has used."""

    key: str
    limit: Limit
    rule: str | None


class _Step(NamedTuple):
    """One step of a request."""

    number: int
    """Of its charge."""
    state: UsageQuestion
    kind: int
    cost: int
    came_us: int


class Hits(NamedTuple):
    """One unit of one limit for each key: the usual call."""

    namespace: str
    rule: str | None
    limit: Limit
    keys: list[str]


class Requests(NamedTuple):
    """Any requests, and of each its namespace, and its limits in the order of its answers."""

    asked: list[ChargeSet | UsageQuestion]
    limits: list[tuple[Limit, ...]]
    namespaces: list[str]

    def by_namespace(self) -> dict[str, list[int]]:
        """The places of the requests of each namespace."""
        found: dict[str, list[int]] = {}
        for place, namespace in enumerate(self.namespaces):
            found.setdefault(namespace, []).append(place)
        return found


class _Known(dict["Hashable", T]):
    """A bounded cache of what was parsed before."""

    def __init__(self, read: Callable[..., T]) -> None:
        self._read = read

    def __missing__(self, packed: Hashable) -> T:
        value = self._read(*packed) if isinstance(packed, tuple) else self._read(packed)
        if len(self) >= MAX_KNOWN:
            self.clear()
        self[packed] = value
        return value


def _short_prefix(prefix: bytes) -> StatePrefix:
    if len(prefix) > MAX_PREFIX:
        raise ValueError(f"namespace, rule and limit have more than {MAX_PREFIX} bytes")
    return parse_prefix(prefix)


_prefixes: _Known[StatePrefix] = _Known(_short_prefix)
_limits: _Known[Limit] = _Known(limit_of)


def read_hits(names: Sequence[bytes], packed_limit: bytes) -> Hits:
    """What `take` asks for."""
    try:
        prefix, _ = split_state(names[0])
        start = len(prefix)
        keys = [name[start:].decode() for name in names if name.startswith(prefix)]
        namespace, rule, identity = _prefixes[prefix]
    except ValueError as error:
        raise _no_name(error) from None
    if len(keys) != len(names):
        raise UsageError("the states of this call belong to more than one limit")
    lengths = [*map(len, names)]
    if min(lengths) == start or max(lengths) > start + MAX_KEY_BYTES:
        raise UsageError(f"a key has 1 to {MAX_KEY_BYTES} bytes")
    return Hits(namespace, rule, _limits[packed_limit, identity], keys)


def read_state(name: bytes, packed_limit: bytes) -> tuple[str, UsageQuestion]:
    """The namespace, and the key, limit and rule of one state."""
    namespace, rule, identity, key = _parsed(name)
    return namespace, UsageQuestion(key, _limits[packed_limit, identity], rule)


def read_identity(name: bytes) -> tuple[str, str | None, str, str]:
    """`(namespace, rule, identity, key)` of a state."""
    return _parsed(name)


def read_record(name: bytes) -> tuple[str, str]:
    """`(namespace, token)` of a reservation."""
    try:
        namespace, token = parse_reservation(name)
    except ValueError as error:
        raise _no_name(error) from None
    return namespace, _short_token(token)


def read_token(word: bytes) -> str:
    """The token of slots."""
    return _short_token(text_of(word))


def _short_token(token: str) -> str:
    if len(token) > MAX_KEY_BYTES:
        raise UsageError(f"a token has at most {MAX_KEY_BYTES} bytes")
    return token


def _parsed(name: bytes) -> tuple[str, str | None, str, str]:
    try:
        prefix, key = split_state(name)
        return *_prefixes[prefix], require_key(key.decode())
    except UsageError:
        raise
    except ValueError as error:
        raise _no_name(error) from None


def _no_name(error: ValueError) -> UsageError:
    return UsageError(f"this is not a name of the Redis engine: {error}")


def read_head(packed: bytes) -> int:
    """Where to read on behind the head of a call; the time is the node's business."""
    if len(packed) < HEAD.size or HEAD.unpack_from(packed)[0] != 0:
        raise UsageError("a call begins with a time of 0: the node's clock decides")
    return HEAD.size


def text_of(word: bytes) -> str:
    """A word that must be text."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UsageError("a text of the call is not in UTF-8") from None


def whole(number: float) -> int:
    """A number as it must be: whole, and not negative."""
    if not (0 <= number <= MAX_EXACT and number % 1 == 0):
        raise UsageError(f"a number is out of range: {number!r}")
    return int(number)


def read_numbers(packed: bytes, at: int) -> list[int]:
    """All numbers from there on."""
    if (len(packed) - at) % 8:
        raise UsageError("the numbers of a call are cut off")
    return [whole(number) for (number,) in _NUMBER.iter_unpack(packed[at:])]


def read_requests(names: Sequence[bytes], packed: bytes, texts: Sequence[bytes]) -> Requests:
    """What `decide` asks for."""
    try:
        return _BatchReader(names, packed, texts).read()
    except (struct.error, LookupError):
        raise UsageError("the call is cut off") from None


class _BatchReader:
    """Reads one packed batch."""

    def __init__(self, names: Sequence[bytes], packed: bytes, texts: Sequence[bytes]) -> None:
        self._packed = packed
        self._names = iter([_parsed(name) for name in names])
        self._texts = iter(texts)
        self._at = read_head(packed)
        self._rules: list[bytes] = []
        self._namespaces: set[str] = set()

    def read(self) -> Requests:
        packed = self._packed
        if packed[self._at]:
            raise UsageError("a node gives no receipts")
        self._at += 1
        self._read_rules()
        (many,) = _NUMBER.unpack_from(packed, self._at)
        self._at += 8
        asked: list[ChargeSet | UsageQuestion] = []
        limits: list[tuple[Limit, ...]] = []
        namespaces: list[str] = []
        for _ in range(min(whole(many), MAX_NAMES + 1)):
            self._namespaces = set()
            request, its_limits = self._read_request()
            if len(self._namespaces) > 1:
                raise UsageError("a request is about one namespace")
            asked.append(request)
            limits.append(its_limits)
            namespaces.append(self._namespaces.pop())
        rest = next(self._names, None), next(self._texts, None)
        if rest != (None, None) or self._at != len(packed) or not asked:
            raise UsageError("the arguments of the call do not fit its keys")
        if len({type(one) for one in asked}) > 1:
            raise UsageError("usage needs a separate call")
        return Requests(asked, limits, namespaces)

    def _byte(self) -> int:
        self._at += 1
        return self._packed[self._at - 1]

    def _number(self) -> int:
        (number,) = _NUMBER.unpack_from(self._packed, self._at)
        self._at += 8
        return whole(number)

    def _read_rules(self) -> None:
        """The packed limits; what each means depends on the state that it is used with."""
        for _ in range(self._byte()):
            start = self._at
            self._at += 1 + 8 * NUMBERS[self._packed[start]]
            self._rules.append(self._packed[start : self._at])

    def _text(self) -> bytes:
        text = next(self._texts, None)
        if text is None:
            raise UsageError("a text is missing in the call")
        return text

    def _step(self, rule: int) -> UsageQuestion:
        """The state and the limit of the next step."""
        found = next(self._names, None)
        if found is None or not 0 < rule <= len(self._rules):
            raise UsageError("a step of the call makes no sense")
        namespace, rule_name, identity, key = found
        self._namespaces.add(namespace)
        return UsageQuestion(key, _limits[self._rules[rule - 1], identity], rule_name)

    def _read_request(self) -> tuple[ChargeSet | UsageQuestion, tuple[Limit, ...]]:
        steps = self._byte()
        if not steps:
            key, limit, rule = self._step(self._byte())
            return ChargeSet((ReadyCharge(key, (limit,), 1, ChargeKind.TAKE, rule),)), (limit,)
        require_steps(steps)
        options = self._byte()
        wait_us = self._number() if options & WAIT else 0
        reserve_us = self._number() if options & RESERVE else 0
        token = None
        if options & TOKEN:
            token = read_token(self._text())
        if reserve_us:
            namespace, token = read_record(self._text())
            self._namespaces.add(namespace)
        if options & ~(WAIT | RESERVE | TOKEN | LOOK):
            raise UsageError("a request of the call has an unknown option")
        parts: list[_Step] = []
        for place in range(1, steps + 1):
            rule, kind, cost = _STEP.unpack_from(self._packed, self._at)
            self._at += _STEP.size
            came_us = self._number() if kind == PAST else 0
            state = self._step(rule)
            number = self._byte() if reserve_us else place
            parts.append(_Step(number, state, kind, whole(cost), came_us))
        limits = tuple(part.state.limit for part in parts)
        if any(part.kind == USAGE for part in parts):
            if steps > 1 or options:
                raise UsageError("usage is read for one state at a time")
            return parts[0].state, limits
        charges = _charges(parts, look=bool(options & LOOK))
        return ChargeSet(charges, wait_us, reserve_us, token), limits


def _charges(parts: list[_Step], *, look: bool) -> tuple[Charge, ...]:
    """Steps as charges again: those of one number belong to one charge."""
    charges: list[Charge] = []
    last = 0
    for number, (key, limit, rule), kind_number, cost, came_us in parts:
        if kind_number == PAST and number > last and not look:
            charges.append(PastCharge(key, (limit,), cost, came_us, rule))
            last = number
            continue
        kind = _KINDS.get(kind_number)
        if kind is None or number < last:
            raise UsageError("a step of the call makes no sense")
        if look and kind is ChargeKind.TAKE:
            kind = ChargeKind.PEEK
        if number == last:
            before = charges[-1]
            if (before.key, before.cost, before.kind, before.rule) != (key, cost, kind, rule):
                raise UsageError("the steps of one charge differ in more than their limit")
            charges[-1] = ReadyCharge(key, (*before.limits, limit), cost, kind, rule)
        else:
            charges.append(ReadyCharge(key, (limit,), cost, kind, rule))
        last = number
    return tuple(charges)


NUMBERS: Final = {1: 4, 2: 4, 3: 2, 4: 4, 5: 5, 6: 14, 7: 2}
"""How many numbers a limit has, by the code of its algorithm."""
