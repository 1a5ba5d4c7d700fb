"""Reading a rules file: regular files only, bounded, and as one consistent snapshot.

All checks use the open file, not its name, so a file that is replaced meanwhile is read either in its old or its new
version, never as a mixture. A file that is modified in place while it is read is read again.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from ...errors import ConfigError
from .document import MAX_BYTES

if TYPE_CHECKING:
    from pathlib import Path

TRIES: Final = 3
_WITHOUT_WAITING: Final = getattr(os, "O_NONBLOCK", 0)
"""Without it, opening a pipe would wait for a writer."""
_AS_BYTES: Final = getattr(os, "O_BINARY", 0)
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class FileContent(NamedTuple):
    """The content of a file, and its status at that moment."""

    data: bytes
    status: os.stat_result


def read_file(path: str | Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """All bytes of the file at one moment.

    Raises `ConfigError` if it is not a regular file, is too large, or cannot be read.
    """
    return read_with_status(path, max_bytes=max_bytes).data


def read_with_status(path: str | Path, *, max_bytes: int = MAX_BYTES) -> FileContent:
    """Like `read_file`, with the file's status at that moment."""
    try:
        opened = os.open(path, os.O_RDONLY | _WITHOUT_WAITING | _AS_BYTES)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        for _ in range(TRIES):
            before = _checked(opened, path, max_bytes)
            data = _read(opened, max_bytes)
            if len(data) > max_bytes:  # It grew, or reports no size.
                raise _too_large(path, len(data), max_bytes)
            after = os.fstat(opened)
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return FileContent(data, after)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(opened)
    raise ConfigError(
        f"{path} was written to while it was read; write to another file and rename it"
    )


def _checked(opened: int, path: str | Path, max_bytes: int) -> os.stat_result:
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_one, name in _KINDS if is_one(status.st_mode)), "no file")
        raise ConfigError(f"{path} is {kind}; rules must be in a regular file")
    if status.st_size > max_bytes:
        raise _too_large(path, status.st_size, max_bytes)
    return status


def _read(opened: int, max_bytes: int) -> bytes:
    os.lseek(opened, 0, os.SEEK_SET)
    parts: list[bytes] = []
    left = max_bytes + 1
    while left and (part := os.read(opened, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _too_large(path: str | Path, size: int, max_bytes: int) -> ConfigError:
    return ConfigError(
        f"{path} has at least {size} bytes, but the limit is {max_bytes}; split the rules"
    )


def _unreadable(path: str | Path, error: OSError | ValueError) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(
        f"{path} cannot be read: {reason.lower()}; check the path and its permissions"
    )
