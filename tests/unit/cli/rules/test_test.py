"""`headgate rules test`: what passes, what a failure looks like, and what is wrong with a case."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headgate.cli import main
from headgate.rules.format.starter import STARTER

if TYPE_CHECKING:
    from pathlib import Path

RULES = """\
rules:
  - {rule_id: login, identifier: ip_address, rate: 5/minute, algorithm: fixed_window, priority: 1, match: {path_pattern: /login}}
  - {rule_id: all, identifier: ip_address, rate: 100/minute}
  - {rule_id: trial, identifier: ip_address, rate: 2/minute, shadow: true, match: {path_pattern: /login}}
  - {rule_id: bills, identifier: user_id, on_missing: skip, limit: 1, calendar: month}
tests:
"""


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Runner:
    monkeypatch.chdir(tmp_path)
    return Runner(tmp_path, capsys)


class Runner:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "rules.yaml"
        self._capsys = capsys

    def __call__(self, cases: str, *options: str, rules: str = RULES) -> tuple[int, str, str]:
        self._file.write_text(rules + cases)
        code = main(["rules", "test", "rules.yaml", *options])
        out, err = self._capsys.readouterr()
        return code, out, err


PASSING = """\
  - name: five tries, then a pause
    at: 2026-01-31T23:59:00Z
    request: {method: POST, path: //login/, ip: 203.0.113.9}
    steps:
      - {hits: 5, allowed: true, remaining: 0, key: 203.0.113.9, matches: [login, all, trial]}
      - {allowed: false, denied_by: login, retry_after: 60, shadow_denied_by: [trial]}
      - {after: 59s, allowed: false, retry_after: 1 second}
      - {after: 1, allowed: true, request: {method: GET}}
  - request: {path: /, user_id: "42"}
    at: 2026-01-31T23:59:00Z
    steps:
      - {hits: 2, denied_by: bills, retry_after: 60s}
      - {after: 1 minute, allowed: true}
  - request: {path: /, cost: 101}
    retry_after: never
"""


def test_cases_pass_on_their_own_clock(run: Runner) -> None:
    assert run(PASSING) == (
        0,
        "ok    five tries, then a pause\nok    tests[1]\nok    tests[2]\n3 cases, all passed\n",
        "",
    )


def test_the_starter_passes_its_own_tests(run: Runner) -> None:
    assert run("", rules=STARTER)[0] == 0


FAILING = """\
  - name: wrong in every way
    request: {path: /logout, ip: 203.0.113.9, user_id: "4\\e[2J"}
    steps:
      - {matches: [login, all], allowed: true}
      - {after: 30s, hits: 2, allowed: false, denied_by: login, retry_after: 5s, remaining: 7}
  - request: {path: /}
    allowed: true
"""


def test_a_failure_shows_what_was_expected_and_what_came(run: Runner) -> None:
    code, out, err = run(FAILING)
    assert (code, err) == (1, "")
    assert (
        out
        == r"""FAIL  wrong in every way  (rules.yaml:7)
        step 1, hit 1: GET /logout from 203.0.113.9 by 4\x1b[2J
          matches  expected  login, all
                   got       all, bills
          login: not matched, the path /logout does not match /login
          bills: enforced, all of its conditions hold
        step 2, hit 3 after 30 s: GET /logout from 203.0.113.9 by 4\x1b[2J
          denied_by    expected  login
                       got       bills
          remaining    expected  7
                       got       0
          retry_after  expected  5 s
                       got       1439970 s
ok    tests[1]
2 cases, 1 failed
"""
    )


def test_json_has_a_line_for_each_case(run: Runner) -> None:
    code, out, _ = run(FAILING, "--json")
    failed, passed = map(json.loads, out.splitlines())
    assert code == 1
    assert passed == {
        "name": "tests[1]",
        "file": "rules.yaml",
        "line": 12,
        "passed": True,
        "failures": [],
    }
    assert failed["passed"] is False
    assert failed["failures"][0] == {
        "step": 1,
        "hit": 1,
        "after_seconds": 0,
        "field": "matches",
        "expected": ["login", "all"],
        "got": ["all", "bills"],
    }


def test_a_file_without_tests_is_no_success(run: Runner) -> None:
    code, out, err = run("  []\n")
    assert (code, out) == (2, "")
    assert "rules.yaml has no tests" in err


BAD = {
    "no mapping": ("- 7", "tests[0]: must be a mapping"),
    "an unknown field": ("- {alowed: true}", "tests[0].alowed: there is no field 'alowed' here"),
    "nothing expected": ("- {request: {path: /}}", "tests[0]: it expects nothing"),
    "an unknown rule": ("- {matches: [nobody]}", "there is no rule 'nobody'"),
    "beside steps": (
        "- {hits: 2, steps: [{allowed: true}]}",
        "`hits` cannot be combined with `steps`",
    ),
    "no duration": (
        "- {steps: [{after: soon, allowed: true}]}",
        "tests[0].steps[0].after: 'soon' is not a duration",
    ),
    "no time": ("- {at: now, allowed: true}", "tests[0].at: 'now' is not a time"),
    "too many hits": (
        "- {hits: 1000000, allowed: true}",
        "tests[0].hits: 1000000 is out of bounds",
    ),
    "a user that is a number": ("- {request: {user_id: 42}, allowed: true}", "must be a string"),
    "longer than a year": ("- {steps: [{after: 60 weeks, allowed: true}]}", "longer than a year"),
}


@pytest.mark.parametrize("case, message", BAD.values(), ids=BAD)
def test_an_invalid_case_is_reported_with_its_line(run: Runner, case: str, message: str) -> None:
    code, out, err = run(f"  {case}\n")
    assert (code, out) == (1, "")
    assert err.startswith("rules.yaml:7: tests[0]")
    assert message in err


def test_invalid_rules_are_reported_as_by_check(run: Runner) -> None:
    code, out, err = run("", rules="rules: [{rule_id: x}]\n")
    assert (code, out) == (1, "")
    assert "rules.yaml:1" in err
