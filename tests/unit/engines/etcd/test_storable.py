"""Limits that etcd cannot keep are refused when they are loaded, and not when somebody is counted."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headgate import Concurrency, FixedWindow, Limiter, RuleSet, SlidingLog
from headgate.engines.etcd.aio import AsyncEtcdEngine
from headgate.engines.etcd.storable import why_not_storable
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MINUTE_US = 60_000_000
AWAY = "etcd://127.0.0.1:1/nowhere"
RULES = """
rules:
  - rule_id: log
    identifier: user_id
    rate: {limit}/minute
    algorithm: sliding_log
"""
REFUSAL = (
    "on etcd sliding_log counts up to 20,000, not 20,001; use sliding_window, or another engine"
)


def test_only_large_logs_and_many_slots_are_refused() -> None:
    assert why_not_storable(SlidingLog(20_001, MINUTE_US)) == REFUSAL
    assert "up to 10,000, not 10,001" in (why_not_storable(Concurrency(10_001)) or "")
    for limit in (
        SlidingLog(20_000, MINUTE_US),
        Concurrency(10_000),
        FixedWindow(1_000_000, MINUTE_US),
    ):
        assert why_not_storable(limit) is None


def test_a_limiter_refuses_such_rules_when_it_is_made() -> None:
    rules = RuleSet.parse(RULES.format(limit=20_001))
    with pytest.raises(ConfigError, match=re.escape(f"the rule 'log': {REFUSAL}")):
        Limiter(AWAY, rules=rules)
    Limiter(AWAY, rules=RuleSet.parse(RULES.format(limit=20_000))).close()
    Limiter(rules=rules).close()  # In memory there is no such bound.
    assert AsyncEtcdEngine(AWAY).describe().refuses is why_not_storable


def test_the_service_does_not_start_with_such_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(limit=20_001))
    line = [sys.executable, "-m", "headgate", "serve", "--port", "0", "--rules", str(rules)]
    done = subprocess.run(
        [*line, "--engine", AWAY], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert REFUSAL in done.stderr
