"""Warnings about server settings that would lose counts, logged once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def warn_about_eviction(info: object, log: logging.Logger) -> None:
    """Log a warning if limits may be evicted."""
    warning = eviction_warning(info)
    if warning is not None:
        log.warning(warning)


def eviction_warning(info: object) -> str | None:
    """The warning, from the reply to INFO memory; `None` if limits are safe."""
    if not isinstance(info, bytes):
        return None  # INFO is not allowed: nothing to warn about.
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or facts.get("maxmemory", "0") == "0":
        return None
    return (
        f"redis may evict keys (maxmemory-policy is {policy}): limits would be forgotten under memory pressure; "
        "set maxmemory-policy noeviction"
    )
