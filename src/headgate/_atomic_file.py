"""Replace files atomically: a crash, a full disk or a second writer leaves the old content or the new, never a mix.

New content is written next to the file and flushed to disk; then it replaces the file in one step, which is durable
once the folder is flushed, too. The next save removes what a killed process has left next to the file. The new file has
the old one's permissions, unless it is private: then only its owner may read it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from typing import Self

try:
    import fcntl
except ImportError:  # Windows: editors there must agree among themselves.
    fcntl = None  # type: ignore[assignment]


PART: Final = ".headgate-part"
"""The suffix of files that are about to replace another."""


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file's content in one step; a symbolic link stays one.

    If this raises `OSError`, the old content is unchanged.
    """
    target = real(path)
    with open_folder(target.parent) as folder:
        with write_part(target, data, private=private) as part:
            part.replace(target)
        sync_folder(folder)


def real(path: Path) -> Path:
    """Where a path leads, through every link."""
    return Path(os.path.realpath(path))


class Part:
    """New content on disk, ready to replace a file. Leaving the `with` block without replacing it removes it.

    It is locked while it is in use, so that files left by killed processes can be recognised and removed.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self.mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        self._file = file

    def replace(self, target: Path) -> None:
        """Take the place of a file."""
        self.path.replace(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)  # It no longer exists once it has replaced the file.
        self._file.close()


def write_part(target: Path, data: bytes, *, private: bool = False) -> Part:
    """Content that can take a file's place."""
    _remove_leftovers(target)
    path, file = _new_part(target)
    try:
        write_all(file, data)
        if not private:  # As it was made.
            copy_access(target, file.fileno())
        os.fsync(file.fileno())
        return Part(path, file)
    except BaseException:
        path.unlink(missing_ok=True)
        file.close()
        raise


def _new_part(target: Path) -> tuple[Path, FileIO]:
    """A new file beside another, locked."""
    while True:
        descriptor, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=PART
        )
        file = os.fdopen(descriptor, "wb", buffering=0)
        lock(descriptor)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), Path(name).stat()):
                return Path(name), file
        file.close()  # Another process took it for abandoned before it was locked.


def _remove_leftovers(target: Path) -> None:
    """Remove the unlocked files that killed processes have left next to a file."""
    with contextlib.suppress(OSError), os.scandir(target.parent) as found:
        names = [
            Path(one.path)
            for one in found
            if one.name.startswith(f".{target.name}.") and one.name.endswith(PART)
        ]
        for path in names:
            with contextlib.suppress(OSError), path.open("rb") as part:
                if _is_free(part.fileno()) and os.path.samestat(
                    os.fstat(part.fileno()), path.stat()
                ):
                    path.unlink()


def _is_free(file: int) -> bool:
    """Try to lock this file; false if another process has the lock."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fcntl is not None


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of it; a disk that is nearly full takes a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def copy_access(old: Path, new: int) -> None:
    """Give the new file the old one's permissions; a first file is world-readable."""
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
    """Flush a folder's entries to disk, if its file system supports that."""
    if folder is None:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def lock(file: int) -> None:
    """Lock this file or folder, waiting for other locks; closing it releases the lock."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
