"""Parsing bodies: one strict parser for all untrusted input, in time proportional to its size.

Parsing is strict where leniency has caused trouble elsewhere: no duplicate names in any object, no invalid numbers
(`true`, `"10"`, `1e999`, `NaN`), at most 32 levels, UTF-8 only. Unknown fields are accepted and counted, so that a
newer client can talk to an older service; unless one looks like a typo or is another name for the limit, because then
the caller would get another limit than intended. Errors raise `ProblemError`, and nothing has been counted then.

msgspec parses a body in C and checks its types. It accepts duplicate and unknown names; `strictly` finds those. Most
bodies need not be parsed again for that, for this reason: without a backslash, every string in a body has exactly two
quotation marks. Encoding the fields that were understood produces strings of the body, each once. If the result has as
many quotation marks as the body, then the body has no other string, so no other name, so no other field.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import msgspec

from .bodies import encode, shown
from .problems import BAD_JSON, BAD_VALUE, ProblemError
from .value_errors import of_msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T", bound=msgspec.Struct)

MAX_DEPTH: Final = 32
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions of a decoder."""
BACKSLASH: Final = ord("\\")
MAX_SLIPS: Final = 32
"""How many unknown names are checked for typos: more than that are not typos."""
LONGEST_SLIP: Final = 64
"""How many characters of such a name are looked at, and remembered."""
LONG: Final = 5
"""In a shorter name one letter makes another word: `host` is not a typo of `cost`."""
UNITS: Final = ("_ms", "_s", "_sec", "_seconds")
OTHER_NAMES: Final = frozenset({"rate", "period", "interval"})
"""What other limiters, and the library, call `limit` and `window`. Ignoring one would mean the default limit."""

# Each of these consumes a string up to its end, or to the end of the body, and never looks at a byte twice.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""Escapes in strings: a complete surrogate pair, a lone surrogate, or any other."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_EXAMPLE = '{"key": "user:42"}'
_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"


def read(decoder: msgspec.json.Decoder[T], body: bytes) -> tuple[T, int]:
    """The parsed body, and the number of its unknown fields."""
    try:
        value = decoder.decode(body)
    except UNREADABLE as error:
        _refuse(error, body)
    # Searching bytes for a number is five times as fast as searching for bytes.
    if BACKSLASH not in body and body.count(b'"') == encode(value).count(b'"'):
        return value, 0  # The whole body was understood.
    return value, _unknown(strictly(body), type(value))


def strictly(body: bytes) -> Any:
    """The body as plain values; refused if it is not JSON, too deep, or has duplicate names.

    Numbers are returned as text.
    """
    return _parsed(body, _STRICT)


def read_outermost(decoder: msgspec.json.Decoder[T], body: bytes) -> tuple[T, int]:
    """Like `read`, if the content of the outermost object is parsed later, piece by piece."""
    try:
        value = decoder.decode(body)
    except UNREADABLE as error:
        _refuse(error, body)
    outermost: Sequence[tuple[str, Any]] = ()

    def note(pairs: Sequence[tuple[str, Any]]) -> None:
        nonlocal outermost
        outermost = pairs  # The outermost object is the last one to end.

    _parsed(body, _decoder(note))
    return value, _unknown(_once_each(outermost), type(value))


def _decoder(of_pairs: Callable[[Sequence[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=of_pairs, parse_int=str, parse_float=str)


def _parsed(body: bytes, decoder: json.JSONDecoder) -> Any:
    _require_shallow(body)
    _require_whole_characters(body)
    try:
        return decoder.decode(body.decode())
    except ValueError:
        raise ProblemError(BAD_JSON, "the body is not JSON in UTF-8") from None


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ProblemError(
                    BAD_JSON, f"the field {shown(name)} is given twice; keep one of them"
                )
            seen.add(name)
    return fields


_STRICT: Final = _decoder(_once_each)


def _unknown(fields: dict[str, Any], kind: type[msgspec.Struct]) -> int:
    """The number of unknown fields; those that look like typos of known ones are refused."""
    known = kind.__struct_fields__
    unknown = [name for name in fields if name not in known]
    for name in unknown[:MAX_SLIPS]:
        meant = meant_by(name[:LONGEST_SLIP], known)  # The cache keeps what it is asked.
        if meant is not None:
            advice = f"did you mean {meant!r}?"
        elif "window" in known and name in OTHER_NAMES:
            advice = "write 'limit' and, in seconds, 'window'"
        else:
            continue
        raise ProblemError(
            BAD_VALUE, f"there is no field {shown(name)}; {advice}", pointer=f"#/{name}"
        )
    return len(unknown)


@lru_cache(maxsize=1_024)
def meant_by(name: str, known: tuple[str, ...]) -> str | None:
    """The name that this is a typo of: wrong case, a unit appended, or one letter wrong, missing, doubled or swapped.

    >>> [meant_by(name, ("limit", "window")) for name in ("limits", "Window", "window_ms", "widnow", "colour")]
    ['limit', 'window', 'window', 'window', None]
    """
    plain = name.lower()
    for unit in UNITS:
        if plain.endswith(unit) and plain.removesuffix(unit) in known:
            plain = plain.removesuffix(unit)
    return next((one for one in known if _is_near(plain, one)), None)


def _is_near(one: str, other: str) -> bool:
    """Whether the two differ by one letter, or by two swapped neighbours."""
    if abs(len(one) - len(other)) > 1 or len(other) < 3:
        return False
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return True
    return (
        (one[at + 1 :] == other[at + 1 :] and len(other) >= LONG)
        or one[at:] == other[at + 1 :]
        or one[at + 1 :] == other[at:]
        or (one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :])
    )


def _refuse(error: Exception, body: bytes) -> NoReturn:
    """Raise a problem that explains why a body could not be decoded."""
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


def _require_whole_characters(body: bytes) -> None:
    """Refuse lone surrogates: a high surrogate without a low one after it is not a character."""
    if BACKSLASH not in body:
        return
    half = next((found[1] for found in _ESCAPES.finditer(body) if found[1]), None)
    if half is not None:
        raise ProblemError(
            BAD_JSON,
            f"\\{half.decode()} is half a surrogate pair; send the whole pair",
        )


def _require_shallow(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for byte in _STRINGS.sub(b"", body).translate(None, delete=_NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ProblemError(BAD_JSON, _TOO_DEEP)
        else:
            depth -= 1
