"""Lists that a node shares with other nodes: the keys it denies right now, and its busiest keys. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .model import Block
from .sketch import TopKey

if TYPE_CHECKING:
    from collections.abc import Iterable


def blocks_to_bytes(blocks: Iterable[Block]) -> bytes:
    """Pack the keys that a node denies."""
    return json.dumps(list(blocks), separators=(",", ":")).encode()


def read_blocks(packed: bytes) -> list[Block]:
    """The inverse of `blocks_to_bytes`."""
    return [Block(*fields) for fields in json.loads(packed)]


def top_to_bytes(top: Iterable[TopKey], floor: int) -> bytes:
    """Pack a node's busiest keys, and an upper bound for the hits of any other key."""
    return json.dumps([floor, list(top)], separators=(",", ":")).encode()


def read_top(packed: bytes) -> tuple[list[TopKey], int]:
    """The inverse of `top_to_bytes`."""
    floor, rows = json.loads(packed)
    return [TopKey(key, count, error) for key, count, error in rows], floor
