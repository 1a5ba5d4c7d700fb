r"""A state file: the counts of a memory engine, kept across restarts.

    headgate-state 1 <sha256 of the body> <bytes of the body>\n
    {"saved_us": …, "tables": [[namespace, rule, identity, {key: state, …}], …]}

Written to a temporary file beside it, flushed to the disk and renamed, so a crash leaves the old file or the new
one, never half of either. A file that is torn, foreign or of a newer format is refused when it is loaded and is
not overwritten. A lock beside it keeps a second process from taking the same file.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import StateFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

TableName: TypeAlias = tuple[str, str | None, str]
"""`(namespace, rule, identity)`."""

TableData: TypeAlias = dict[TableName, dict[str, Any]]

MAGIC: Final = "headgate-state"
FORMAT: Final = 1
log = logging.getLogger("headgate")


class StateFile:
    """One file, held by one process."""

    def __init__(self, path: str | os.PathLike[str], save_every: float) -> None:
        if not save_every > 0:
            raise UsageError(f"save_every is a number of seconds above 0, not {save_every!r}")
        self.path = Path(path)
        self.save_every = save_every
        self.closed = False
        self._stop = threading.Event()
        self._saver: threading.Thread | None = None
        self._saving = threading.Lock()
        self._lock = self._locked()

    def load(self) -> TableData:
        """What the last process saved; nothing when there is no file yet."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.close()
            raise StateFileError(f"cannot read the state file {self.path}: {error}") from error
        try:
            return self._parsed(content)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self.refused(f"its body does not make sense ({error})") from error

    def save(self, tables: TableData) -> None:
        """Replace the file; either all of it or nothing."""
        rows = [[*name, states] for name, states in tables.items() if states]
        body = json.dumps({"tables": rows}, separators=(",", ":")).encode()
        header = f"{MAGIC} {FORMAT} {sha256(body).hexdigest()} {len(body)}\n".encode()
        part = self.path.with_name(self.path.name + ".part")
        with self._saving:
            with part.open("wb") as file:
                file.write(header + body)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
            self._sync_folder()

    def start_saving(self, save: Callable[[], None]) -> None:
        """Call `save` every `save_every` seconds from a thread, until `stop_saving`."""

        def run() -> None:
            while not self._stop.wait(self.save_every):
                try:
                    save()
                except OSError as error:
                    log.warning("the state file %s could not be saved: %s", self.path, error)

        self._saver = threading.Thread(target=run, name="headgate-state-file", daemon=True)
        self._saver.start()

    def stop_saving(self) -> None:
        """End the thread that `start_saving` started."""
        self._stop.set()
        if self._saver is not None:
            self._saver.join()

    def close(self) -> None:
        """Let another process have the file."""
        self.closed = True
        self._lock.close()

    def refused(self, reason: str) -> StateFileError:
        """Let go of the file as it is; the error says why, and what to do."""
        self.close()
        return StateFileError(
            f"the state file {self.path} was refused: {reason}. It was left as it is; move it away "
            "to start with empty counts"
        )

    def _parsed(self, content: bytes) -> TableData:
        header, _, body = content.partition(b"\n")
        words = header.decode("ascii", "replace").split(" ")
        if words[0] != MAGIC or len(words) != 4:
            raise self.refused("it is not a Headgate state file")
        if words[1] != str(FORMAT):
            raise self.refused(f"it has format {words[1]}, and this version reads {FORMAT}")
        if words[2:] != [sha256(body).hexdigest(), str(len(body))]:
            raise self.refused("it is torn: its checksum does not match")
        return {
            (namespace, rule, identity): states
            for namespace, rule, identity, states in json.loads(body)["tables"]
        }

    def _locked(self) -> Any:
        path = self.path.with_name(self.path.name + ".lock")
        try:
            lock = path.open("ab")
        except OSError as error:
            raise StateFileError(f"cannot use the state file {self.path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StateFileError(
                f"the state file {self.path} is in use by another engine; give each its own"
            ) from None
        return lock

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
