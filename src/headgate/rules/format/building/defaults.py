"""Fills in fields that a rule leaves out, from the file's defaults, or that an override leaves out, from its rule.

A field that is present, even as null, is never filled in. Nor is one that would contradict a field that is present: a
rule with a `rate` does not get the defaults' `limit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..fields import RULE

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = frozenset({"limit", "window_size_seconds", "calendar"})
CONFLICTS: Final = {
    "rate": _PLAIN | {"limits", "burst"},
    "limits": _PLAIN | {"rate", "burst"},
    "limit": frozenset({"rate", "limits"}),
    "window_size_seconds": frozenset({"rate", "limits", "calendar"}),
    "calendar": frozenset({"rate", "limits", "window_size_seconds", "burst"}),
    "burst": frozenset({"limits", "calendar"}),
}
"""Fields, and those that they exclude."""


_OTHER_NAMES: Final = {alias: one.name for one in RULE.fields for alias in one.aliases}
_ALIASES: Final = frozenset(_OTHER_NAMES)


def with_defaults(own: dict[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """`own`, with missing fields taken from `base`; each field under the name it was written with."""
    if not base:
        return own
    written = {_OTHER_NAMES.get(name, name) for name in own}
    unwanted = written.union(
        *(CONFLICTS[name] for name in written if name in CONFLICTS and own.get(name) is not None)
    )
    more = {
        name: value for name, value in base.items() if _OTHER_NAMES.get(name, name) not in unwanted
    }
    return {**own, **more}


def with_canonical_names(written: dict[str, Any]) -> dict[str, Any]:
    """The fields under their canonical names, without those that are null."""
    if _ALIASES.isdisjoint(written) and None not in written.values():
        return written  # The usual case.
    return {
        _OTHER_NAMES.get(name, name): value for name, value in written.items() if value is not None
    }
