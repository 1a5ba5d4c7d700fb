"""`headgate rules explain`: the trace of a request, for people and for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headgate.cli import main

if TYPE_CHECKING:
    from pathlib import Path

RULES = """\
rules:
  - {rule_id: off, identifier: ip_address, rate: 1/minute, enabled: false, priority: 1}
  - {rule_id: login, identifier: ip_address, rate: 5/minute, priority: 2, match: {path_pattern: /login, methods: [POST]}}
  - {rule_id: users, identifier: user_id, rate: 9/minute burst 3, priority: 3, overrides: {"42": 99/hour}}
  - {rule_id: half, identifier: user_id, rate: 9/minute, priority: 4, enforce_percent: 20}
  - {rule_id: team, identifier: "header:x-team", on_missing: skip, rate: 9/minute, priority: 5}
  - {rule_id: free, identifier: ip_address, rate: 9/minute, priority: 6, exempt: {values: [203.0.113.9]}}
  - {rule_id: last, identifier: ip_address, rate: 7/minute, priority: 7, stop: true, cost: {header: x-cost, max: 5}}
  - {rule_id: never, identifier: ip_address, rate: 7/minute, priority: 8}
"""


@pytest.fixture
def explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["rules", "explain", "rules.yaml", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_table_says_why_for_every_rule(explain: Any) -> None:
    words = ("--path", "/x/..//login?a", "--ip", "::ffff:203.0.113.9", "--header", "X-Cost: 9")
    code, out, err = explain(*words)
    assert (code, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()] == TABLE.splitlines()


TABLE = """\
GET /login from 203.0.113.9

rule   outcome      key              cost  limits                           why
off    disabled                                                             it is not enabled
login  not matched                                                          the method GET is not POST
users  enforced     ~ip=203.0.113.9  1     9/minute burst 3 (token_bucket)  all of its conditions hold
                    note: there is no user_id, so its address is counted
half   shadow       ~ip=203.0.113.9  1     9/minute (sliding_window)        it matches, but the key is at 28 of 100, and only below 20 the rule is enforced
                    note: there is no user_id, so its address is counted
team   skipped                                                              there is no header:x-team, and on_missing is skip
free   exempt                                                               '203.0.113.9' is exempt
last   enforced     203.0.113.9      5     7/minute (sliding_window)        all of its conditions hold
                    note: the header x-cost asks for more than 5
never  stopped                                                              the rule last stops here

It is counted by users, last; half watches.
"""


def test_json_has_everything(explain: Any) -> None:
    words = ["--method", "post", "--path", "/a%00b", "--user-id", "42", "--host", "A.test:80"]
    code, out, _ = explain(
        *words, "--ip", "nobody", "--cost", "3", "--descriptor", "a=b=c", "--json"
    )
    trace = json.loads(out)
    assert code == 0
    assert (trace["method"], trace["path"], trace["host"], trace["ip"]) == (
        "POST",
        None,
        "a.test",
        None,
    )
    assert trace["refused"] == "a path may not have control characters, and %00 is one"
    assert trace["notes"][1] == "'nobody' is not an address, and counts as missing"
    by_rule = {step["rule"]: step for step in trace["rules"]}
    assert by_rule["login"]["why"].startswith("the path was refused")
    assert by_rule["users"] == {
        "rule": "users",
        "priority": 3,
        "outcome": "enforced",
        "why": "all of its conditions hold",
        "key": "42",
        "cost": 3,
        "limits": ["99/hour (sliding_window)"],
        "notes": ["'42' has its own limits", "the caller says that it costs 3"],
    }


def test_nothing_applies(explain: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "rules: [{rule_id: a, identifier: global, rate: 1/minute, match: {path_pattern: /a}}]\n"
    )
    code, out, _ = explain("--path", "/b")
    assert code == 1
    assert out.endswith("No rule applies: nothing limits this request.\n")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--header", "X-Team"], "--header must have the form name:value"),
        (["--descriptor", "=x"], "--descriptor must have the form name=value"),
        (["--cost", "-1"], "the cost must be a whole number"),
        (["--cost", "9" * 16], "the cost must be a whole number from 0 to 9007199254740991"),
    ],
)
def test_wrong_usage(explain: Any, words: list[str], message: str) -> None:
    code, out, err = explain(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_control_characters_steer_nothing(explain: Any) -> None:
    _, out, _ = explain("--host", "a\x1b[2J.test", "--user-id", "\x1b]0;x\x07")
    assert "\x1b" not in out
    assert "\x07" not in out


def test_invalid_rules_are_listed(explain: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{rule_id: x}]\n")
    code, out, err = explain()
    assert (code, out) == (1, "")
    assert err.startswith("rules.yaml:1")
