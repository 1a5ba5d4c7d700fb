"""Nodes and transactions: the parts of a tree, and the outcomes of a step. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .base import SourceError
from .journal import unescape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class UnknownOutcome(SourceError):  # noqa: N818 - it is an outcome
    """No answer came: the transaction may have been carried out."""


class ConcurrentChange(Exception):  # noqa: N818 - not an error: the condition of a transaction did not hold
    """The condition of a transaction did not hold; nothing was written."""


class TreeNode(NamedTuple):
    """A node's data, and the version that a transaction can depend on."""

    data: bytes
    version: int


class Write(NamedTuple):
    """One step of a transaction: sets or deletes a rule or an entry."""

    kind: str
    """`rule` or `entry`."""
    name: str
    data: bytes | None
    node: TreeNode | None
    """The current node; the transaction depends on it."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole tree at one moment."""

    version: int
    rules: Mapping[str, TreeNode]
    head: TreeNode | None


def rule_id_of(name: str, data: bytes) -> str:
    """The id of a node's rule: from its content, or else from the node's name."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    named = found.get("rule_id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else unescape(name)


def relevant(names: Iterable[str]) -> list[str]:
    """The names of nodes that hold rules: names that begin with a dot are ignored."""
    return sorted(name for name in names if not name.startswith("."))
