"""The audit log: every change that an operator makes, in a tamper-evident file.

One JSON object per line. Each line has its number, the hash of the previous line, and at its end a hash over all bytes
before that, so a line that is changed in any byte, removed, added or moved breaks the chain. Every process has its own
chain; its first line says so. A chain alone cannot show that its end was cut off: so the service's log has the number
and the hash (`head`) of every line, `/api/audit` those of the last, and `headgate audit verify` accepts either.

A line is on disk before the change is made, and the change is made before it is acknowledged. If the change then fails,
another line says so. So no change goes unrecorded, whenever the process dies.

A process that died while writing may leave half a line. The next one cuts it off and records that in the chain.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import stat
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from ...board.store import UnwritableError
from ...clock import SystemClock
from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from ...clock import Clock
    from .auth import Caller

try:
    import fcntl
except ImportError:  # Windows: the operator must ensure that no two processes share a file.
    fcntl = None  # type: ignore[assignment]

BEGINNING: Final = "0" * 64
"""Stands for the hash before the first line."""
KEPT_IN_MEMORY: Final = 1_000
SEAL: Final = len(',"hash":""}') + 64
"""The number of bytes at the end of a line that hold its hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedChange:
    """A change by an operator."""

    action: str
    """For example `ban.put`."""
    target: str
    """What is changed: a key, a rule."""
    before: Any = None
    after: Any = None
    reason: str = ""


class ChainBreak(NamedTuple):
    """Where a chain is broken, and how."""

    line: int
    message: str


class AuditVerdict(NamedTuple):
    """The result of verifying a file."""

    entries: int
    head: str
    breaks: tuple[ChainBreak, ...]

    @property
    def ok(self) -> bool:
        """Whether no break was found."""
        return not self.breaks


