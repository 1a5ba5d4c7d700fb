r"""A state file: the counts of a memory engine, kept across restarts.

    headgate-state 1 <sha256 of the body> <bytes of the body>\n
    {"secret": hex, "tables": [[namespace, rule, identity, {key: state, …}, {number: state, …}], …]}

The second group of states in a table is shared by unrelated keys; the secret determines which key shares which (see
`_state_table.py`), and only the file's owner can read it.

It is replaced atomically (see `_atomic_file.py`), so a crash never leaves half of it. A file that is damaged, not a
state file or of a newer format is refused when it is loaded and is not overwritten. A lock next to it keeps a second
process from using the same file; on systems without such locks (Windows) a warning says so. A forked child never uses
its parent's file.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .._atomic_file import replace_file
from ..errors import StateFileError, UsageError

try:
    import fcntl
except ImportError:  # Windows.
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TableName: TypeAlias = tuple[str, str | None, str]
"""`(namespace, rule, identity)`."""

MAGIC: Final = "headgate-state"
FORMAT: Final = 1
SAVE_EVERY: Final = 10.0
AT_ONCE: Final = 500
"""States that are written in one go."""
log = logging.getLogger("headgate")


class StateFileRow(NamedTuple):
    """One table as plain data."""

    name: TableName
    states: dict[str, Any]
    shared: dict[str, Any]


class Content(NamedTuple):
    """What a file says."""

    secret: str
    rows: list[StateFileRow]


class StateFile:
    """One file, held by one process."""

    def __init__(self, path: str | os.PathLike[str], save_every: float) -> None:
        given = Path(path)
        if not given.name or "\0" in given.name:
            raise UsageError(f"state_file must be the path of a file, not {os.fspath(path)!r}")
        if isinstance(save_every, bool) or not isinstance(save_every, int | float):
            raise UsageError(f"save_every must be a number of seconds, not {save_every!r}")
        if not 0 < save_every <= threading.TIMEOUT_MAX:
            raise UsageError(f"save_every must be above 0 seconds, not {save_every!r}")
        self.path = given.absolute()  # It stays where it is when the process goes elsewhere.
        self.save_every = save_every
        self.closed = False
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._saver: threading.Thread | None = None
        self.saving = threading.Lock()
        """Held by whoever saves."""
        self._lock = self._locked()

    @property
    def held(self) -> bool:
        """Whether the file is this process's to write."""
        return not self.closed and self._pid == os.getpid()

    def load(self) -> Content | None:
        """What the last process saved; nothing when there is no file yet."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.close()
            raise StateFileError(f"cannot read the state file {self.path}: {error}") from error
        try:
            return self._parsed(content)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self.refused(f"its body is invalid ({error})") from error

    def save(self, content: Content) -> None:
        """Replace the file; either all of it or nothing. The caller holds `saving`."""
        body = "".join(_written(content)).encode()
        header = f"{MAGIC} {FORMAT} {sha256(body).hexdigest()} {len(body)}\n".encode()
        try:
            replace_file(self.path, header + body, private=True)
        except OSError as error:
            raise StateFileError(f"cannot write the state file {self.path}: {error}") from error

    def require_held(self) -> None:
        """Refuse to write a file that now belongs to another process."""
        if self._pid != os.getpid():
            raise UsageError(
                f"the state file {self.path} belongs to process {self._pid}, from which this one was "
                "forked; create an engine with its own file here"
            )
        if self.closed:
            raise UsageError(
                f"the state file {self.path} is closed; save before closing the engine"
            )

    def start_saving(self, save: Callable[[], None]) -> None:
        """Call `save` every `save_every` seconds from a thread, until `stop_saving`."""

        def run() -> None:
            while not self._stop.wait(self.save_every):
                try:
                    save()
                except StateFileError as error:
                    log.warning("counts are not saved: %s", error)

        self._saver = threading.Thread(target=run, name="headgate-state-file", daemon=True)
        self._saver.start()

    def stop_saving(self) -> None:
        """End the thread that `start_saving` started."""
        self._stop.set()
        if self._saver is not None:
            self._saver.join()

    def close(self) -> None:
        """Let another process have the file, after a save that is under way."""
        with self.saving:
            self.closed = True
            self._lock.close()

    def after_fork(self) -> None:
        """Close the child's copy of the lock, or it would block the file for the next process."""
        self._lock.close()

    def refused(self, reason: str) -> StateFileError:
        """Let go of the file as it is; the error says why, and what to do."""
        self.close()
        return StateFileError(
            f"the state file {self.path} was refused: {reason}. It was not changed; move it away "
            "to start with empty counts"
        )

    def _parsed(self, content: bytes) -> Content:
        header, _, body = content.partition(b"\n")
        words = header.decode("ascii", "replace").split(" ")
        if words[0] != MAGIC or len(words) != 4:
            raise self.refused("it is not a Headgate state file")
        if words[1] != str(FORMAT):
            raise self.refused(f"it has format {words[1]}, but this version reads {FORMAT}")
        if words[2:] != [sha256(body).hexdigest(), str(len(body))]:
            raise self.refused("it is damaged: its checksum does not match")
        data = json.loads(body)
        rows = [
            StateFileRow((namespace, rule, identity), states, shared)
            for namespace, rule, identity, states, shared in data["tables"]
        ]
        return Content(data["secret"], rows)

    def _locked(self) -> Any:
        path = self.path.with_name(self.path.name + ".lock")
        try:
            lock = path.open("ab")
        except OSError as error:
            raise StateFileError(
                f"cannot use the state file {self.path}: {error.strerror}; its folder must exist and be writable"
            ) from error
        if not HAS_LOCKS:
            log.warning(
                "the state file %s is not locked: this system has no fcntl. Make sure that no "
                "other process uses it",
                self.path,
            )
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StateFileError(
                f"the state file {self.path} is in use by another engine; give each its own"
            ) from None
        return lock


def _written(content: Content) -> Iterator[str]:
    """The body of a file, in pieces: encoding a million states in one go would block every other thread."""
    yield f'{{"secret":{json.dumps(content.secret)},"tables":['
    for number, (name, states, shared) in enumerate(content.rows):
        yield f"{',' if number else ''}[{json.dumps(name)[1:-1]},"
        yield from _written_states(states)
        yield ","
        yield from _written_states(shared)
        yield "]"
    yield "]}"


def _written_states(states: dict[str, Any]) -> Iterator[str]:
    entries = iter(states.items())
    yield "{"
    comma = ""
    while few := dict(islice(entries, AT_ONCE)):
        yield comma + json.dumps(few, separators=(",", ":"))[1:-1]
        comma = ","
    yield "}"
