"""Engines by URL: `memory://?max_keys=100000&state_file=/var/lib/app/limits.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import ConfigError, UsageError
from .memory import MemoryEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock

MEMORY_OPTIONS: dict[str, Callable[[str], Any]] = {
    "max_keys": int,
    "state_file": str,
    "save_every": float,
}


def open_memory(url: str, clock: Clock | None) -> MemoryEngine:
    """The memory engine that a URL describes."""
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.fragment:
        raise ConfigError("memory:// takes options only, such as memory://?max_keys=100000")
    options = _options(parts.query, MEMORY_OPTIONS)
    try:
        return MemoryEngine(clock=clock, **options)
    except UsageError as error:  # What a URL says is the operator's to correct.
        raise ConfigError(f"{url!r} cannot be used: {error}") from error


def _options(query: str, known: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigError(f"no option is called {name!r}; there are {', '.join(known)}")
        if name in options:
            raise ConfigError(f"the option {name!r} is given twice")
        try:
            options[name] = known[name](text)
        except ValueError:
            raise ConfigError(f"the option {name}={text!r} is not a number") from None
    return options
