"""A file that only its owner can read, replaced as a whole.

Written to another one beside it, flushed to the disk and renamed, so a crash leaves the old file or the new one, never half of either.
One process writes it at a time; who else might is for the caller to settle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put this content in the place of what is there. If that raises `OSError`, what was there still is."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with open(part, "xb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read."""
    return os.open(path, flags, 0o600)


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows opens no folders.
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
