"""Rows: how external stores hold a node's data, as bytes. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .model import Totals
from .store import NO_STRIP, Counts, NodeRow, StoredChoice
from .traffic import KEPT_SECONDS, SecondCounts

if TYPE_CHECKING:
    from collections.abc import Mapping


def packed_counts(counts: Counts) -> str:
    """A JSON list of numbers: requests, denied, and the strip. A script finds the first two by pattern."""
    (requests, denied), strip = counts
    return json.dumps([requests, denied, strip.last, *strip.counts], separators=(",", ":"))


def unpacked_counts(value: str | bytes) -> Counts:
    """The inverse; drops the strip if another version wrote it with other seconds."""
    requests, denied, last, *counts = json.loads(value)
    strip = SecondCounts(last, tuple(counts)) if len(counts) == 2 * KEPT_SECONDS else NO_STRIP
    return Counts(Totals(requests, denied), strip)


def packed_scopes(scopes: Mapping[str, SecondCounts]) -> str:
    """A JSON object; empty text without watched rules, so that a plain fleet pays nothing."""
    return json.dumps(scopes, separators=(",", ":")) if scopes else ""


def unpacked_scopes(value: str | bytes) -> dict[str, SecondCounts]:
    """The inverse."""
    found = {
        scope: SecondCounts(last, tuple(counts))
        for scope, (last, counts) in json.loads(value or "{}").items()
    }
    return {scope: one for scope, one in found.items() if len(one.counts) == 2 * KEPT_SECONDS}


def packed_choice(choice: StoredChoice) -> bytes:
    """The epoch comes first, where a script finds it."""
    return f"{choice.epoch}:".encode() + choice.blob


def unpacked_choice(value: bytes) -> StoredChoice:
    """The inverse; epoch 0 if there is nothing."""
    epoch, _, blob = value.partition(b":")
    return StoredChoice(int(epoch or 0), blob)


def packed_node(row: NodeRow) -> bytes:
    """The times come first, where a script finds them."""
    return f"{row.beat_us}:{row.registered_us}:".encode() + row.identity


def unpacked_node(value: bytes) -> NodeRow:
    """The inverse."""
    beat_us, registered_us, identity = value.split(b":", 2)
    return NodeRow(int(beat_us), int(registered_us), identity)
