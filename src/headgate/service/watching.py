"""Watching a node: its figures are gathered, and shared with other workers, as long as its board beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Gauges, engine_of
from .lag import LoopLag
from .tracing import open_tracing
from .workers import WorkerFigures

if TYPE_CHECKING:
    from .desk import Desk


def watched(desk: Desk) -> WorkerFigures:
    """The figures of a node and of its fellow workers; from now on it tells them its own every second."""
    lag = LoopLag()
    node = desk.node
    figures = WorkerFigures(node.shared_dir, node.worker, Gauges(desk, lag).figures)
    desk.recorder.each_second += [lag.start, figures.write]
    meter = getattr(engine_of(desk), "meter", None)
    if meter is not None:
        meter.on_batch = desk.recorder.record_batch
    tracing = open_tracing(desk.settings.traces, desk.board.identity.id)
    if tracing is not None:
        tracing.watch(desk.recorder)
    return figures
