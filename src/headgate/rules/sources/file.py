"""Rules in a file: watched, replaced atomically, and with a history next to it.

    rules.yaml            the rules, written by hand
    rules.yaml.history    one JSON line for every change made through Headgate

A file has no version, and its owner may well restore an older one: the newest content is the newest version. What
matters to an editor is whether the content is still what it saw.

The folder and the history are locked during a change. The new content is first written next to the file, where a full
disk does no harm; then the line in the history, so that no change goes unrecorded; then it replaces the file, and from
that moment the change is made, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..._atomic_file import (
    copy_access,
    lock,
    open_folder,
    real,
    replace_file,
    sync_folder,
    write_all,
    write_part,
)
from ...errors import ConfigError
from ..format.file_reading import FileContent, read_with_status
from .base import (
    KEPT_ENTRIES,
    Edit,
    Head,
    HistoryEntry,
    Progress,
    Snapshot,
    SourceError,
    SourceLost,
    VersionConflict,
)
from .file_text import changed_text, rules_of
from .file_watch import FileWatch
from .journal import as_bytes, as_text, conflict_with, decode_entry, encode_entry, entry_of
from .whole_file import FileKeepsChangingError, WholeFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from io import FileIO

    from .location import Location

MAX_HISTORY_BYTES: Final = 16 * 1024 * 1024
NO_LIMIT: Final = 1 << 40


class FileStore:
    """The rules in one file."""

    ordered = False
    separate = False
    warnings: tuple[str, ...] = ()

    def __init__(self, location: Location) -> None:
        self._location = location
        self._path = Path(location.path).absolute()
        self._history = self._path.with_name(self._path.name + ".history")
        self._watch: FileWatch | None = None
        self._whole: WholeFile | None = None

    def __str__(self) -> str:
        return str(self._location)

    @property
    def in_touch(self) -> bool:
        """Whether the file's folder is being watched."""
        return self._watch is not None and self._watch.watching

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever the file may have changed."""
        self._watch = FileWatch([self._path, self._history], notify)
        self._whole = WholeFile(self._read_with_status, self._has_written, self._watch.rest)
        self._watch.start()

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()

    def again(self) -> FileStore:
        """A fresh store for the same file."""
        return FileStore(self._location)

    # Reading

    def read(self) -> Snapshot:
        """The current content; while the file is watched, only once it is complete."""
        try:
            data = self._read() if self._whole is None else self._whole.read()
        except FileKeepsChangingError:
            raise SourceError(
                f"{self._path} is being written to; write to another file and rename it"
            ) from None
        with contextlib.suppress(OSError):
            version = self._path.stat().st_mtime_ns
            return self._snapshot(data, version)
        return self._snapshot(data, time.time_ns())

    def read_for_edit(self) -> Snapshot:
        """Like `read`; a missing file is empty."""
        try:
            return self.read()
        except SourceError:
            if self._path.exists():
                raise
            return self._snapshot(b"", 0)

    def rules_in(self, snapshot: Snapshot) -> Mapping[str, tuple[str, str]]:
        """Every rule in the file, by its id; raises `RulesError` if the file is bad."""
        data = snapshot.documents.get(self._path.name, b"")
        if not data:
            return {}
        rules = rules_of(as_text(data), self._path.name)
        return {rule_id: (rule_id, json.dumps(rule)) for rule_id, rule in rules.items()}

    def name_for(self, rule_id: str) -> str:
        """The rule's id: rules in a file have no other name."""
        return rule_id

    def history(self, limit: int = KEPT_ENTRIES) -> Sequence[HistoryEntry]:
        """The newest changes, newest first."""
        return [self._entry(line) for line in reversed(self._lines()[-limit:])]

    def text_after(self, revision: int) -> bytes | None:
        """The file after a revision: as the next change found it, if that was recorded."""
        lines = {line["revision"]: line for line in self._lines()}
        if revision + 1 in lines and "text_before" in lines[revision + 1]:
            return as_bytes(lines[revision + 1]["text_before"])
        return as_bytes(lines[revision]["text"]) if revision in lines else None

    # Writing

    def commit(
        self, edit: Edit, expected: Snapshot, *, progress: Progress | None = None
    ) -> HistoryEntry:
        """Make the change, if the file still has the expected content; else raise `VersionConflict`."""
        target = real(self._path)
        try:
            with open_folder(target.parent) as folder, self._locked_history(folder) as history:
                entry = self._commit(edit, expected, history, target)
                self._confirm(folder)
                return entry
        except OSError as error:
            raise SourceError(
                f"{error.filename or self._path}: {error.strerror or error}; nothing was written",
                transient=False,
            ) from error

    def _commit(
        self, edit: Edit, expected: Snapshot, history: FileIO, target: Path
    ) -> HistoryEntry:
        history.seek(0)
        lines = _decoded(history.read())
        before = self._read() if self._path.exists() else b""
        if _digest(before) != expected.token:
            raise self._conflict(before, lines)
        after, warning = self._text(edit, before)
        entry = entry_of(edit, (lines[-1]["revision"] if lines else 0) + 1)
        line = self._encoded(entry, before, after, lines, emptied=edit.emptied)
        with write_part(target, after) as part:
            end = history.seek(0, os.SEEK_END)
            try:
                self._append(history, line)
                part.replace(target)
            except BaseException:
                # Otherwise it has replaced the file, and the change is made.
                if part.path.exists():
                    history.truncate(end)
                raise
        if len(lines) >= KEPT_ENTRIES or end + len(line) > MAX_HISTORY_BYTES:
            with contextlib.suppress(OSError):  # The next change will do it.
                self._shorten()
        return replace(entry, version=part.mtime_ns, warning=warning)

    def _append(self, history: FileIO, line: bytes) -> None:
        """Append a line to the history, and sync it to disk."""
        is_new = history.tell() == 0
        try:
            if is_new:  # It is as sensitive as the rules themselves.
                copy_access(self._path, history.fileno())
            write_all(history, line if _ends_whole(history) else b"\n" + line)
            os.fsync(history.fileno())
            if is_new:
                with open_folder(self._history.parent) as folder:
                    sync_folder(folder)
        except OSError as error:
            error.filename = str(self._history)
            raise

    def _confirm(self, folder: int | None) -> None:
        """Sync a change to disk."""
        try:
            sync_folder(folder)
        except OSError as error:
            raise SourceError(
                f"{self._path} was changed, but the disk does not confirm it: {error.strerror}; after a "
                "power failure it may be unchanged",
                transient=False,
            ) from error

    def _text(self, edit: Edit, before: bytes) -> tuple[bytes, str]:
        if edit.text is not None:
            return edit.text, ""
        changes = {
            change.rule_id: None if change.after is None else json.loads(change.after)
            for change in edit.changes
        }
        text, kept = changed_text(as_text(before), changes, self._path.name)
        warning = f"{self._path.name} had to be rewritten, and its comments are gone"
        return as_bytes(text), "" if kept else warning

    def _encoded(
        self,
        entry: HistoryEntry,
        before: bytes,
        after: bytes,
        lines: Sequence[Mapping[str, Any]],
        *,
        emptied: bool,
    ) -> bytes:
        data, _ = encode_entry(entry, "", whole=NO_LIMIT, part=NO_LIMIT)
        line = {**json.loads(data), "digest": _digest(after), "text": as_text(after)}
        if not lines or lines[-1]["digest"] != _digest(before):
            line["text_before"] = as_text(before)  # The file was edited by hand since.
        forced = lines[-1]["last_forced"] if lines else 0
        line["last_forced"] = entry.revision if entry.forced else forced
        if emptied:
            line["emptied"] = entry.revision
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def _conflict(self, now: bytes, lines: Sequence[Mapping[str, Any]]) -> VersionConflict:
        if lines and lines[-1]["digest"] == _digest(now):
            rule_ids = [change["rule_id"] for change in lines[-1]["changes"]]
            return conflict_with(_head(lines[-1]), rule_ids)
        return VersionConflict(
            f"{self._path} was changed meanwhile, not through Headgate; nothing was written: look at it "
            "and try again"
        )

    # Files

    def _read(self) -> bytes:
        return self._read_with_status().data

    def _read_with_status(self) -> FileContent:
        try:
            return read_with_status(self._path)
        except ConfigError as error:
            kind = SourceError if os.path.lexists(self._path) else SourceLost
            raise kind(str(error)) from error

    def _has_written(self, data: bytes) -> bool:
        """Whether Headgate wrote this content last."""
        lines = self._lines()
        return bool(lines) and lines[-1]["digest"] == _digest(data)

    def _snapshot(self, data: bytes, version: int) -> Snapshot:
        lines = self._lines()
        head = _head(lines[-1]) if lines and lines[-1]["digest"] == _digest(data) else None
        return Snapshot(
            version=version,
            documents={self._path.name: data},
            head=head,
            token=_digest(data),
        )

    def _lines(self) -> list[dict[str, Any]]:
        try:
            return _decoded(self._history.read_bytes())
        except OSError:
            return []

    def _entry(self, line: Mapping[str, Any]) -> HistoryEntry:
        return decode_entry(json.dumps(line).encode(), (), f"a line of {self._history}")

    @contextlib.contextmanager
    def _locked_history(self, folder: int | None) -> Iterator[FileIO]:
        """The history, for one editor at a time, even if another one knows the file by a different name.

        Unbuffered: data that could not be written is not tried again on closing.
        """
        if folder is not None:
            with contextlib.suppress(OSError):  # Not every network file system can lock folders.
                lock(folder)
        while True:
            with self._history.open("a+b", buffering=0) as history:
                lock(history.fileno())
                # It may have been replaced by a shorter one meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(history.fileno()), self._history.stat()):
                        yield history
                        return

    def _shorten(self) -> None:
        """Drop the oldest changes, and torn lines."""
        kept: list[bytes] = []
        size = 0
        for line in reversed(self._history.read_bytes().splitlines(keepends=True)):
            if not _decoded(line):
                continue
            size += len(line)
            if kept and (len(kept) >= KEPT_ENTRIES or size > MAX_HISTORY_BYTES):
                break
            kept.append(line)
        replace_file(self._history, b"".join(reversed(kept)))


def _decoded(history: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in history.split(b"\n"):
        with contextlib.suppress(ValueError):  # Torn, by a machine that crashed.
            found = json.loads(line)
            if isinstance(found, dict) and {"revision", "digest", "last_forced"} <= found.keys():
                lines.append(found)
    return lines


def _ends_whole(history: FileIO) -> bool:
    """Whether the last line is complete; a torn one would swallow what is appended to it."""
    if history.seek(0, os.SEEK_END) == 0:
        return True
    history.seek(-1, os.SEEK_END)
    return history.read(1) == b"\n"


def _head(line: Mapping[str, Any]) -> Head:
    return Head(
        revision=line["revision"],
        author=line["author"],
        at=line["at"],
        action=line["action"],
        forced=line["last_forced"],
        emptied=line.get("emptied", 0),
    )


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
