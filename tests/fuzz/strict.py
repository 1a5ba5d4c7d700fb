"""A second reader of JSON, slow and strict, to hold the service's own to."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 32


class NotStrictError(Exception):
    """This is no JSON, or could be read in two ways."""


class Bad(dict[str, Any]):
    """An object that has a name twice."""


def read(body: bytes) -> Any:
    """What a body says; refused if it is not UTF-8, has a name twice in an object or half a character, or is deep."""
    value = read_loosely(body)
    reason = fault(value)
    if reason is not None:
        raise NotStrictError(reason)
    return value


def read_loosely(body: bytes) -> Any:
    """What a body says, with its faults in it for `fault` to find; refused when it is no JSON at all."""
    try:
        return json.loads(
            body.decode(errors="surrogateescape"),
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_int=_whole,
        )
    except (ValueError, RecursionError) as error:
        raise NotStrictError(str(error)[:100]) from None


def fault(value: Any, depth: int = 0) -> str | None:
    """Why a value that was read could be read in two ways; it lies `depth` levels inside a body."""
    level = [value]
    while level:  # Level by level, so that its own depth does not matter.
        below: list[Any] = []
        depth += any(isinstance(one, dict | list) for one in level)
        for one in level:
            match one:
                case Bad():
                    return "a name is given twice"
                case dict():
                    below += (*one, *one.values())
                case list():
                    below += one
                case str() if not _is_text(one):
                    return "a text holds half a character, or what is not UTF-8"
        level = below
    return "it is too deep" if depth > MAX_DEPTH else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Bad(found)


def _whole(digits: str) -> float:
    """Python refuses to read thousands of digits; nobody counts so far."""
    return int(digits) if len(digits) < 400 else float("inf")


def _refuse(word: str) -> NoReturn:
    raise NotStrictError(word)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
