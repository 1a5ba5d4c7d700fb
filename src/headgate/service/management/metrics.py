"""`/metrics`: for Prometheus, in its text format or in OpenMetrics.

Clients that accept JSON get the traffic instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..telemetry.metrics import METRICS
from .access import guarded, needs
from .traffic import TrafficResponse, traffic_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from ..node import Node
    from ..telemetry.metrics import Figures, Metric


class MetricCollector(Collector):
    """Figures in the form of Prometheus' client library."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> list[Family]:
        """Empty: otherwise registering would already collect."""
        return []

    def collect(self) -> Iterator[Family]:
        """All metrics with values, in the order of the list."""
        figures = self._figures()
        for metric in METRICS:
            rows = figures.get(metric.name)
            if rows is not None:
                yield _family(metric, rows)


def _family(metric: Metric, rows: Any) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, (counts, total) in rows:
            histogram.add_metric(labels, _cumulated(metric, counts), total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(rows):
        family.add_metric(labels, value)
    return family


def _cumulated(metric: Metric, counts: list[int]) -> list[tuple[str, float]]:
    """A histogram's buckets in cumulative form, as Prometheus requires."""
    buckets = []
    below = 0
    for bound, count in zip([*map(repr, metric.buckets), "+Inf"], counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets


def metrics_router(node: Node, figures: Callable[[], Figures]) -> APIRouter:
    """The route."""
    made = APIRouter(tags=["metrics"], route_class=guarded(node))
    registry = CollectorRegistry()
    registry.register(MetricCollector(figures))

    @made.head("/metrics", include_in_schema=False, **needs("viewer"))
    @made.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_model=TrafficResponse,
        **needs("viewer"),
    )
    async def metrics(request: Request) -> Any:
        """All metrics of all workers, in Prometheus' text format.

        Clients that accept JSON get the same as from `/api/traffic`.
        """
        accept = request.headers.get("accept", "")
        if "application/json" in accept and "text/" not in accept:
            return traffic_of(node)
        encode, media_type = choose_encoder(accept)
        return Response(encode(registry), headers={"content-type": media_type})

    return made
