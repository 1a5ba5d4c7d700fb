"""Figures: everything that a process can tell about itself in numbers, by the names that Prometheus knows.

`METRICS` is the list; nothing that is not there is exported, and the documentation, the alerts and the dashboard are tested against it. What does
not exist in a build has no metric: circuit breakers and leases will bring theirs.

`Figures` are plain values, so that workers can hand them to each other (`workers.py`). Counters and histograms of workers are added. A
gauge says how it is to be understood over several of them: some are added, of others the highest or the lowest counts.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from .. import __version__
from ..engines.memory import MemoryEngine
from .recorder import BATCH_SIZES, BUCKETS_NS

if TYPE_CHECKING:
    from .desk import Desk
    from .lag import LoopLag

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Value: TypeAlias = "float | list[Any]"
"""A number; of a histogram its counts, one for each bucket, and the sum."""
Figures: TypeAlias = dict[str, list[tuple[tuple[str, ...], Value]]]
"""By metric: what it says, for each set of labels."""

SECONDS: Final = tuple(bound_ns / 1e9 for bound_ns in BUCKETS_NS)
FAST: Final = "checks"
SIZES: Final = tuple(map(float, BATCH_SIZES))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, what it says, and how several of it become one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    over_workers: Literal["sum", "max", "min"] = "sum"
    buckets: tuple[float, ...] = SECONDS


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"headgate_{name}_total", "counter", text, labels)


def _gauge(
    name: str, text: str, over_workers: Literal["sum", "max", "min"], *labels: str
) -> Metric:
    return Metric(f"headgate_{name}", "gauge", text, labels, over_workers)


def _histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Metric:
    return Metric(f"headgate_{name}", "histogram", text, (), "sum", buckets)


METRICS: Final = (
    _counter("checks", "Decisions, by rule ('-' for none), algorithm, result and who answered.",
             "rule", "algorithm", "result", "source"),
    _histogram("check_duration_seconds", "Time from a check's body to its decision."),
    _counter("check_failures", "Checks without a decision because the store failed, by whether they may have been charged.",
             "charged"),
    _counter("ignored_fields", "Fields in the bodies of checks that nobody knows."),
    _counter("http_requests", "Answers, by method, route ('checks' for the fast endpoints) and status.",
             "method", "route", "status"),
    _histogram("http_request_duration_seconds", "Time that requests to management took."),
    _gauge("store_up", "Whether the store of the counts answers.", "min"),
    _counter("store_outages", "How often the store has gone away."),
    _histogram("store_call_duration_seconds", "Time that calls to the store took."),
    _histogram("store_batch_size", "Requests that travelled together in one call to the store.", SIZES),
    _gauge("store_queue_depth", "Requests that wait for their call to the store to leave.", "sum"),
    _gauge("memory_keys", "Keys that this process holds a state for.", "sum"),
    _counter("memory_dropped_keys", "Idle keys that were dropped, without loss."),
    _counter("memory_shared_decisions", "Decisions on a state shared between strangers, because memory was full."),
    _gauge("board_up", "Whether the place where nodes meet answers.", "min"),
    _gauge("board_age_seconds", "How old this node's knowledge of the others is.", "max"),
    _gauge("nodes", "Nodes on the board, by their state.", "max", "state"),
    _gauge("blocked_keys", "Keys that a limit denies right now.", "sum"),
    _gauge("bans", "Keys that people have locked out.", "max"),
    _gauge("key_limits", "Keys with a limit of their own.", "max"),
    _gauge("overrides", "Limits that hold for a while.", "max"),
    _gauge("rules", "Rules that hold.", "max"),
    _gauge("rules_revision", "The newest change of the rules that is in use.", "min"),
    _gauge("rules_info", "The version of the rules that hold; the value is always 1.", "max", "version"),
    _gauge("rules_stale_seconds", "For how long the rules may have been out of date.", "max"),
    _gauge("rules_refused", "Whether newer rules were read and cannot be used; a source that is away is stale.", "max"),
    _gauge("event_loop_lag_seconds", "The longest time in the last ten seconds that the event loop was late.", "max"),
    _counter("audit_entries", "Lines written to the audit log by this process."),
    _gauge("draining", "Whether the process was told to end.", "max"),
    _gauge("workers", "Worker processes that live.", "sum"),
    _gauge("start_time_seconds", "When the process started, in seconds since 1970.", "min"),
    _gauge("build_info", "What runs; the value is always 1.", "max", "version", "python"),
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Gauges:
    """Collects what one process has to say."""

    def __init__(self, desk: Desk, lag: LoopLag) -> None:
        self._desk = desk
        self._lag = lag
        self._started = time.time()

    def figures(self) -> Figures:
        """Everything, as of now."""
        found: Figures = {}
        for part in (
            self._checks,
            self._http,
            self._store,
            self._memory,
            self._board,
            self._rules,
            self._process,
        ):
            for name, rows in part().items():
                metric = BY_NAME[f"headgate_{name}"]
                found[metric.name] = rows if isinstance(rows, list) else [((), rows)]
        return found

    def _checks(self) -> dict[str, Any]:
        recorder = self._desk.recorder
        failures = recorder.failures
        return {
            "checks_total": [(tuple(series), many) for series, many in recorder.checks().items()],
            "check_duration_seconds": [((), recorder.durations.value)],
            "check_failures_total": [
                (("no",), failures["not_charged"]),
                (("unknown",), failures["unknown"]),
            ],
            "ignored_fields_total": recorder.ignored_fields,
        }

    def _http(self) -> dict[str, Any]:
        recorder = self._desk.recorder
        return {
            "http_requests_total": [
                *(
                    ((*route, str(status)), many)
                    for (*route, status), many in recorder.http.items()
                ),
                *(
                    (("POST", FAST, str(status)), many)
                    for status, many in recorder.fast_answers.items()
                ),
            ],
            "http_request_duration_seconds": [((), recorder.http_durations.value)],
        }

    def _store(self) -> dict[str, Any]:
        watch = self._desk.node.store
        found: dict[str, Any] = {
            "store_up": int(self._desk.store_problem is None),
            "store_outages_total": watch.outages,
        }
        engine = engine_of(self._desk)
        if hasattr(engine, "queued"):
            recorder = self._desk.recorder
            found |= {
                "store_call_duration_seconds": [((), recorder.store_durations.value)],
                "store_batch_size": [((), recorder.batch_sizes.value)],
                "store_queue_depth": engine.queued,
            }
        return found

    def _memory(self) -> dict[str, Any]:
        engine = engine_of(self._desk)
        if not isinstance(engine, MemoryEngine):
            return {}
        counters = engine.counters
        return {
            "memory_keys": counters.keys,
            "memory_dropped_keys_total": counters.dropped,
            "memory_shared_decisions_total": counters.shared,
        }

    def _board(self) -> dict[str, Any]:
        board = self._desk.board
        view = board.view_now()
        up = sum(seen.state == "Up" for seen in view.nodes)
        return {
            "board_up": int(board.problem is None),
            "board_age_seconds": round(board.stale_seconds, 3),
            "nodes": [(("up",), up), (("down",), len(view.nodes) - up)],
            "blocked_keys": len({one.key for one in self._desk.recorder.blocks(board.offset_us)}),
            "bans": len(view.bans),
            "key_limits": len(view.key_limits),
            "overrides": len(view.overrides),
        }

    def _rules(self) -> dict[str, Any]:
        rules = self._desk.rules
        if rules is None:
            return {}
        return {
            "rules": len(rules.rules),
            "rules_revision": rules.revision,
            "rules_info": [((str(rules.current.version),), 1)],
            "rules_stale_seconds": round(rules.stale_seconds, 3),
            "rules_refused": int(rules.refused),
        }

    def _process(self) -> dict[str, Any]:
        return {
            "event_loop_lag_seconds": round(self._lag.worst, 6),
            "audit_entries_total": self._desk.audit.entries,
            "draining": int(self._desk.node.draining),
            "workers": 1,
            "start_time_seconds": round(self._started, 3),
            "build_info": [((__version__, platform.python_version()), 1)],
        }


def engine_of(desk: Desk) -> Any:
    """The engine behind all guards."""
    engine: Any = desk.limiter.engine
    while hasattr(engine, "inner"):
        engine = engine.inner
    return engine


def lasting(figures: Figures) -> Figures:
    """Those that outlive their process: counters and histograms."""
    return {name: rows for name, rows in figures.items() if BY_NAME[name].kind != "gauge"}


def merged(parts: list[Figures]) -> Figures:
    """The figures of several processes as those of one service."""
    found: dict[str, dict[tuple[str, ...], Value]] = {}
    for part in parts:
        for name, rows in part.items():
            metric = BY_NAME.get(name)
            if metric is None:  # Of a worker of another version.
                continue
            known = found.setdefault(name, {})
            for labels, value in rows:
                mine = tuple(labels)
                known[mine] = value if mine not in known else _together(metric, known[mine], value)
    return {name: list(rows.items()) for name, rows in found.items()}


def _together(metric: Metric, one: Any, other: Any) -> Value:
    if metric.kind == "histogram":
        counts = [a + b for a, b in zip(one[0], other[0], strict=True)]
        return [counts, one[1] + other[1]]
    if metric.over_workers == "sum":
        total: float = one + other
        return total
    highest: float = max(one, other) if metric.over_workers == "max" else min(one, other)
    return highest
