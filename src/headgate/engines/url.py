"""Engines by URL: `memory://?max_keys=100000&state_file=/var/lib/app/limits.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import ConfigError, UsageError
from .memory import MemoryEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .base import Engine

MEMORY_OPTIONS: dict[str, Callable[[str], Any]] = {
    "max_keys": int,
    "state_file": str,
    "save_every": float,
}


def open_engine(engine: str | Engine, clock: Clock | None) -> Engine:
    """The engine that a URL names, or the engine itself."""
    if not isinstance(engine, str):
        if clock is not None:
            raise UsageError("an engine brings its own clock; give the clock to the engine instead")
        return engine
    url = urlsplit(engine)
    if url.scheme != "memory":
        raise ConfigError(f"no engine is called {url.scheme!r}; there is memory://")
    if url.netloc or url.path or url.fragment:
        raise ConfigError("memory:// takes options only, such as memory://?max_keys=100000")
    return MemoryEngine(clock=clock, **_options(url.query, MEMORY_OPTIONS))


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
