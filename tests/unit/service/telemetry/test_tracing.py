"""Spans, as an exporter gets them."""

import asyncio
import subprocess
import sys
import time

import pytest

from headgate import Limiter, MemoryEngine, SlidingWindow
from headgate.board import Totals
from headgate.clock import ManualClock
from headgate.service.telemetry.recorder import Recorder
from headgate.service.telemetry.tracing import Tracing, open_tracing
from tests.service.inside import Inside

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Exported:
    """A tracer whose spans a test can read."""

    def __init__(self) -> None:
        self._exporter = in_memory.InMemorySpanExporter()
        provider = sdk.TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(export.SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def spans(self) -> list[tuple[str, dict[str, object]]]:
        return [(span.name, dict(span.attributes)) for span in self._exporter.get_finished_spans()]

    @property
    def lengths_ns(self) -> list[int]:
        return [span.end_time - span.start_time for span in self._exporter.get_finished_spans()]


def test_a_check_becomes_a_span_with_its_time_and_without_its_key() -> None:
    exported, recorder = Exported(), Recorder(ManualClock())
    Tracing(exported.tracer, 1.0).watch(recorder)
    recorder.record(Limiter(clock=ManualClock()).hit("secret-key", "5/minute"), 12_345)
    assert exported.spans == [
        (
            "check",
            {
                "headgate.allowed": True,
                "headgate.algorithm": "sliding_window",
                "headgate.limit": 5,
                "headgate.remaining": 4,
                "headgate.source": "engine",
                "headgate.degraded": False,
            },
        )
    ]
    assert exported.lengths_ns == [12_345]
    assert recorder.totals.requests == 1


def test_each_check_of_a_run_becomes_a_span() -> None:
    exported, recorder = Exported(), Recorder(ManualClock())
    Tracing(exported.tracer, 1.0).watch(recorder)
    run = MemoryEngine(clock=ManualClock()).bind_run(SlidingWindow(1, 60_000_000))(["a", "a"], 1)
    recorder.record_run(run, 500)
    assert [words["headgate.allowed"] for _, words in exported.spans] == [True, False]
    assert exported.lengths_ns == [500, 500]
    assert recorder.totals == Totals(2, 1)


def test_a_share_of_the_checks_becomes_spans() -> None:
    exported, recorder = Exported(), Recorder(ManualClock())
    Tracing(exported.tracer, 0.1).watch(recorder)
    decision = Limiter(clock=ManualClock()).hit("k", "5/minute")
    for _ in range(1_000):
        recorder.record(decision, 1)
    assert 40 <= len(exported.spans) <= 180
    assert recorder.totals.requests == 1_000


def test_a_request_to_management_is_a_span_by_its_route() -> None:
    exported = Exported()

    async def story() -> None:
        async with Inside() as service:
            Tracing(exported.tracer, 1.0).watch(service.node.recorder)
            await service.ask("DELETE", "/api/bans/secret-key")

    asyncio.run(story())
    assert exported.spans == [
        (
            "DELETE /api/bans/{key:key}",
            {
                "http.request.method": "DELETE",
                "http.route": "/api/bans/{key:key}",
                "http.response.status_code": 404,
            },
        )
    ]


def test_nothing_is_imported_as_long_as_nothing_is_traced() -> None:
    assert open_tracing(0.0, "n") is None
    code = (
        "import sys; from headgate.service.app import build_app; from headgate.service.node import Node;"
        "from headgate.service.settings import Settings; n = Node(Settings()); build_app(n); n.close();"
        "sys.exit(any(name.startswith('opentelemetry.exporter') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_environment_says_where_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    tracing = open_tracing(1.0, "n")
    assert isinstance(tracing, Tracing)
    started = time.monotonic()
    tracing.watch(Recorder(ManualClock()))
    assert time.monotonic() - started < 1  # Nobody waits for an exporter.
    tracing._tracer.span_processor.shutdown()  # type: ignore[attr-defined]
