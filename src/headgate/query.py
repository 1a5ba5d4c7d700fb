"""Options in the query of a URL: known names, each once, each with a value that makes sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from .errors import ConfigError

Readers: TypeAlias = Mapping[str, Callable[[str], Any]]
"""How to read each option; what cannot be read raises `ValueError` or `KeyError`."""


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
            wrong = "not a number" if known[name] in {int, float} else "a value that makes no sense"
            raise ConfigError(f"the option {name!r} has {wrong}") from None
    return options
