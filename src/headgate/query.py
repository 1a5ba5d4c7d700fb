"""Options in the query of a URL: known names, each once, each with a value that makes sense."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from .errors import ConfigError

Readers: TypeAlias = Mapping[str, Callable[[str], Any]]
"""How to read each option; what cannot be read raises `ValueError` or `KeyError`."""
WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{0,18})?")


def read_query(query: str, known: Readers) -> dict[str, Any]:
    """The options that a query names. Values are not repeated in errors: one may be a password."""
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigError(f"no option is called {name!r}; there are {', '.join(known)}")
        if name in options:
            raise ConfigError(f"the option {name!r} is given twice")
        try:
            options[name] = known[name](text)
        except (ValueError, KeyError):
            is_number = known[name] in {whole, number}
            wrong = "is not a number" if is_number else "has a value that makes no sense"
            raise ConfigError(f"the option {name!r} {wrong}") from None
    return options


def whole(text: str) -> int:
    """A whole number in ASCII digits; `int` takes `1_0`, spaces and the digits of other scripts too."""
    if not WHOLE.fullmatch(text):
        raise ValueError
    return int(text)


def number(text: str) -> float:
    """A finite number in ASCII digits."""
    if not NUMBER.fullmatch(text):
        raise ValueError
    return float(text)
