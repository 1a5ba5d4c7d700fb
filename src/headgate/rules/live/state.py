"""A node's state with its source: the rules in force, and the set that it could not use."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...errors import HeadgateError
    from ..matching.rulebook import Rulebook
    from ..sources.base import Snapshot


@dataclass(frozen=True, slots=True)
class RulesState:
    """Everything about the rules that hold, so that one assignment changes all of it."""

    rulebook: Rulebook
    version: int
    revision: int
    digest: str
    """Of what the source holds."""
    documents: Mapping[str, bytes]
    """What the rules were read from."""
    withheld: str | None = None
    """Which rules of the source are not in use, and why."""


@dataclass(frozen=True, slots=True)
class RejectedUpdate:
    """A set that cannot be used, and why."""

    snapshot: Snapshot
    error: HeadgateError


@dataclass(frozen=True, slots=True)
class SuspiciousChange:
    """What about a change looks like a mistake, in words, and when it was followed, by the monotonic clock."""

    text: str
    since: float


def same_snapshot(one: Snapshot, other: Snapshot) -> bool:
    """Whether two readings tell the same."""
    return (one.documents, one.head) == (other.documents, other.head)


def digest_of(documents: Mapping[str, bytes]) -> str:
    """A short name for what documents hold."""
    digest = sha256()
    for name, data in documents.items():
        digest.update(f"{len(name)} {len(data)} {name}".encode("utf-8", "surrogateescape"))
        digest.update(data)
    return digest.hexdigest()