class AuditLog:
    """The chain of one process. Without a `path` it is kept in memory, up to a maximum size."""

    def __init__(
        self, path: str | os.PathLike[str] | None, *, node: str, clock: Clock | None = None
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._node = node
        self._lock = asyncio.Lock()
        self._log = logging.getLogger("headgate.service")
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT_IN_MEMORY)
        self._seq, self.head = 0, BEGINNING
        self._written = 0
        self.path = None if path is None else Path(path)
        self._file: IO[bytes] | None = None
        if self.path is not None:
            self._open(self.path)
        self._append(None, AuditedChange(action="chain.open", target=node))

    @asynccontextmanager
    async def change(self, caller: Caller, change: AuditedChange) -> AsyncIterator[None]:
        """Record a change that is made inside the block."""
        await self.note(caller, change)
        try:
            yield
        except BaseException as error:
            failed = AuditedChange(
                action=f"{change.action}.failed", target=change.target, reason=str(error)[:500]
            )
            await asyncio.shield(self.note(caller, failed))
            raise

    async def note(self, caller: Caller, change: AuditedChange) -> None:
        """Write a line; it is on disk when this returns."""
        async with self._lock:
            await asyncio.to_thread(self._append, caller, change)

    def recent(self, many: int, *, before: int | None = None) -> list[dict[str, Any]]:
        """The newest entries that are still in memory, newest first; all of them older than number `before`."""
        # An atomic copy: a thread may be writing the next entry.
        newest_first = reversed(self._recent.copy())
        found = [one for one in newest_first if before is None or one["seq"] < before]
        return found[:many]

    @property
    def entries(self) -> int:
        """The number of lines that this process has written."""
        return self._written

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            file = os.fdopen(handle, "rb+", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: the audit log cannot be opened: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise ConfigError(f"{path}: an audit log must be a file")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ConfigError(
                f"{path}: another process writes this audit log; give each its own"
            ) from None
        self._file = file
        try:
            self._continue(path)
        except BaseException:
            self.close()
            raise

    def _continue(self, path: Path) -> None:
        """Find the end of the chain; an incomplete last line was never acknowledged, and is cut off."""
        assert self._file is not None
        content = self._file.read()
        whole, _, torn = content.rpartition(b"\n")
        lines = _lines(whole)
        verdict = verify(lines)
        if not verdict.ok:
            first = verdict.breaks[0]
            raise ConfigError(
                f"{path}: the chain of the audit log is broken at line {first.line}: {first.message}; "
                "keep the file for the investigation, and start a new one"
            )
        self._recent.extend(json.loads(line) for line in lines[-KEPT_IN_MEMORY:])
        self._seq, self.head = verdict.entries, verdict.head
        if torn:
            self._file.truncate(len(whole) + 1 if whole else 0)
            self._append(
                None,
                AuditedChange(
                    action="chain.repair", target=self._node, before=f"{len(torn)} bytes"
                ),
            )

    def _append(self, caller: Caller | None, change: AuditedChange) -> None:
        at = datetime.fromtimestamp(self._clock.now_us() / 1_000_000, UTC)
        entry: dict[str, Any] = {
            "seq": self._seq + 1,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "node": self._node,
            "who": None if caller is None else caller.name,
            "role": None if caller is None else caller.role,
            "from": None if caller is None else caller.address,
            "action": change.action,
            "target": change.target,
            "before": change.before,
            "after": change.after,
            "reason": change.reason,
            "prev": self.head,
        }
        line, entry["hash"] = sealed(entry)
        if self._file is not None:
            self._write(line)
        self._seq, self.head = entry["seq"], entry["hash"]
        self._written += 1
        self._recent.append(entry)
        self._log.info("noted in the audit log", extra={"entry": self._seq, "head": self.head})

    def _write(self, line: bytes) -> None:
        """Write all of the line to disk, or none of it."""
        assert self._file is not None
        end = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            os.fsync(self._file.fileno())
            reason = "" if written == len(line) else "the disk is full"
        except OSError as error:
            reason = str(error.strerror)
        if reason:
            with suppress(OSError):
                self._file.truncate(end)
            raise UnwritableError(f"the audit log {self.path} cannot be written: {reason}")


def sealed(entry: dict[str, Any]) -> tuple[bytes, str]:
    """An entry as a line, which ends in the hash of its own bytes; and that hash."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest()
    return b'%b,"hash":"%b"}\n' % (text[:-1], digest.encode()), digest


def verify(lines: Iterable[bytes]) -> AuditVerdict:
    """Follow a chain from its first line to its last, and report where it is broken."""
    breaks: list[ChainBreak] = []
    head, number, seq = BEGINNING, 0, 0
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is None:
            breaks.append(ChainBreak(number, "this is not an entry"))
            continue
        if line != sealed_again(line):
            breaks.append(ChainBreak(number, "the entry was changed after it was written"))
        if entry["prev"] != head:
            breaks.append(
                ChainBreak(
                    number, "it does not follow the line before it: one was removed, added or moved"
                )
            )
        elif entry["seq"] != seq + 1:
            breaks.append(ChainBreak(number, f"its number is {entry['seq']}, behind {seq}"))
        head, seq = entry["hash"], entry["seq"]
    return AuditVerdict(number, head, tuple(breaks))


def sealed_again(line: bytes) -> bytes:
    """The line with a freshly computed hash."""
    text = line[:-SEAL] + b"}"
    return b'%b,"hash":"%b"}' % (line[:-SEAL], hashlib.sha256(text).hexdigest().encode())


def verify_file(path: Path) -> AuditVerdict:
    """Verify a file.

    Half a line at its end is a break: the process that left it must record that when it restarts.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the audit log cannot be read: {error.strerror}") from None
    verdict = verify(_lines(content))
    if not content:
        nothing = ChainBreak(
            0, "the log is empty; a chain begins with one line, so all of it is gone"
        )
        return verdict._replace(breaks=(nothing,))
    if not content.endswith(b"\n") and verdict.ok:
        torn = ChainBreak(verdict.entries, "the last line is incomplete")
        return verdict._replace(breaks=(torn,))
    return verdict


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The readable entries of a file, in order."""
    try:
        with path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is not None:
                    yield entry
    except OSError as error:
        raise ConfigError(f"{path}: the audit log cannot be read: {error.strerror}") from None


def _lines(content: bytes) -> list[bytes]:
    """The lines of a file; only a line feed ends one."""
    return content.removesuffix(b"\n").split(b"\n") if content else []


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not {"seq", "prev", "hash"} <= entry.keys():
        return None
    return entry if type(entry["seq"]) is int else None
