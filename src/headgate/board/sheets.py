"""Lists that a node puts up for the others: whom it denies right now, and who asks it most. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .model import Block
from .sketch import Hot

if TYPE_CHECKING:
    from collections.abc import Iterable


def blocks_sheet(blocks: Iterable[Block]) -> bytes:
    """Whom a node denies."""
    return json.dumps(list(blocks), separators=(",", ":")).encode()


def read_blocks(sheet: bytes) -> list[Block]:
    """Read it back."""
    return [Block(key, until_us, reason) for key, until_us, reason in json.loads(sheet)]


def top_sheet(top: Iterable[Hot], floor: int) -> bytes:
    """Who asks a node most, and how often anybody else may have."""
    return json.dumps([floor, list(top)], separators=(",", ":")).encode()


def read_top(sheet: bytes) -> tuple[list[Hot], int]:
    """Read it back."""
    floor, rows = json.loads(sheet)
    return [Hot(key, count, error) for key, count, error in rows], floor
