"""Messages about invalid values; one table for all validators.

msgspec parses checks and reports Python types; pydantic parses management and reports inputs. Callers write JSON, in
any language, so messages use the terms of JSON.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE, NUMBER, TEXT, FLAG = "a whole number", "a number", "text", "true or false"
OBJECT, LIST = "an object", "a list"

WANTED: Final = {
    "int": WHOLE, "float": NUMBER, "int | float": NUMBER, "str": TEXT, "bool": FLAG, "object": OBJECT, "array": LIST,
    "int_type": WHOLE, "int_from_float": WHOLE, "int_parsing": WHOLE, "int_parsing_size": WHOLE,
    "float_type": NUMBER, "float_parsing": NUMBER, "finite_number": "a finite number",
    "string_type": TEXT, "bool_type": FLAG, "bool_parsing": FLAG, "list_type": LIST,
    "dict_type": OBJECT, "model_type": OBJECT, "model_attributes_type": OBJECT,
}  # fmt: skip
"""The required type: by msgspec's names of types, and by pydantic's names of errors."""

GIVEN: Final = {
    "int": NUMBER, "float": "a decimal number", "str": TEXT, "bool": FLAG, "object": OBJECT, "array": LIST,
    "dict": OBJECT, "list": LIST, "NoneType": "null",
}  # fmt: skip
"""The type that was sent, by the names of msgspec and of Python."""

BOUNDS: Final = {
    "greater_than": "must be more than {gt:.17g}",
    "greater_than_equal": "must be at least {ge:.17g}",
    "less_than_equal": "must be at most {le:.17g}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "missing": "is missing",
    "extra_forbidden": "is an unknown field; leave it out",
    "string_unicode": "has half a surrogate pair, which is not a character",
}
"""Other errors of pydantic."""

MAX_SHOWN: Final = 256
_AT: Final = re.compile(r" - at `(?P<key>key in )?\$(?P<path>.*?)`$")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_TYPE: Final = re.compile(r"Expected `(?P<wanted>.+)`, got `(?P<given>.+)`")
_LENGTH: Final = re.compile(r"Expected `array` of length (\d+)")
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")


class ValueErrorText(NamedTuple):
    """A sentence about a body, and a JSON pointer to the value."""

    text: str
    pointer: str | None


@lru_cache(maxsize=256)
def of_msgspec(message: str) -> ValueErrorText:
    """An error of msgspec, for callers. A batch often has the same one many times."""
    at = _AT.search(message)
    steps = [name or index for name, index in _STEP.findall(at["path"])] if at else []
    inside = "..." in steps  # For objects with arbitrary names msgspec does not say which.
    steps = steps[: steps.index("...")] if inside else steps
    pointer = "".join(f"/{step}" for step in steps)
    where = " ".join(steps) or "the body"
    if inside:
        where = f"every value in {where}"
    elif at and at["key"]:
        where = f"every name in {where}"
    finding = _AT.sub("", message)
    if found := _TYPE.fullmatch(finding):
        text = f"{where} must be {_wanted(found['wanted'])}, not {_given(found['given'])}"
    elif found := _LENGTH.match(finding):
        text = f"{where} must be a list of {found[1]}"
    elif found := _MISSING.fullmatch(finding):
        text = f"{' '.join([*steps, found[1]])} is missing"
    else:
        text = f"{where}: {finding[:1].lower()}{finding[1:]}".replace("`", "'")
    return ValueErrorText(text, f"#{pointer}")


def of_pydantic(error: Mapping[str, Any]) -> ValueErrorText:
    """An error of pydantic, for callers; values outside of the body have no pointer."""
    place, *steps = map(str, error["loc"])
    where = " ".join(step[:MAX_SHOWN] for step in steps)
    if place != "body":
        where = f"{where} in the {place}"
    kind = error["type"]
    if kind in WANTED:
        finding = f"must be {WANTED[kind]}, not {_given(type(error['input']).__name__)}"
    elif kind in BOUNDS:
        finding = BOUNDS[kind].format(**error.get("ctx", {}))
    else:
        finding = str(error["msg"])
    pointer = "#" + "".join(f"/{_escaped(step)}" for step in steps) if place == "body" else None
    return ValueErrorText(f"{where or 'the body'} {finding}", pointer)


def _wanted(kinds: str) -> str:
    """`int | null` in words."""
    bare = kinds.removesuffix(" | null")
    words = WANTED.get(bare, bare)
    return words if bare == kinds else f"{words} or null"


def _given(kind: str) -> str:
    return GIVEN.get(kind, kind)


def _escaped(step: str) -> str:
    """A step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
