"""Traffic to replay: generated shapes, and recordings.

An arrival is a moment in microseconds from the beginning, a key and a cost. Generated traffic is evenly spaced: the
same shape is always the same traffic.
"""

from __future__ import annotations

import csv
import json
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

US_PER_SECOND: Final = 1_000_000
MAX_ARRIVALS: Final = 2_000_000
MAX_SECONDS: Final = 7 * 86_400


class Arrival(NamedTuple):
    """One request."""

    at_us: int
    key: str = "key"
    cost: int = 1


class Shape(NamedTuple):
    """Named traffic, and how long it is watched."""

    title: str
    seconds: float
    arrivals: list[Arrival]


def steady(rate: float = 5.0, seconds: float = 30.0, keys: int = 1, cost: int = 1) -> Shape:
    """Evenly spaced requests, alternating between the keys."""
    title = f"steady, {rate:g} requests/s" + (f" by {keys} keys" if keys > 1 else "")
    return Shape(title, seconds, list(_evenly(0, seconds, rate, keys, cost)))


def burst(many: int = 100, seconds: float = 30.0) -> Shape:
    """Two requests a second, and after five seconds many at once."""
    arrivals = [*_evenly(0, seconds, 2), *([Arrival(5 * US_PER_SECOND)] * many)]
    return Shape(f"burst, {many} requests at once", seconds, sorted(arrivals))


def abuse(rate: float = 30.0, seconds: float = 60.0) -> Shape:
    """Far more than is allowed, for two thirds of the time; then nothing."""
    return Shape(
        f"sustained abuse, {rate:g} requests/s",
        seconds,
        list(_evenly(0, seconds * 2 / 3, rate)),
    )


def tour() -> Shape:
    """Steady traffic, then a burst, then abuse, then calm: every algorithm gets its turn."""
    arrivals = [
        *_evenly(0, 160, 6, 12),
        *(Arrival(25 * US_PER_SECOND + at, f"key {at % 12}") for at in range(120)),
        *(one._replace(key="abuser") for one in _evenly(65, 110, 45)),
    ]
    return Shape("steady, a burst, sustained abuse, and calm again", 160, sorted(arrivals))


SHAPES: Final[dict[str, Callable[[], Shape]]] = {
    "tour": tour,
    "steady": steady,
    "burst": burst,
    "abuse": abuse,
}


def recorded(path: str | os.PathLike[str]) -> Shape:
    """Recorded requests: CSV or JSON lines, each with a time, and optionally a key and a cost.

    A time is seconds since any moment, or ISO 8601. A line of CSV is `time,key,cost`, in that order unless the
    first line names the columns; a JSON line is an object with `at` (or `time`, `timestamp`), `key` and `cost`, or
    just a time.
    """
    source = Path(path)
    try:
        with source.open(encoding="utf-8", newline="") as text:
            rows = (
                _json_rows(text)
                if source.suffix in {".jsonl", ".ndjson", ".json"}
                else _csv_rows(text)
            )
            found = sorted(islice(rows, MAX_ARRIVALS + 1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{source} cannot be read: {error}") from error
    except _RowError as error:
        raise UsageError(f"{source}, line {error.line}: {error}") from error
    if not found:
        raise UsageError(f"{source} has no requests")
    if len(found) > MAX_ARRIVALS:
        raise UsageError(f"{source} has more than {MAX_ARRIVALS:,} requests; replay a part of it")
    begin_us = found[0].at_us // US_PER_SECOND * US_PER_SECOND
    seconds = (found[-1].at_us - begin_us) // US_PER_SECOND + 1
    if seconds > MAX_SECONDS:
        raise UsageError(f"{source} spans {seconds / 86_400:.0f} days; replay at most 7 at a time")
    moved = [one._replace(at_us=one.at_us - begin_us) for one in found]
    return Shape(source.name, float(seconds), moved)


class _RowError(Exception):
    """A line that cannot be read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _evenly(
    begin: float, end: float, rate: float, keys: int = 1, cost: int = 1
) -> Iterator[Arrival]:
    if not (0 < rate <= MAX_ARRIVALS and 0 < end <= MAX_SECONDS):
        raise UsageError(f"{rate:g} requests/s for {end:g} s cannot be replayed")
    many = int((end - begin) * rate)
    if many > MAX_ARRIVALS:
        raise UsageError(f"that is {many:,} requests; at most {MAX_ARRIVALS:,} are replayed")
    for i in range(many):
        at_us = int((begin + i / rate) * US_PER_SECOND)
        yield Arrival(at_us, f"key {i % keys}" if keys > 1 else "key", cost)


def _csv_rows(text: Iterable[str]) -> Iterator[Arrival]:
    columns = ["at", "key", "cost"]
    for line, row in enumerate(csv.reader(text), 1):
        if not row or not row[0].strip():
            continue
        if line == 1 and _time(row[0]) is None:
            columns = [name.strip().lower() for name in row]
            continue
        yield _arrival(line, dict(zip(columns, (cell.strip() for cell in row), strict=False)))


def _json_rows(text: Iterable[str]) -> Iterator[Arrival]:
    for line, raw in enumerate(text, 1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError):
            raise _RowError(line, "this is not JSON") from None
        yield _arrival(line, row if isinstance(row, dict) else {"at": row})


def _arrival(line: int, row: dict[str, Any]) -> Arrival:
    written = next((row[name] for name in ("at", "time", "timestamp") if name in row), None)
    at_us = _time(written)
    if at_us is None:
        raise _RowError(
            line, f"{written!r:.40} is not a time; write seconds, or ISO 8601, under 'at'"
        )
    cost = row.get("cost") or 1
    try:
        cost = int(cost)
    except (TypeError, ValueError, OverflowError):
        cost = 0
    if not 1 <= cost <= 1_000_000:
        raise _RowError(
            line, f"{row.get('cost')!r:.40} is not a cost; write a whole number, at least 1"
        )
    return Arrival(at_us, str(row.get("key") or "key"), cost)


def _time(written: object) -> int | None:
    """Microseconds, or `None`."""
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        return None
    try:
        seconds = float(written)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(str(written).strip()).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return int(seconds * US_PER_SECOND) if abs(seconds) < 1e11 else None
