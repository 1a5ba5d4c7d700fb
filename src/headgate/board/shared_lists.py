"""Lists that a node shares with the others: the keys it denies right now, and its busiest keys. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .model import Block
from .sketch import TopKey

if TYPE_CHECKING:
    from collections.abc import Iterable


def blocks_to_bytes(blocks: Iterable[Block]) -> bytes:
    """The keys that a node denies."""
    return json.dumps(list(blocks), separators=(",", ":")).encode()


def read_blocks(packed: bytes) -> list[Block]:
    """Read it back."""
    return [Block(*fields) for fields in json.loads(packed)]


def top_to_bytes(top: Iterable[TopKey], floor: int) -> bytes:
    """A node's busiest keys, and the most that any other key may have had."""
    return json.dumps([floor, list(top)], separators=(",", ":")).encode()


def read_top(packed: bytes) -> tuple[list[TopKey], int]:
    """Read it back."""
    floor, rows = json.loads(packed)
    return [TopKey(key, count, error) for key, count, error in rows], floor
