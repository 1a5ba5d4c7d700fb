"""Bodies, in and out: what the check API reads, what it refuses, and what it answers.

Decoding is strict where leniency has bitten others: no key twice in an object, no number that is none (`true`, `"10"`, `1e999`, `NaN`),
at most 32 levels, UTF-8 only. Fields that nobody knows are let through and counted, so that a newer client can talk to an older
service. What is wrong is a `ProblemError`, and nothing has been counted then.

msgspec checks types in C, but lets a field that is given twice pass, and fields that nobody knows. A plain body is proven innocent
by its colons: written again from what was understood, it has as many as before, if no field was lost and nothing was escaped. Any
other body is read a second time, slowly.
"""

from __future__ import annotations

import json
import re
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..algorithms.base import MAX_EXACT
from ..charge import MAX_KEY_BYTES
from ..decision import ENGINE, NO_LIMIT, Decision
from .problems import BAD_JSON, BAD_VALUE, ProblemError
from .saying import of_msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engines.base import Run

MAX_DEPTH: Final = 32
MAX_BATCH: Final = 1_000
MAX_DESCRIPTORS: Final = 32
MAX_SHOWN: Final = 256
SHORT_KEY: Final = MAX_KEY_BYTES // 4
"""A key of so many characters fits, whatever they are."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises."""

Spec: TypeAlias = tuple[int | UnsetType, float | UnsetType, str | UnsetType, int | UnsetType]
"""`(limit, window, algorithm, burst)` as a check names them: what decides how it is counted."""


class Limited(msgspec.Struct, gc=False):
    """The fields that name a key and a limit."""

    key: str
    limit: int | UnsetType = UNSET
    window: int | float | UnsetType = UNSET
    algorithm: str | UnsetType = UNSET
    burst: int | UnsetType = UNSET
    cost: int | UnsetType = UNSET


class Check(Limited, gc=False):
    """The body of `POST /check`."""


class Reserve(Limited, gc=False):
    """The body of `POST /reserve`."""

    ttl: int | float | UnsetType = UNSET


class Settle(msgspec.Struct, gc=False):
    """The body of `POST /settle`."""

    token: str
    actual: int


class Acquire(msgspec.Struct, gc=False):
    """The body of `POST /acquire`."""

    key: str
    limit: int
    cost: int = 1
    ttl: int | float = 30
    token: str | UnsetType = UNSET


class Release(msgspec.Struct, gc=False):
    """The body of `POST /release`."""

    key: str
    token: str


class PlainCheck(Check, gc=False):
    """A check whose key and cost are certainly good; what is not plain may still be."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=SHORT_KEY)]
    cost: Annotated[int, msgspec.Meta(ge=0, le=MAX_EXACT)] | UnsetType = UNSET


class Batch(msgspec.Struct, gc=False):
    """The body of `POST /check/batch`, all of it plain."""

    checks: list[PlainCheck]


class RawBatch(msgspec.Struct, gc=False):
    """The same, when something in it is not."""

    checks: list[msgspec.Raw]


class Decide(msgspec.Struct, gc=False, omit_defaults=True):
    """The body of `POST /decide`: what the caller knows of a request."""

    method: str = "GET"
    path: str = "/"
    ip: str | None = None
    user_id: str | None = None
    api_key: str | None = None
    host: str | None = None
    headers: dict[str, str] = {}
    descriptors: list[tuple[str, str]] = []
    cost: int | None = None


class PlainAnswer(msgspec.Struct, gc=False, omit_defaults=True):
    """What a decision looks like in JSON, if there is nothing special about it."""

    key: str
    allowed: bool
    limit: int | None
    remaining: int | None
    """`null`, like `limit`, when no rule limits a request."""
    algorithm: str
    retry_after: float | None
    """Seconds; `null` when it never will."""
    reset_after: float
    backoff_level: int
    source: str


class AlikeAnswer(msgspec.Struct, gc=False):
    """A plain answer of many that differ in key and remaining units only: what is written between and behind these is there already."""

    key: str
    allowed: msgspec.Raw
    """And the limit."""
    remaining: int
    algorithm: msgspec.Raw
    """And all that follows."""


class Answer(PlainAnswer, gc=False, omit_defaults=True):
    """What any decision looks like."""

    rule: str | None = None
    never: bool = False
    degraded: bool = False
    token: str | None = None
    reason: str | None = None
    rules: tuple[PlainAnswer, ...] = ()


T = TypeVar("T", bound=msgspec.Struct)

encode = msgspec.json.Encoder().encode
BACKSLASH: Final = ord("\\")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""Escapes in strings: a whole surrogate pair, half of one, or any other."""


def answer_of(decision: Decision, reason: str | None = None) -> PlainAnswer:
    """The JSON form of a decision."""
    limit, context = decision.limited_by, decision.context
    allowed, remaining, retry_us, reset_us, level = decision.answer
    usual = context is ENGINE and reason is None and not decision.several
    if usual and retry_us >= 0:
        return PlainAnswer(
            decision.key,
            allowed,
            limit.limit,
            remaining,
            limit.name,
            retry_us / 1_000_000,
            reset_us / 1_000_000,
            level,
            "engine",
        )
    limited = limit is not NO_LIMIT
    return Answer(
        decision.key,
        allowed,
        limit.limit if limited else None,
        remaining if limited else None,
        limit.name,
        retry_us / 1_000_000 if retry_us >= 0 else None,
        reset_us / 1_000_000,
        level,
        context.source,
        rule=context.rule,
        never=retry_us < 0,
        degraded=context.degraded,
        token=context.token,
        reason=reason,
        rules=tuple(map(answer_of, decision.several)),
    )


