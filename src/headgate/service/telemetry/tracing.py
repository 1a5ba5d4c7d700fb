"""Tracing: spans for management and for some checks, by OpenTelemetry.

Off by default, and then not even imported.

The span of a check is created after the decision, with the time that it took, so it slows a decision down only by one
random number. Spans never contain a key. Where they go is configured by the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`
and so on), never by callers.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span, Tracer

    from ...decision import Decision
    from ...engines.base import Run
    from .recorder import Recorder


class Tracing:
    """Creates spans for `share` of all checks, and for every request to management."""

    def __init__(self, tracer: Tracer, share: float) -> None:
        self._tracer = tracer
        self._share = share

    def watch(self, recorder: Recorder) -> None:
        """From now on, create spans for some of what is recorded."""
        record, share, dice = recorder.record, self._share, random.random

        def record_and_tell(decision: Decision, took_ns: int = 0) -> None:
            record(decision, took_ns)
            if dice() < share:
                self._trace(decision, took_ns)

        def record_each(run: Run, took_ns: int = 0) -> None:
            for decision in run.decisions():
                record_and_tell(decision, took_ns)

        recorder.record = record_and_tell
        recorder.record_run = record_each
        recorder.tracing = self

    @contextmanager
    def request(self, method: str, route: str) -> Iterator[Span]:
        """The span of a request to management, for the duration of the block."""
        words = {"http.request.method": method, "http.route": route}
        with self._tracer.start_as_current_span(f"{method} {route}", attributes=words) as span:
            yield span

    def _trace(self, decision: Decision, took_ns: int) -> None:
        """Create the span of a check that was just decided."""
        ended_ns = time.time_ns()
        words: dict[str, Any] = {
            "headgate.allowed": decision.allowed,
            "headgate.algorithm": decision.algorithm,
            "headgate.limit": decision.limit,
            "headgate.remaining": decision.remaining,
            "headgate.source": decision.source,
            "headgate.degraded": decision.degraded,
        }
        if decision.rule is not None:
            words["headgate.rule"] = decision.rule
        span = self._tracer.start_span("check", attributes=words, start_time=ended_ns - took_ns)
        span.end(ended_ns)


def open_tracing(share: float, node: str) -> Tracing | None:
    """Tracing as configured by the environment; `None` if nothing is traced."""
    if not share:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError("traces need an extra: pip install 'headgate[otel]'") from error
    resource = Resource.create({"service.name": "headgate", "service.instance.id": node})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider.get_tracer("headgate", __version__), share)
