"""Figures of several worker processes, so that whichever answers a scrape speaks for all of them.

Each worker writes its figures to a file of its own place in a shared folder, once a second and before it answers a
scrape, so nothing that was ever shown is forgotten when it dies: counters never go back. The next process in that place
reads the file first and counts on from there. Only one process has a place at a time, so no locks are needed. Gauges
count only as long as their file is fresh.
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
"""Seconds after which a worker that wrote nothing counts as gone."""


class WorkerPage(msgspec.Struct):
    """What a worker writes."""

    at: float
    figures: dict[str, list[tuple[list[str], Any]]]


class WorkerMetrics:
    """One worker's place in the shared folder; without a folder it speaks for itself alone."""

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
        """Tell the others."""
        if self._file is None:
            return
        page = WorkerPage(self._now(), self._figures())  # type: ignore[arg-type]  # Tuples are lists in JSON.
        beside = self._file.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode(page))
            beside.replace(self._file)
        except OSError as error:  # Figures are not worth failing for.
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
        """What the one who had this place before us has counted."""
        page = None if self._file is None else _read(self._file)
        figures: Any = {} if page is None else page.figures
        return lasting(figures)


def _read(file: Path) -> WorkerPage | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WorkerPage)
    except (OSError, msgspec.MsgspecError):  # Being replaced, or of another version.
        return None