def answers_of(run: Run) -> Sequence[PlainAnswer | AlikeAnswer]:
    """The JSON form of decisions that have most in common."""
    keys, limit, answers, context, _ = run
    if context is not ENGINE:
        return list(map(answer_of, run.decisions()))
    if answers[0][2:] == answers[-1][2:] and answers[0][2] >= 0:  # Then mostly all are alike.
        allowed, remaining, *others = zip(*answers, strict=True)
        if all(map(_is_one, (allowed, *others))):
            between, behind = _common(answer_of(Decision(keys[0], limit, answers[0], context)))
            return list(map(AlikeAnswer, keys, repeat(between), remaining, repeat(behind)))
    units, algorithm = limit.limit, limit.name
    return [
        PlainAnswer(
            key,
            allowed,
            units,
            remaining,
            algorithm,
            retry_us / 1_000_000,
            reset_us / 1_000_000,
            level,
            "engine",
        )
        if retry_us >= 0
        else answer_of(
            Decision(key, limit, (allowed, remaining, retry_us, reset_us, level), context)
        )
        for key, (allowed, remaining, retry_us, reset_us, level) in zip(keys, answers, strict=True)
    ]


def _is_one(values: Sequence[object]) -> bool:
    """Whether all of them are the same."""
    return values.count(values[0]) == len(values)


def _common(answer: PlainAnswer) -> tuple[msgspec.Raw, msgspec.Raw]:
    """What is written of an answer between its key and what remains, and behind that."""
    answer.key, answer.remaining = "", 0
    between, _, behind = encode(answer).partition(b',"remaining":0,"algorithm":')
    return (
        msgspec.Raw(between.removeprefix(b'{"key":"","allowed":')),
        msgspec.Raw(behind.removesuffix(b"}")),
    )


def read_twice(body: bytes) -> Any:
    """Read a body that msgspec has accepted once more, and refuse what it lets pass.

    Numbers come as text here: they have been checked where they matter.
    """
    _require_shallow(body)
    _require_whole_characters(body)
    try:
        return json.loads(
            body.decode(), object_pairs_hook=_once_each, parse_int=str, parse_float=str
        )
    except ValueError:
        raise ProblemError(BAD_JSON, "the body is not JSON in UTF-8") from None


def read(decoder: msgspec.json.Decoder[T], body: bytes) -> tuple[T, int]:
    """What a body says, and how many of its fields nobody knows."""
    try:
        value = decoder.decode(body)
    except UNREADABLE as error:
        refuse(error, body)
    # To look for a number among bytes is five times as fast as to look for bytes.
    if BACKSLASH not in body and body.count(b":") == encode(value).count(b":"):
        return value, 0  # It is certainly all that the body says.
    return value, unknown_fields(read_twice(body), type(value))


def unknown_fields(fields: dict[str, Any], kind: type[msgspec.Struct]) -> int:
    """How many fields a body has that its kind does not."""
    return len(fields.keys() - set(kind.__struct_fields__))


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ProblemError(BAD_JSON, f"the field {shown(twice)} is given twice; keep one of them")
    return fields


def require_few(descriptors: Sequence[object]) -> None:
    """Refuse more descriptors than a request may have."""
    if len(descriptors) > MAX_DESCRIPTORS:
        raise ProblemError(
            BAD_VALUE,
            f"a request has at most {MAX_DESCRIPTORS} descriptors, not {len(descriptors)}",
            pointer="#/descriptors",
        )


def refuse(error: Exception, body: bytes) -> NoReturn:
    """Tell what is wrong with a body that could not be decoded."""
    if isinstance(error, msgspec.ValidationError):
        _require_shallow(body)
        detail, pointer = of_msgspec(str(error))
        raise ProblemError(BAD_VALUE, detail, pointer=pointer) from None
    if isinstance(error, RecursionError):
        raise ProblemError(BAD_JSON, _TOO_DEEP) from None
    if isinstance(error, UnicodeDecodeError):
        raise ProblemError(BAD_JSON, "the body is not UTF-8; send JSON in UTF-8") from None
    _require_whole_characters(body)
    if not body.strip():
        raise ProblemError(
            BAD_JSON, f"the body is empty; send an object such as {_EXAMPLE}"
        ) from None
    detail = str(error).replace("Input data was truncated", "the body ends before its JSON does")
    raise ProblemError(BAD_JSON, f"{detail}; send an object such as {_EXAMPLE}") from None


_EXAMPLE = '{"key": "user:42"}'
_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"


def _require_whole_characters(body: bytes) -> None:
    """Refuse half a surrogate pair: the code of a high one without that of a low one behind it stands for no character."""
    half = next((found[1] for found in _ESCAPES.finditer(body) if found[1]), None)
    if half is not None:
        raise ProblemError(
            BAD_JSON,
            f"\\{half.decode()} is half a surrogate pair, which is no character; send the whole pair",
        )


def _require_shallow(body: bytes) -> None:
    depth = 0
    for byte in _STRINGS.sub(b"", body).translate(None, delete=_NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ProblemError(BAD_JSON, _TOO_DEEP)
        else:
            depth -= 1


def shown(text: str) -> str:
    """A text from outside, not too long for a message."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")
