"""Metrics: all figures of a process, by their Prometheus names.

`METRICS` is the complete list; nothing else is exported, and the documentation, the alerts and the dashboard are tested
against it. A feature that does not exist in a build has no metric.

`Figures` are plain values, so that workers can exchange them (`worker_metrics.py`). Counters and histograms of workers
are added. Gauges define how to combine them: some are added, for others the maximum or the minimum counts.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ... import __version__
from ...guards.stack import fallback_of, leases_of
from .recorder import BATCH_SIZES, BUCKETS_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..node import Node
    from .loop_lag import LoopLag

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Value: TypeAlias = "float | list[Any]"
"""A number; for a histogram its counts, one per bucket, and the sum."""
Figures: TypeAlias = dict[str, list[tuple[tuple[str, ...], Value]]]
"""By metric: the value for each set of labels."""

SECONDS: Final = tuple(bound_ns / 1e9 for bound_ns in BUCKETS_NS)
FAST: Final = "checks"
SIZES: Final = tuple(map(float, BATCH_SIZES))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, its help text, and how to combine several values."""

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
    _counter("checks", "Decisions, by rule ('-' for none), algorithm, result and source of the answer.",
             "rule", "algorithm", "result", "source"),
    _histogram("check_duration_seconds", "Time from a check's body to its decision."),
    _counter("check_failures",
             "Checks without a decision because the store failed, by whether they may have been charged.",
             "charged"),
    _counter("ignored_fields", "Unknown fields in the bodies of checks."),
    _counter("http_requests", "HTTP responses, by method, route ('checks' for the fast endpoints) and status.",
             "method", "route", "status"),
    _histogram("http_request_duration_seconds", "Duration of management requests."),
    _counter("resp_commands", "Redis protocol commands, by name and result (ok or error).",
             "command", "result"),
    _gauge("resp_connections", "Open Redis protocol connections.", "sum"),
    _gauge("store_up", "Whether the store answers.", "min"),
    _counter("store_outages", "How often the store stopped answering."),
    _histogram("store_call_duration_seconds", "Duration of calls to the store."),
    _histogram("store_batch_size", "Requests per call to the store.", SIZES),
    _gauge("store_queue_depth", "Requests queued for a call to the store.", "sum"),
    _gauge("store_evicted_keys", "Keys that the store was seen to evict; limits may be among them.", "max"),
    _gauge("breaker_open", "Whether the circuit breaker is open: the store does not answer and is not called.", "max"),
    _counter("breaker_openings", "How often the circuit breaker opened."),
    _gauge("fallback_nodes", "The number of nodes that a limit is divided by while the store does not answer.", "max"),
    _counter("fallback_unmerged_keys",
             "Keys whose admissions during an outage will not be charged to the store, because there were too many."),
    _gauge("kill_switch", "Rules whose limits are turned off, plus one if all limits are.", "max"),
    _counter("shed_checks", "Checks refused because the event loop was late."),
    _gauge("lease_chunks", "Chunks of leased limits that have unspent units.", "sum"),
    _gauge("lease_units", "Unspent units in chunks: charged in the store, available on this node.", "sum"),
    _counter("lease_units_taken", "Units taken from the store in chunks."),
    _counter("lease_units_returned", "Unspent units of chunks that were given back to the store."),
    _gauge("region_up", "Whether this region and the other one have recently heard from each other.", "max", "region"),
    _gauge("region_lag_seconds", "The age of what the other region knows about this one.", "min", "region"),
    _counter("region_counters_sent", "Counter totals sent to the other region.", "region"),
    _counter("region_bytes_sent", "Bytes sent to the other region.", "region"),
    _counter("region_units_charged", "Units that the other region admitted and that were charged here.", "region"),
    _counter("region_units_lost", "Units of other regions that were never charged: the store was down for too long."),
    _gauge("region_rights_windows", "Current windows whose escrow rights this node has requested or granted.", "max"),
    _gauge("region_rights_held", "Escrow rights that this region holds in those windows.", "max"),
    _counter("region_rights_asked", "Requests for escrow rights sent to the other region.", "region"),
    _counter("region_rights_unanswered", "Requests for escrow rights that the other region did not answer.", "region"),
    _counter("region_rights_received", "Units that the other region granted.", "region"),
    _counter("region_rights_given", "Units granted to the other region.", "region"),
    _counter("region_rights_lost", "Units taken off for another region that never reached it."),
    _gauge("memory_keys", "Keys with a state in this process.", "sum"),
    _counter("memory_dropped_keys", "Idle keys that were dropped; this loses no counts."),
    _counter("memory_shared_decisions", "Decisions on a state shared by unrelated keys, because memory was full."),
    _gauge("etcd_shards", "Shards that this node owns, on etcd.", "sum"),
    _gauge("etcd_free_shards", "Shards without an owner, as far as this node knows.", "max"),
    _gauge("etcd_members", "Members of the etcd engine's cluster, as far as this node knows.", "max"),
    _counter("etcd_joined", "How often this node joined the cluster on etcd; more than once means that it was fenced."),
    _counter("etcd_refused", "Commits that etcd refused, for example because it is out of space; they are sent again."),
    _gauge("etcd_unconfirmed", "Decisions that are not in etcd yet.", "sum"),
    _gauge("etcd_commit_age_seconds", "The age of the commit to etcd that is in flight.", "max"),
    _gauge("etcd_journal_entries", "Commits in this node's journal in etcd.", "sum"),
    _gauge("etcd_journal_rows", "States in those commits, including superseded ones.", "sum"),
    _gauge("etcd_clock_lead_seconds", "How far the cluster's clock is ahead of this machine's.", "max"),
    _gauge("board_up", "Whether the board answers.", "min"),
    _gauge("board_age_seconds", "The age of this node's copy of the board.", "max"),
    _gauge("nodes", "Nodes on the board, by their state.", "max", "state"),
    _gauge("blocked_keys", "Keys that a limit denies right now.", "sum"),
    _gauge("bans", "Keys that operators have banned.", "max"),
    _gauge("key_limits", "Keys with their own limit.", "max"),
    _gauge("overrides", "Temporary limits of keys.", "max"),
    _gauge("rules", "Rules in force.", "max"),
    _gauge("rules_revision", "The revision of the rules in force.", "min"),
    _gauge("rules_info", "The version of the rules in force; the value is always 1.", "max", "version"),
    _gauge("rules_stale_seconds", "How long the rules may have been out of date.", "max"),
    _gauge("rules_refused", "Whether newer rules were read but cannot be used; an unreachable source is stale.", "max"),
    _gauge("rules_alarm",
           "Whether the rules need attention: some cannot be used, or a change looks like a mistake.", "max"),
    _gauge("event_loop_lag_seconds", "The longest delay of the event loop in the last ten seconds.", "max"),
    _counter("audit_entries", "Lines written to the audit log by this process."),
    _gauge("draining", "Whether the process is shutting down.", "max"),
    _gauge("workers", "Running worker processes.", "sum"),
    _gauge("start_time_seconds", "When the process started, in seconds since 1970.", "min"),
    _gauge("build_info", "The versions of Headgate and Python; the value is always 1.", "max", "version", "python"),
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Gauges:
    """Collects the figures of one process."""

    def __init__(self, node: Node, lag: LoopLag) -> None:
        self._node = node
        self._lag = lag
        self._started = time.time()

    def figures(self) -> Figures:
        """All current figures."""
        found: Figures = {}
        for part in (
            self._checks,
            self._http,
            self._resp,
            self._store,
            self._leases,
            self._regions,
            self._board,
            self._rules,
            self._process,
        ):
            for name, rows in part().items():
                metric = BY_NAME[f"headgate_{name}"]
                found[metric.name] = rows if isinstance(rows, list) else [((), rows)]
        return found

    def _checks(self) -> dict[str, Any]:
        recorder = self._node.recorder
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
        recorder = self._node.recorder
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

    def _resp(self) -> dict[str, Any]:
        if not self._node.settings.resp_port:
            return {}
        recorder = self._node.recorder
        return {
            "resp_commands_total": list(recorder.resp.items()),
            "resp_connections": recorder.resp_connections,
        }

    def _store(self) -> dict[str, Any]:
        watch = self._node.store
        found: dict[str, Any] = {
            "store_up": int(self._node.store_problem is None),
            "store_outages_total": watch.outages,
        }
        meter = self._node.limiter.engine.describe().meter
        if meter is not None:
            found |= meter.gauges()
        fallback = fallback_of(self._node.limiter.engine)
        if fallback is not None:
            found |= {
                "breaker_open": int(fallback.breaker.is_open),
                "breaker_openings_total": fallback.breaker.openings,
                "fallback_nodes": self._node.members.fleet().nodes,
                "fallback_unmerged_keys_total": fallback.local.unmerged,
            }
        if meter is not None and meter.has_batches:
            recorder = self._node.recorder
            found |= {
                "store_call_duration_seconds": [((), recorder.store_durations.value)],
                "store_batch_size": [((), recorder.batch_sizes.value)],
            }
        return found

    def _leases(self) -> dict[str, Any]:
        leases = leases_of(self._node.limiter.engine)
        if leases is None:
            return {}
        totals = leases.totals()
        return {
            "lease_chunks": totals.chunks,
            "lease_units": totals.unspent,
            "lease_units_taken_total": totals.taken,
            "lease_units_returned_total": totals.returned,
        }

    def _regions(self) -> dict[str, Any]:
        exchange = self._node.exchange
        if exchange is None:
            return {}
        links, shippers = exchange.links(), exchange.shippers
        return {
            "region_up": [((one.region,), int(one.up)) for one in links],
            "region_lag_seconds": [
                ((one.region,), round(one.lag_seconds, 3))
                for one in links
                if one.lag_seconds is not None
            ],
            "region_counters_sent_total": [((one.region,), one.sent_counters) for one in shippers],
            "region_bytes_sent_total": [((one.region,), one.link.sent_bytes) for one in shippers],
            "region_units_charged_total": [
                ((region,), units) for region, units in exchange.charged_units.items()
            ],
            "region_units_lost_total": exchange.lost_units,
            **self._rights(),
        }

    def _rights(self) -> dict[str, Any]:
        exchange = self._node.exchange
        rights = None if exchange is None else exchange.rights
        if rights is None:
            return {}
        figures, held = rights.figures, rights.held()

        def by_region(counted: Mapping[str, int]) -> list[tuple[tuple[str], int]]:
            return [((region,), counted.get(region, 0)) for region in rights.others]

        return {
            "region_rights_windows": held.windows,
            "region_rights_held": held.units,
            "region_rights_asked_total": by_region(figures.asked),
            "region_rights_unanswered_total": by_region(figures.unanswered),
            "region_rights_received_total": by_region(figures.received),
            "region_rights_given_total": by_region(figures.given),
            "region_rights_lost_total": figures.lost,
        }

    def _board(self) -> dict[str, Any]:
        board = self._node.board
        view = board.view_now()
        up = sum(seen.state == "Up" for seen in view.nodes)
        return {
            "board_up": int(board.problem is None),
            "board_age_seconds": round(board.stale_seconds, 3),
            "nodes": [(("up",), up), (("down",), len(view.nodes) - up)],
            "blocked_keys": len({one.key for one in self._node.recorder.blocks(board.offset_us)}),
            "bans": len(view.bans),
            "key_limits": len(view.key_limits),
            "overrides": len(view.overrides) + sum(map(len, view.rule_overrides.values())),
        }

    def _rules(self) -> dict[str, Any]:
        rules = self._node.rules
        if rules is None:
            return {}
        return {
            "rules": len(rules.rules),
            "rules_revision": rules.revision,
            "rules_info": [((str(rules.current.version),), 1)],
            "rules_stale_seconds": round(rules.stale_seconds, 3),
            "rules_refused": int(rules.refused),
            "rules_alarm": int(rules.alarm is not None),
        }

    def _process(self) -> dict[str, Any]:
        return {
            "kill_switch": len(self._node.kill_switch.off),
            "shed_checks_total": self._node.shedding.refused,
            "event_loop_lag_seconds": round(self._lag.worst, 6),
            "audit_entries_total": self._node.audit.entries,
            "draining": int(self._node.draining),
            "workers": 1,
            "start_time_seconds": round(self._started, 3),
            "build_info": [((__version__, platform.python_version()), 1)],
        }


def lasting(figures: Figures) -> Figures:
    """The figures that outlive their process: counters and histograms."""
    return {name: rows for name, rows in figures.items() if BY_NAME[name].kind != "gauge"}


def merged(parts: list[Figures]) -> Figures:
    """The figures of several processes combined."""
    found: dict[str, dict[tuple[str, ...], Value]] = {}
    for part in parts:
        for name, rows in part.items():
            metric = BY_NAME.get(name)
            if metric is None:  # From a worker of another version.
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
