"""Detecting that a file has changed, however it was changed.

Folders are watched, not files: most editors, and every careful program, replace the file with a new one, and a watch on
the old one would stay silent. If the file is a symbolic link, its target's folder is watched as well. The files are
also checked every second, for folders that are replaced as a whole, and for file systems without events.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from watchfiles import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("headgate.rules.file")
_watchfiles_log = logging.getLogger("watchfiles.main")
if _watchfiles_log.level == logging.NOTSET:  # It logs every event in the folder.
    _watchfiles_log.setLevel(logging.WARNING)

LOOK_EVERY_MS: Final = 1_000
QUIET_MS: Final = 50
"""Events are reported together after this much silence."""
AT_MOST_MS: Final = 400
RETRY_SECONDS: Final = 2.0

Signature: TypeAlias = tuple[object, ...]


class FileWatch:
    """A thread that calls `notify` when one of the files may have changed."""

    def __init__(self, paths: Sequence[Path], notify: Callable[[], None]) -> None:
        self._paths = paths
        self._notify = notify
        self._stop = threading.Event()
        self._watching = threading.Event()
        self._seen: Signature = ()
        self._thread = threading.Thread(target=self._run, name="headgate-file-watch", daemon=True)

    @property
    def watching(self) -> bool:
        """Whether there is a folder to watch."""
        return self._watching.is_set()

    def start(self) -> None:
        """Start; changes are noticed from when this returns."""
        self._seen = self._signatures()
        self._watching.set()
        self._thread.start()

    def rest(self, seconds: float) -> bool:
        """Wait; returns whether the watch was stopped meanwhile."""
        return self._stop.wait(seconds)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            folders = self._folders()
            try:
                self._follow(folders)
            except (OSError, RuntimeError) as error:
                if self._watching.is_set():
                    log.warning("%s cannot be watched: %s", self._paths[0], error)
                    self._watching.clear()
                    self._notify()
                self._stop.wait(RETRY_SECONDS)
                self._look()

    def _follow(self, folders: dict[str, Signature]) -> None:
        """Watch these folders while they are the right ones."""
        for _ in watch(
            *folders,
            watch_filter=None,
            debounce=AT_MOST_MS,
            step=QUIET_MS,
            rust_timeout=LOOK_EVERY_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
        ):
            if not self._watching.is_set():
                self._watching.set()
                self._notify()
            self._look()
            if self._folders() != folders:
                return

    def _look(self) -> None:
        now = self._signatures()
        if now != self._seen:
            self._seen = now
            self._notify()

    def _folders(self) -> dict[str, Signature]:
        """The folders of the files and of link targets; identified by inode, not only by name."""
        named = {path.parent for path in self._paths}
        real = {Path(os.path.realpath(path)).parent for path in self._paths}
        return {
            str(folder): signature[:2]
            for folder in sorted(named | real)
            if (signature := _signature(folder))
        }

    def _signatures(self) -> Signature:
        return tuple(map(_signature, self._paths))


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
