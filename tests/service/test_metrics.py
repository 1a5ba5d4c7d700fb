"""Figures of running services, as Prometheus sees them: well formed, added up, and watched by the shipped alerts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.service.telemetry.metrics import METRICS
from tests.servers.fixtures import installed
from tests.servers.process import HOST, NotInstalledError, Server, free_ports, patient, wait_until
from tests.servers.redis import standalone
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SUFFIXES = ("_bucket", "_sum", "_count")
NAMES = {metric.name for metric in METRICS} | {
    metric.name + suffix for metric in METRICS if metric.kind == "histogram" for suffix in SUFFIXES
}


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise NotInstalledError(f"{name} is not installed: run 'make servers'")
    return path


@pytest.fixture(scope="module")
def plain() -> Iterator[Service]:
    with service() as running:
        yield running


def scraped(running: Service) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample of a scrape, by name and by the values of its labels in the order of their names."""
    status, headers, text = running.ask("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_promtool_finds_nothing_to_complain_about(plain: Service) -> None:
    plain.check("k")
    with installed():
        command = [tool("promtool"), "check", "metrics"]
    text = plain.ask("GET", "/metrics")[2]
    told = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_checks_are_counted_by_what_became_of_them(plain: Service) -> None:
    for _ in range(3):
        plain.check("counted", limit=2, algorithm="fixed_window", window=3600)
    plain.check("counted", limit=2, algorithm="fixed_window", window=3600, cost=5)
    checks = scraped(plain)["headgate_checks_total"]
    results = {
        result: many for (name, result, *_), many in checks.items() if name == "fixed_window"
    }
    assert results == {"allowed": 2, "denied": 1, "never": 1}


def test_every_check_is_in_the_histogram(plain: Service) -> None:
    plain.check("timed")
    found = scraped(plain)
    total = sum(found["headgate_checks_total"].values())
    assert found["headgate_check_duration_seconds_count"][()] == total
    assert found["headgate_check_duration_seconds_bucket"]["+Inf",] == total


def test_answers_are_counted_by_their_status(plain: Service) -> None:
    before = scraped(plain).get("headgate_http_requests_total", {})
    plain.check("answered")
    plain.ask("POST", "/check", {"key": "answered", "limit": "x"})
    plain.ask("POST", "/check?status=1", {"key": "answered", "limit": 1, "cost": 2})
    plain.ask("GET", "/api/nodes")
    plain.ask("GET", "/api/rules/none")
    after = scraped(plain)["headgate_http_requests_total"]
    grown = {labels: many - before.get(labels, 0) for labels, many in after.items()}
    assert {labels: many for labels, many in grown.items() if many and labels[1] != "/metrics"} == {
        ("POST", "checks", "200"): 1,
        ("POST", "checks", "422"): 1,
        ("POST", "checks", "429"): 1,
        ("GET", "/api/nodes", "200"): 1,
        ("GET", "/api/rules/{rule_id}", "404"): 1,
    }


def test_labels_hold_no_key_and_no_path_that_was_sent(plain: Service) -> None:
    plain.check("a-key-of-somebody")
    plain.ask("GET", "/api/rules/somebodys-rule")
    plain.ask("GET", "/api/a-path-of-somebody")
    assert "somebody" not in plain.ask("GET", "/metrics")[2]


def test_openmetrics_is_served_on_request(plain: Service) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    _, headers, text = plain.ask("GET", "/metrics", headers=accept)
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_those_who_accept_json_get_the_traffic(plain: Service) -> None:
    _, _, traffic = plain.ask("GET", "/metrics", headers={"Accept": "application/json"})
    names = {
        "req_per_sec",
        "burst_ratio",
        "deny_rate",
        "active_algorithm",
        "total_requests",
        "total_denied",
    }
    assert names <= traffic.keys()


def test_the_shipped_alerts_are_sound_and_name_metrics_that_exist() -> None:
    with installed():
        command = [tool("promtool"), "check", "rules", str(ALERTS)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert set(re.findall(r"headgate_\w+", ALERTS.read_text())) <= NAMES


TROUBLE = """
rule_files: [ {alerts} ]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: headgate_etcd_free_shards{{job="h", instance="a"}}
        values: 0x20 3x60
      - series: headgate_etcd_members{{job="h", instance="a"}}
        values: 2x80
      - series: headgate_etcd_members{{job="h", instance="b"}}
        values: 2x20 1x60
      - series: headgate_etcd_refused_total{{job="h", instance="a"}}
        values: 0x20 0+5x60
      - series: headgate_etcd_commit_age_seconds{{job="h", instance="a"}}
        values: 0x20 4x60
      - series: headgate_etcd_journal_entries{{job="h", instance="a"}}
        values: 100x20 9000x60
      - series: headgate_store_call_duration_seconds_bucket{{job="h", instance="a", le="0.1"}}
        values: 0+100x20 2000x60
      - series: headgate_store_call_duration_seconds_bucket{{job="h", instance="a", le="0.5"}}
        values: 0+100x80
      - series: headgate_store_call_duration_seconds_bucket{{job="h", instance="a", le="+Inf"}}
        values: 0+100x80
    promql_expr_test:
      - expr: count(ALERTS{{alertstate="firing"}})
        eval_time: 4m
        exp_samples: []
      - expr: count by (alertname) (ALERTS{{alertstate="firing"}})
        eval_time: 19m
        exp_samples:
          - {{ labels: '{{alertname="HeadgateCommitsLate"}}', value: 1 }}
          - {{ labels: '{{alertname="HeadgateCommitsRefused"}}', value: 1 }}
          - {{ labels: '{{alertname="HeadgateCommitsSlow"}}', value: 1 }}
          - {{ labels: '{{alertname="HeadgateJournalLong"}}', value: 1 }}
          - {{ labels: '{{alertname="HeadgateMembersDiffer"}}', value: 1 }}
          - {{ labels: '{{alertname="HeadgateShardsFree"}}', value: 1 }}
"""
"""A cluster on etcd that is well for five minutes, and then not."""


def test_alerts_about_etcd_fire_in_trouble_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "trouble.yml"
    file.write_text(TROUBLE.format(alerts=ALERTS.resolve()))
    with installed():
        command = [tool("promtool"), "test", "rules", str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_shipped_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "headgate.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    asked = set(re.findall(r"headgate_\w+", " ".join(queries)))
    assert asked <= NAMES
    shown = {name.removesuffix(suffix) for name in asked for suffix in (*SUFFIXES, "")}
    # What nobody looks at on a dashboard, and why: counts of single events, or numbers for a table elsewhere.
    unseen = {
        "headgate_ignored_fields_total", "headgate_http_request_duration_seconds", "headgate_store_outages_total",
        "headgate_store_evicted_keys",
        "headgate_lease_chunks", "headgate_memory_dropped_keys_total", "headgate_memory_shared_decisions_total",
        "headgate_board_up",
        "headgate_rules", "headgate_rules_revision", "headgate_rules_refused", "headgate_rules_alarm",
        "headgate_audit_entries_total",
        "headgate_resp_commands_total", "headgate_resp_connections",
        "headgate_draining", "headgate_workers", "headgate_start_time_seconds", "headgate_breaker_open",
        "headgate_breaker_openings_total", "headgate_fallback_nodes", "headgate_fallback_unmerged_keys_total",
        "headgate_kill_switch", "headgate_shed_checks_total", "headgate_etcd_members", "headgate_etcd_joined_total",
        "headgate_etcd_clock_lead_seconds", "headgate_region_units_lost_total", "headgate_etcd_refused_total",
    }  # fmt: skip
    assert {metric.name for metric in METRICS} - shown == unseen


def test_the_documentation_lists_every_metric() -> None:
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    listed = set(re.findall(r"`(headgate_\w+)`", page))
    assert listed == {metric.name for metric in METRICS}


@pytest.mark.slow
def test_four_workers_add_up_and_never_go_back() -> None:
    """Real processes; one is killed midway. What it had not written in its last second may be missing, and no more."""
    with installed(), standalone("redis-7.0") as redis:
        options = ("--engine", patient(redis.url), "--workers", "4", "--log-level", "warning")
        with service(*options) as running, ThreadPoolExecutor(8) as pool:
            wait_until(lambda: workers_of(running) == 4, "all workers are up", within_s=20)
            list(pool.map(lambda i: running.check(f"k{i % 50}"), range(400)))
            wait_until(lambda: allowed(running) == 400, "the workers have told each other")
            for _ in range(10):  # Whichever worker answers.
                assert allowed(running) == 400
            victim = worker_pids(running)[0]
            os.kill(victim, signal.SIGKILL)
            seen = [allowed(running) for _ in range(20)]
            wait_until(lambda: workers_of(running) == 4, "the worker was replaced", within_s=20)
            list(pool.map(lambda i: running.check(f"k{i % 50}"), range(100)))
            wait_until(lambda: allowed(running) == 500, "the counts have come together")
            assert seen == [400] * 20


def allowed(running: Service) -> float:
    checks = scraped(running).get("headgate_checks_total", {})
    return sum(many for (_, result, *_), many in checks.items() if result == "allowed")


def workers_of(running: Service) -> float:
    return scraped(running)["headgate_workers"][()]


def worker_pids(running: Service) -> list[int]:
    """The processes that serve, by their command line: those that multiprocessing has spawned."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if parent == running.pid and b"spawn_main" in command:
            pids.append(int(folder.name))
    return sorted(pids)


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it_and_a_shipped_alert_fires() -> None:
    """The alert for a lost store, with its patience shortened. Prometheus takes five seconds for its first look."""
    with (
        installed(),
        standalone("redis-7.0") as redis,
        service("--engine", patient(redis.url), "--log-level", "warning") as running,
        prometheus(running.port) as port,
    ):
        wait_until(lambda: query(port, "headgate_store_up") == ["1"], "it scraped", within_s=20)
        running.check("k")
        assert firing(port) == set()
        redis.kill()
        running.ask("POST", "/check", {"key": "k"})
        wait_until(lambda: "HeadgateStoreDown" in firing(port), "the alert fires", within_s=20)


@contextlib.contextmanager
def prometheus(target: int) -> Iterator[int]:
    """A Prometheus that scrapes this port; its own port."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configure(folder, target)
        command = [
            tool("prometheus"), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address={HOST}:{port}", "--log.level=warn",
        ]  # fmt: skip
        with Server(command, folder=folder, ready=lambda: answers(port)):
            yield port


def configure(folder: Path, port: int) -> None:
    alerts = re.sub(r"for: \w+", "for: 0s", ALERTS.read_text())
    (folder / "alerts.yml").write_text(alerts)
    (folder / "prometheus.yml").write_text(
        f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ alerts.yml ]
scrape_configs:
  - job_name: headgate
    static_configs: [ {{ targets: [ "{HOST}:{port}" ] }} ]
"""
    )


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def query(port: int, expression: str) -> list[str]:
    words = urllib.parse.urlencode({"query": expression})
    return [row["value"][1] for row in api(port, f"query?{words}")["result"]]


def firing(port: int) -> set[str]:
    return {
        alert["labels"]["alertname"]
        for alert in api(port, "alerts")["alerts"]
        if alert["state"] == "firing"
    }


def api(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/{path}", timeout=5) as answer:
        return json.loads(answer.read())["data"]
