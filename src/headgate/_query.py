"""Options in a URL's query string: known names, each once, each with a valid value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from .errors import ConfigError

Readers: TypeAlias = Mapping[str, Callable[[str], Any]]
"""How to parse each option; invalid values raise `Expected`."""
WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{0,18})?")


class Expected(ValueError):  # noqa: N818 - it says what the value must be
    """A value that cannot be used. The message says what it must be, without repeating it."""


def read_query(query: str, known: Readers) -> dict[str, Any]:
    """The options in a query string. Errors do not repeat values: one may be a password."""
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigError(f"there is no option {name!r}; the options are {', '.join(known)}")
        if name in options:
            raise ConfigError(f"the option {name!r} is given twice")
        try:
            options[name] = known[name](text)
        except Expected as wanted:
            raise ConfigError(f"the option {name!r} must be {wanted}") from None
    return options


def whole(text: str) -> int:
    """A whole number in ASCII digits; `int` takes `1_0`, spaces and the digits of other scripts too."""
    if not WHOLE.fullmatch(text):
        raise Expected("a whole number")
    return int(text)


def number(text: str) -> float:
    """A finite number in ASCII digits."""
    if not NUMBER.fullmatch(text):
        raise Expected("a number")
    return float(text)


def whole_between(low: int, high: int) -> Callable[[str], int]:
    """A whole number in bounds."""

    def read(text: str) -> int:
        if not (WHOLE.fullmatch(text) and low <= int(text) <= high):
            raise Expected(f"a whole number from {low} to {high}")
        return int(text)

    return read


def seconds_between(low: float, high: float) -> Callable[[str], float]:
    """A length of time in bounds."""

    def read(text: str) -> float:
        if not (NUMBER.fullmatch(text) and low <= float(text) <= high):
            raise Expected(f"a number of seconds from {low:g} to {high:g}")
        return float(text)

    return read


def one_of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    """What one of these words stands for."""

    def read(text: str) -> Any:
        if text not in values:
            raise Expected(f"one of {', '.join(values)}")
        return values[text]

    return read


yes_or_no: Final = one_of(
    {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
)
