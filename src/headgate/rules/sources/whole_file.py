"""Whether a file is complete: half of a rules file often parses, too.

A file is used if one of these holds; until then, the previous rules stay in use:

- it was unchanged twice, `REST_SECONDS` apart;
- it has not been touched for a while;
- it was written under another name and then renamed, as careful programs do;
- Headgate wrote it: then its history knows the content.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..format.file_reading import FileContent

REST_SECONDS: Final = 0.3
LONG_AGO_SECONDS: Final = 5.0
"""More than the clocks of two machines that share a disk should differ."""
PATIENCE_SECONDS: Final = 5.0
"""How long to keep checking a file that keeps changing."""


class FileKeepsChangingError(Exception):
    """The file changes faster than it can be read."""


class WholeFile:
    """Reads a file repeatedly, once it is complete.

    `read` returns its content and status, `is_known` whether Headgate wrote a content, and `rest` waits and returns
    whether to stop.
    """

    def __init__(
        self,
        read: Callable[[], FileContent],
        is_known: Callable[[bytes], bool],
        rest: Callable[[float], bool],
    ) -> None:
        self._read = read
        self._is_known = is_known
        self._rest = rest
        self._last: FileContent | None = None

    def read(self) -> bytes:
        """The content; raises `FileKeepsChangingError` if it does not become complete in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        found = self._read()
        while not self._is_whole(found):
            if time.monotonic() > deadline or self._rest(REST_SECONDS):
                raise FileKeepsChangingError
            before, found = found, self._read()
            same_status = _signature(before.status) == _signature(found.status)
            if same_status and before.data == found.data:
                break
        self._last = found
        return found.data

    def _is_whole(self, found: FileContent) -> bool:
        last, status = self._last, found.status
        if last is not None:
            if found.data == last.data:
                return True
            if not os.path.samestat(status, last.status) and _was_renamed(status):
                return True
        return _is_old(status) or self._is_known(found.data)


def _was_renamed(status: os.stat_result) -> bool:
    """Whether its metadata changed after its last byte was written; most likely it was renamed."""
    return os.name != "nt" and status.st_ctime_ns > status.st_mtime_ns


def _is_old(status: os.stat_result) -> bool:
    age_seconds = time.time() - max(status.st_mtime, status.st_ctime)
    return age_seconds > LONG_AGO_SECONDS


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
