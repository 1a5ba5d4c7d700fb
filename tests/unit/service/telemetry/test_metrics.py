"""Figures of several workers as those of one service."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.service.telemetry.loop_lag import LoopLag
from headgate.service.telemetry.metrics import METRICS, Figures, Gauges, lasting, merged
from headgate.service.telemetry.recorder import BUCKETS_NS, Histogram
from headgate.service.telemetry.worker_metrics import FRESH, WorkerMetrics
from tests.service.inside import Inside


def figures(checks: int, keys: int = 0, up: int = 1) -> Figures:
    counts = [0] * (len(BUCKETS_NS) + 1)
    counts[0] = checks
    return {
        "headgate_checks_total": [(("-", "sliding_window", "allowed", "engine"), checks)],
        "headgate_check_duration_seconds": [((), [counts, checks / 2])],
        "headgate_memory_keys": [((), keys)],
        "headgate_store_up": [((), up)],
        "headgate_nodes": [(("up",), keys)],
    }


def test_counters_and_histograms_are_added_and_gauges_as_they_say() -> None:
    together = merged([figures(3, keys=10), figures(4, keys=20, up=0)])
    assert together == {
        "headgate_checks_total": [(("-", "sliding_window", "allowed", "engine"), 7)],
        "headgate_check_duration_seconds": [((), [[7] + [0] * len(BUCKETS_NS), 3.5])],
        "headgate_memory_keys": [((), 30)],  # Added.
        "headgate_store_up": [((), 0)],  # The lowest.
        "headgate_nodes": [(("up",), 20)],  # The highest.
    }


def test_unknown_metrics_of_another_version_are_left_out() -> None:
    assert merged([{"headgate_of_the_future": [((), 1)]}]) == {}


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("headgate_")
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.help.endswith(".")


class Workers:
    """Two places in one folder, on a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_000.0
        self.counted = {0: 0, 1: 0}

    def start(self, place: int) -> WorkerMetrics:
        self.counted[place] = 0
        return WorkerMetrics(
            self.folder, place, lambda: figures(self.counted[place], keys=1), lambda: self.now
        )


def checks(found: Figures) -> object:
    return found["headgate_checks_total"][0][1]


def test_every_worker_reports_the_figures_of_all(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    first, second = workers.start(0), workers.start(1)
    workers.counted.update({0: 5, 1: 7})
    second.write()
    assert checks(first.all()) == 12
    assert checks(second.all()) == 12
    assert first.all()["headgate_memory_keys"] == [((), 2)]


def test_counters_never_go_back_when_a_worker_dies(tmp_path: Path) -> None:
    """What was shown was written first; the next in its place counts on from there, and gauges of the dead are gone."""
    workers = Workers(tmp_path)
    first, second = workers.start(0), workers.start(1)
    workers.counted.update({0: 5, 1: 7})
    second.write()
    workers.counted[0] = 6
    assert checks(first.all()) == 13
    workers.now += FRESH + 1  # Worker 0 is killed; nobody heard of it since.
    assert checks(second.all()) == 13
    assert second.all()["headgate_memory_keys"] == [((), 1)]
    again = workers.start(0)
    assert checks(again.all()) == 13
    workers.counted[0] = 2
    assert checks(again.all()) == 15


def test_a_file_that_is_torn_does_no_harm(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    (tmp_path / "figures-1.json").write_bytes(b'{"at": 1')
    assert checks(workers.start(0).all()) == 0


def test_a_folder_that_is_gone_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(tmp_path / "missing")
    workers.start(0).write()
    assert "the figures of this worker cannot be written" in caplog.text


def test_a_worker_alone_needs_no_folder() -> None:
    assert WorkerMetrics(None, 0, lambda: figures(3)).all() == figures(3)


def test_only_counters_and_histograms_outlive_their_process() -> None:
    assert set(lasting(figures(1))) == {
        "headgate_checks_total",
        "headgate_check_duration_seconds",
    }


@pytest.mark.parametrize("content, refused", [(None, 0), ("rules: [{}]", 1), ("rules: []", 1)])
def test_rules_are_refused_only_if_they_were_read_and_either_way_it_is_an_alarm(
    tmp_path: Path, content: str | None, refused: int
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("{rule_id: a, identifier: ip_address, rate: 1/hour}")

    async def story() -> tuple[str | None, Any]:
        async with Inside(rules=str(file)) as service:
            if content is None:
                file.unlink()
            else:
                file.write_text(content)
            service.node.rules.refresh()
            told = Gauges(service.node, LoopLag()).figures()
            assert told["headgate_rules_alarm"] == [((), 1)]
            return service.node.rules.problem, told["headgate_rules_refused"]

    problem, rows = asyncio.run(story())
    assert problem is not None
    assert rows == [((), refused)]


def test_a_histogram_counts_by_upper_bounds_and_shows_its_unit() -> None:
    histogram = Histogram((1, 10), unit=0.5)
    histogram.add([1, 2, 10, 11, 0])
    assert histogram.value == [[1, 2, 1], 12.0]


def test_the_longest_delay_of_the_last_ten_seconds_is_reported() -> None:
    lag = LoopLag()
    assert lag.worst == 0.0
    for at, late in [(0.0, 0.3), (1.0, 0.1), (2.0, 0.2), (9.0, 0.0)]:
        lag.note(at, late)
    assert lag.worst == 0.3
    lag.note(10.5, 0.0)
    assert lag.worst == 0.2
    lag.note(30.0, 0.0)
    assert lag.worst == 0.0
