"""Files that are replaced as a whole: a crash, a full disk or a second writer leaves the old content or the new one, never half of either.

New content is written beside the file and flushed to the disk; then it takes the file's place in one step, which is on the
disk once the folder is flushed too. Who may read the old file may read the new one, unless it is private: that is its owner's alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

try:
    import fcntl
except ImportError:  # Windows: editors there must agree among themselves.
    fcntl = None  # type: ignore[assignment]


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Put new content in the place of a file, all at once; a symbolic link stays one.

    If that raises `OSError`, what was there still is.
    """
    target = real(path)
    with open_folder(target.parent) as folder:
        part, _ = write_beside(target, data, private=private)
        try:
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(folder)


def real(path: Path) -> Path:
    """Where a path leads, through every link."""
    return Path(os.path.realpath(path))


def write_beside(target: Path, data: bytes, *, private: bool = False) -> tuple[Path, int]:
    """Content on the disk that can take a file's place, and the time that it will have there."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            write_all(file, data)
            if not private:  # As it was made.
                copy_access(target, file.fileno())
            os.fsync(file.fileno())
            return part, os.fstat(file.fileno()).st_mtime_ns
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of it; a disk that is nearly full takes a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def copy_access(old: Path, new: int) -> None:
    """Let the same people read the new file; a first one is everybody's to read."""
    try:
        was = old.stat()
    except FileNotFoundError:
        mode = 0o644
    else:
        mode = was.st_mode & 0o7777
        with contextlib.suppress(OSError, AttributeError):  # Only root may give files away.
            os.fchown(new, was.st_uid, was.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(new, mode)


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int | None]:
    """A folder that can be locked and flushed; opened before anything is written, so that it cannot fail afterwards."""
    if os.name == "nt":  # Windows opens no folders.
        yield None
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        yield folder
    finally:
        os.close(folder)


def sync_folder(folder: int | None) -> None:
    """Have it on the disk which files are in a folder, where its file system can be asked for that."""
    if folder is None:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def lock(file: int) -> None:
    """Wait until nobody else has a lock on this file or folder; closing it lets the next one go on."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
