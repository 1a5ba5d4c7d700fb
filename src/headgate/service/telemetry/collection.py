"""Collects a node's figures, and shares them with other workers, while its board runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .metrics import Gauges
from .tracing import open_tracing
from .worker_metrics import WorkerMetrics

if TYPE_CHECKING:
    from ..node import Node


def shared_figures(node: Node) -> WorkerMetrics:
    """The figures of a node and its fellow workers; from now on it shares its own every second."""
    lag = node.loop_lag
    lag.on_tick = node.shedding.note
    figures = WorkerMetrics(node.shared_dir, node.worker, Gauges(node, lag).figures)
    node.recorder.each_second += [lag.start, figures.write]
    meter = node.limiter.engine.describe().meter
    if meter is not None:
        meter.on_batch = node.recorder.record_batch
    tracing = open_tracing(node.settings.traces, node.board.identity.id)
    if tracing is not None:
        tracing.watch(node.recorder)
    return figures
