"""Nodes and transactions: what a tree is made of, and how a step of it can end. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .base import SourceError
from .journal import unescape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class UnknownOutcome(SourceError):  # noqa: N818 - it says how the caller feels
    """No answer came: the transaction may have been carried out."""


class ConcurrentChange(Exception):  # noqa: N818 - not an error: the condition of a transaction did not hold
    """The condition of a transaction did not hold; nothing was written."""


class TreeNode(NamedTuple):
    """What a node holds, and the version that a transaction can be made to depend on."""

    data: bytes
    version: int


class Write(NamedTuple):
    """One step of a transaction: a rule or an entry gets new data, or goes."""

    kind: str
    """`rule` or `entry`."""
    name: str
    data: bytes | None
    node: TreeNode | None
    """What is there now; the transaction depends on it."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole tree at one moment."""

    version: int
    rules: Mapping[str, TreeNode]
    head: TreeNode | None


def rule_id_of(name: str, data: bytes) -> str:
    """The id of the rule that a node holds: what it says itself, or else what the node is called."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    named = found.get("rule_id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else unescape(name)


def relevant(names: Iterable[str]) -> list[str]:
    """The names of nodes that hold rules: a name that begins with a dot is somebody's private matter."""
    return sorted(name for name in names if not name.startswith("."))
