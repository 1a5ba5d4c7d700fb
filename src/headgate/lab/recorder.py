"""The recorder: writes a history while clients run, in threads, tasks or processes.

Each line is one `write` to a file opened for appending, so lines of many writers never mix, and a client that is killed
loses at most its current operation. Another process joins with `HistoryRecorder.join(path)`; all of them must run on
one machine, whose monotonic clock is the clock of the history.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from typing import TYPE_CHECKING, Any, Final, Self

from ..errors import HeadgateError, UsageError, may_have_happened
from .history import FORMAT, MAX_LINE, VERSION
from .limits import limit_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from ..algorithms import Limit
    from ..decision import Decision


def monotonic_us() -> int:
    """The clock of a history."""
    return time.monotonic_ns() // 1000


def wall_offset_us() -> int:
    """The offset from that clock to the time of day."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


class HistoryWriter:
    """Writes one record per operation; `_write` decides where they go."""

    def _write(self, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def operation(self, **fields: Any) -> None:
        """Write one operation; fields that are `None` are left out."""
        self._write({name: value for name, value in fields.items() if value is not None})

    def fault(self, kind: str, **fields: Any) -> None:
        """Write one fault, once it is over."""
        self._write({"fault": kind, **{k: v for k, v in fields.items() if v is not None}})

    def decision(
        self, decision: Decision, *, costs: Mapping[str | None, int] | None = None, **fields: Any
    ) -> None:
        """Write a client's answer; one line for each of several charges, whose costs may differ by rule."""
        parts = decision.rules
        if len(parts) > 1 and fields.get("id") is None:
            raise UsageError(
                "a request with several charges needs an id, which all of its lines share"
            )
        for part in parts:
            receipt = part.receipt
            several = {"key": part.key, "rule": part.rule, "own": bool(part)}
            if costs is not None:
                fields["cost"] = costs[part.rule]
            self.operation(
                **{**fields, **(several if len(parts) > 1 else {})},
                type="allow" if decision else "deny",
                source=part.source,
                ver=receipt and receipt.version,
                now_us=receipt and receipt.now_us,
                epoch=(receipt and receipt.epoch) or None,
                remaining=part.answer[1],
                retry_after_us=part.answer[2],
                reset_after_us=part.answer[3],
            )

    def failed(self, error: BaseException, **fields: Any) -> None:
        """Write that a call raised: certainly without effect, or with unknown outcome."""
        unknown = may_have_happened(error)
        self.operation(**fields, type="info" if unknown else "fail", err=str(error)[:200])


def header_of(engine: str, mode: str, limits: Mapping[str, Limit], **more: Any) -> dict[str, Any]:
    """The first line of a history."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "engine": engine,
        "mode": mode,
        "limits": {rule: limit_to_json(limit) for rule, limit in limits.items()},
        **more,
    }


def line_of(record: dict[str, Any]) -> bytes:
    """A record as a line of the file."""
    line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise UsageError(f"a line of a history may have at most {MAX_LINE} bytes, not {len(line)}")
    return line


class HistoryRecorder(HistoryWriter):
    """Appends to one history; safe to share between threads, and to open once per process.

    >>> import tempfile
    >>> from headgate import FixedWindow, Limiter
    >>> path = tempfile.mkdtemp() + "/history.jsonl"
    >>> limit = FixedWindow(2, 60_000_000)
    >>> limiter = Limiter()
    >>> with HistoryRecorder(path, engine="memory", mode="exact", limits={"api": limit}) as recorder:
    ...     for _ in range(3):
    ...         _ = recorder.call(lambda: limiter.hit("ann", limit), f="check", key="ann")
    """

    def __init__(
        self, path: str | Path, *, engine: str, mode: str, limits: Mapping[str, Limit], **more: Any
    ) -> None:
        header = header_of(engine, mode, limits, **{"epoch_us": wall_offset_us(), **more})
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._file = os.open(path, flags, 0o644)
        self._write(header)

    @classmethod
    def join(cls, path: str | Path) -> HistoryRecorder:
        """Append to a history that another process has begun."""
        recorder = cls.__new__(cls)
        recorder._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        return recorder

    def call(self, ask: Callable[[], Decision], **fields: Any) -> Decision | None:
        """Time one blocking call and write its outcome; `None` if it failed."""
        t0 = monotonic_us()
        try:
            decision = ask()
        except HeadgateError as error:
            self.failed(error, t0=t0, t1=monotonic_us(), **fields)
            return None
        self.decision(decision, t0=t0, t1=monotonic_us(), **fields)
        return decision

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: dict[str, Any]) -> None:
        line = line_of(record)
        if os.write(self._file, line) != len(line):
            raise OSError("the history could not be written: is the disk full?")


class OperationSlots:
    """The operations that a client has started, in a mapped file: a killed client cannot report their outcome.

    After killing it, read the file and record those operations as unknown, with `write_unknown`.
    """

    SIZE: Final = 512

    def __init__(self, path: Path, slots: int) -> None:
        path.write_bytes(b"\0" * (self.SIZE * slots))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE * slots)

    def begin(self, slot: int, operation: dict[str, Any]) -> None:
        """Record an operation that is about to be sent."""
        text = json.dumps(operation, separators=(",", ":")).encode()
        if len(text) >= self.SIZE:
            raise UsageError(f"an operation under way has at most {self.SIZE - 1} bytes")
        place = slot * self.SIZE
        self._map[place : place + self.SIZE] = text.ljust(self.SIZE, b"\0")

    def end(self, slot: int) -> None:
        """Clear an operation that has ended and was recorded."""
        self._map[slot * self.SIZE] = 0


def write_unknown(writer: HistoryWriter, path: Path, t1: int) -> int:
    """Record the operations that a client had started when it was killed at `t1`; returns their number."""
    content = path.read_bytes()
    found = 0
    for place in range(0, len(content), OperationSlots.SIZE):
        text = content[place : place + OperationSlots.SIZE].rstrip(b"\0")
        if not text.startswith(b"{"):
            continue
        try:
            operation = json.loads(text)
        except ValueError:  # It was killed while writing this, so before anything was sent.
            continue
        writer.operation(**operation, t1=t1, type="info", err="its client was killed")
        found += 1
    return found
