"""Figures of several worker processes, so that whichever answers a scrape reports all of them.

Each worker writes its figures to its own file in a shared folder, once a second and before it answers a scrape, so
nothing that was ever shown is lost when it dies: counters never go back. Its successor reads the file first and
continues from there. Only one process writes a file at a time, so no locks are needed. Gauges count only while their
file is fresh.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .metrics import lasting, merged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .metrics import Figures

FRESH: Final = 5.0
"""Seconds of silence after which a worker counts as gone."""


class WorkerPage(msgspec.Struct):
    """What a worker writes."""

    at: float
    figures: dict[str, list[tuple[list[str], Any]]]


class WorkerMetrics:
    """One worker's file in the shared folder; without a folder, only this worker is reported."""

    def __init__(
        self,
        folder: Path | None,
        place: int,
        own: Callable[[], Figures],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._file = None if folder is None else folder / f"figures-{place}.json"
        self._own = own
        self._log = logging.getLogger("headgate.service")
        self._now = now
        self._before: Figures = self._read_before()

    def write(self) -> None:
        """Write the file for the other workers."""
        if self._file is None:
            return
        page = WorkerPage(self._now(), self._figures())  # type: ignore[arg-type]  # Tuples are lists in JSON.
        beside = self._file.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode(page))
            beside.replace(self._file)
        except OSError as error:  # Not worth failing for.
            self._log.warning("the figures of this worker cannot be written: %s", error)

    def all(self) -> Figures:
        """The figures of all workers."""
        if self._folder is None:
            return self._own()
        self.write()
        oldest = self._now() - FRESH
        parts = []
        for file in sorted(self._folder.glob("figures-*.json")):
            page = _read(file)
            if page is not None:
                figures: Any = page.figures
                parts.append(figures if page.at >= oldest else lasting(figures))
        return merged(parts)

    def _figures(self) -> Figures:
        return merged([self._before, self._own()]) if self._before else self._own()

    def _read_before(self) -> Figures:
        """The figures of this worker's predecessor."""
        page = None if self._file is None else _read(self._file)
        figures: Any = {} if page is None else page.figures
        return lasting(figures)


def _read(file: Path) -> WorkerPage | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WorkerPage)
    except (OSError, msgspec.MsgspecError):  # Being replaced, or of another version.
        return None
