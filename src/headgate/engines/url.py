"""Engines by URL: `memory://?max_keys=100000&state_file=/var/lib/app/limits.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import ConfigError, UsageError
from ..query import Readers, number, read_query, whole
from .memory import MemoryEngine

if TYPE_CHECKING:
    from ..clock import Clock

MEMORY_OPTIONS: Readers = {
    "max_keys": whole,
    "state_file": str,
    "save_every": number,
}


def memory_options(url: str, known: Readers = MEMORY_OPTIONS) -> dict[str, Any]:
    """What a URL of `memory://` says; nothing but options is known there."""
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.fragment:
        raise ConfigError(f"memory:// takes options only, such as memory://?{next(iter(known))}=…")
    return read_query(parts.query, known)


def open_memory(url: str, clock: Clock | None) -> MemoryEngine:
    """The memory engine that a URL describes."""
    options = memory_options(url)
    try:
        return MemoryEngine(clock=clock, **options)
    except UsageError as error:  # What a URL says is the operator's to correct.
        raise ConfigError(f"{url!r} cannot be used: {error}") from error
